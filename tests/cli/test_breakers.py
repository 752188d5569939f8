"""`breaker list|show|open|close`, and breakers in `status` and `job explain`."""

import json

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core import breaker as rules
from holdfast.core.breaker import KIND, NO_RESULTS, Breaker, BreakerRecord
from holdfast.core.model import Record
from tests.cli import seed
from tests.cli.program import Cli

POLICY = Breaker(failures=2)


def save(key: str = "task:t", *, failures: int = 0) -> None:
    results = NO_RESULTS
    for _ in range(failures):
        results = results.plus(good=False, text="OSError: no \x1b[31mroute")
    record = rules.count_results(BreakerRecord(policy=POLICY), results, POLICY, 0)
    saved = Record(kind=KIND, key=key, value=msgspec.json.encode(record))
    seed.with_app(lambda app: app.engine.save([saved]))


def stored(key: str = "task:t") -> BreakerRecord | None:
    async def load(app: Holdfast) -> BreakerRecord | None:
        for each in await app.engine.load(KIND, limit=10):
            if each.key == key:
                return msgspec.json.decode(each.value or b"", type=BreakerRecord)
        return None

    return seed.with_app(load)


def test_list_shows_every_breaker(cli: Cli) -> None:
    seed.enqueue()
    ran = cli("breaker", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "there are no breakers" in ran.err
    save()
    save("host:a.example:443", failures=2)
    ran = cli("breaker", "list")
    assert "task:t" in ran.out
    assert "2 failures, 30s to 10m" in ran.out
    assert "\x1b" not in ran.out
    host, task = cli("breaker", "list", "--json").json
    assert (host["name"], host["state"], host["failures"]) == ("host:a.example:443", "open", 2)
    assert 0 < host["probe_in_ms"] <= 30_000
    assert (task["name"], task["state"], task["probe_in_ms"]) == ("task:t", "closed", None)


def test_show_prints_one_breaker(cli: Cli) -> None:
    save(failures=2)
    view = cli("breaker", "show", "t", "--json").json
    assert (view["name"], view["state"], view["policy"]) == (
        "task:t",
        "open",
        "2 failures, 30s to 10m",
    )
    assert "OSError: no \\x1b[31mroute" in cli("breaker", "show", "task:t").out
    assert cli("breaker", "show", "nobody").code == 3


def test_a_breaker_is_opened_and_closed_by_hand(cli: Cli) -> None:
    save()
    save("host:a.example:443", failures=2)
    assert cli("breaker", "open", "t").out == "task:t: open\n"
    record = stored()
    assert record is not None
    assert (str(record.state), "@" in record.by) == ("open", True)
    assert f"open by {record.by}" in cli("breaker", "list").out
    ran = cli("breaker", "close", "t", "host:a.example:443", "--json")
    assert ran.json == {"closed": ["task:t", "host:a.example:443"]}
    assert stored() == BreakerRecord(policy=POLICY)
    assert stored("host:a.example:443") is None, "nothing is kept of a host that is well"
    assert cli("breaker", "open", "nobody").code == 3


def test_status_shows_breakers_that_are_not_closed(cli: Cli) -> None:
    save()
    save("task:u", failures=2)
    ran = cli("status")
    assert "task:u" in ran.out
    assert "task:t" not in ran.out
    assert [each["name"] for each in cli("status", "--json").json["breakers"]] == [
        "task:t",
        "task:u",
    ]


def test_explain_names_an_open_breaker_and_when_it_is_tried(cli: Cli) -> None:
    save(failures=2)
    seed.worker("w")
    seed.enqueue("j")
    [reason] = cli("job", "explain", "j", "--json").json["reasons"]
    assert reason["code"] == "breaker_open"
    assert reason["text"].startswith("the breaker of task t is open after 2 failures, last: OSEr")
    assert (reason["command"], reason["at"] is not None) == ("breaker close task:t", True)
    cli("breaker", "close", "t")
    [reason] = cli("job", "explain", "j", "--json").json["reasons"]
    assert reason["code"] == "ready"


def test_explain_knows_the_host_of_a_webhook(cli: Cli) -> None:
    save("host:a.example:443", failures=2)
    seed.worker("w", tasks=("webhook",))
    seed.enqueue("j", task="webhook", payload={"url": "https://a.example/in"})
    [reason] = cli("job", "explain", "j", "--json").json["reasons"]
    assert (reason["code"], "host a.example:443" in reason["text"]) == ("breaker_open", True)
    assert json.dumps(reason)
