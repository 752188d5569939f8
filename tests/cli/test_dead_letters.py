"""`dlq …`: dead letters are listed, retried, purged and exported."""

import contextlib
import json
import shutil
import stat
from pathlib import Path

import pytest

from holdfast.core.model import Failure, Reason
from holdfast.core.verdict import Bury, Complete
from tests.cli import seed
from tests.cli.program import Cli


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store, for each test to copy."""
    folder = tmp_path_factory.mktemp("filled")
    with contextlib.chdir(folder):
        seed.with_app(lambda app: app.declare("mail"))
        seed.dead("a", Reason.ATTEMPTS, "no route", task="send", queue="mail", tenant="acme")
        seed.dead("b", Reason.CRASHED, "killed by SIGSEGV")
        seed.dead("c", Reason.EXPLICIT, "useless")
        seed.done("done")
        seed.enqueue("wait")
    return folder / "holdfast.db"


@pytest.fixture
def letters(cli: Cli, filled: Path) -> Cli:
    """Three dead letters among others."""
    shutil.copy(filled, ".")
    return cli


def dead(cli: Cli, *flags: str) -> str:
    return "".join(job["id"] for job in cli("dlq", "list", *flags, "--json").json)


def test_list_shows_what_went_wrong(letters: Cli) -> None:
    text = letters("dlq", "list").out
    for part in ("no route", "killed by SIGSEGV", "crashed", "explicit"):
        assert part in text
    assert "done" not in text
    listed = letters("dlq", "list", "--json").json
    assert [job["error"] for job in listed] == ["useless", "killed by SIGSEGV", "no route"]
    assert listed[0] == letters("job", "show", "c", "--json").json
    assert "--after" in letters("dlq", "list", "--limit", "1").err


def test_every_command_covers_dead_letters_in_a_dead_queue(cli: Cli) -> None:
    cli("queue", "create", "grave", "--expires", "1h")
    cli("queue", "create", "mail", "--dead-queue", "grave")
    for id_ in "ab":
        seed.dead(id_, Reason.ATTEMPTS, "no route", queue="mail")
    assert dead(cli, "--queue", "grave") == "ba"
    shown = cli("dlq", "show", "a", "--json").json
    assert (shown["queue"], shown["origin"], shown["attempts"]) == ("grave", "mail", 1)
    [group] = cli("dlq", "groups", "--json").json["groups"]
    assert (group["count"], group["queues"]) == (2, {"grave": 2})
    cli("dlq", "export", "out.jsonl")
    assert len(Path("out.jsonl").read_text().splitlines()) == 2
    assert cli("dlq", "retry", "a").code == 0
    retried = cli("job", "show", "a", "--json").json
    assert (retried["queue"], retried["state"], retried["attempts"]) == ("mail", "waiting", 0)
    assert cli("dlq", "purge", "--queue", "grave", "--yes", "--json").json["purged"] == 1
    assert dead(cli) == ""


def test_show_is_for_dead_letters(letters: Cli) -> None:
    assert letters("dlq", "show", "a", "--json").json["reason"] == "attempts"
    ran = letters("dlq", "show", "wait")
    assert ran.code == 3
    assert "is waiting, not dead" in ran.err


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (["--queue", "mail"], "a"),
        (["--task", "send"], "a"),
        (["--tenant", "acme"], "a"),
        (["--reason", "crashed"], "b"),
        (["--since", "1h"], "abc"),
        (["--since", "2999-01-01T00:00Z"], ""),
        (["--search", "acme"], "a"),
        (["--all"], "abc"),
        (["a", "c"], "ac"),
    ],
)
@pytest.mark.parametrize("verb", ["retry", "purge"])
def test_dead_letters_are_selected_by_id_filter_or_all(
    letters: Cli, verb: str, flags: list[str], meant: str
) -> None:
    dry = letters("dlq", verb, *flags, "--dry-run", "--json").json
    assert dry["found"] == len(meant)
    assert dead(letters) == "cba", "a dry run changes nothing"
    yes = ["--yes"] if verb == "purge" else []
    ran = letters("dlq", verb, *flags, *yes)
    assert ran.code == 0
    assert dead(letters) == "".join(sorted(set("abc") - set(meant), reverse=True))
    left = {job["id"]: job["state"] for job in letters("list", "--json").json}
    assert left["done"] == "done"
    assert {left.get(id_) for id_ in meant} <= ({"waiting"} if verb == "retry" else {None})


def test_a_purge_asks_first(letters: Cli) -> None:
    ran = letters("dlq", "purge", "--all")
    assert (ran.code, ran.out) == (2, "")
    assert "Purge 3 jobs?" in ran.err
    assert dead(letters) == "cba"


def test_purging_an_unknown_id_is_reported(letters: Cli) -> None:
    ran = letters("dlq", "purge", "a", "nothing", "--yes")
    assert (ran.code, ran.out) == (3, "a purged\n")
    assert 'no job has the id "nothing' in ran.err
    assert dead(letters) == "cb"


def test_many_dead_letters_are_retried_in_batches(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.ops.jobs.bulk.job_batches.__defaults__", (2,))
    for number in range(5):
        seed.dead(f"j{number}")
    answer = cli("dlq", "retry", "--all", "--json").json
    assert answer == {"found": 5, "more": False, "capped": 0, "retried": 5}
    assert cli("dlq", "retry", "--all").out == "retried 0 jobs\n"


def test_a_count_is_bounded(letters: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.bounds.SCAN_MAX", 2)
    monkeypatch.setattr("holdfast.ops.redrives.BATCH", 2)
    assert letters("dlq", "retry", "--all", "--dry-run").out == "would retry at least 2 jobs\n"


def test_a_retry_may_be_delayed(letters: Cli) -> None:
    assert letters("dlq", "retry", "--all", "--delay", "1h").out == "retried 3 jobs\n"
    assert letters("status", "--json").json["queues"][0]["delayed"] == 2


def test_export_writes_a_line_of_json_each(letters: Cli, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in letters("dlq", "export").out.splitlines()]
    assert lines == letters("dlq", "list", "--json").json
    ran = letters("dlq", "export", "dead.jsonl", "--queue", "mail", "--json")
    assert ran.json == {"file": "dead.jsonl", "exported": 1}
    file = tmp_path / "dead.jsonl"
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["a"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = letters("dlq", "export", "dead.jsonl")
    assert again.code == 2
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["retry"], 2, "select dead letters"),
        (["purge"], 2, "select dead letters"),
        (["purge", "--yes"], 2, "select dead letters"),
        (["retry", "--all", "--queue", "mail"], 2, "only one"),
        (["retry", "a", "--all"], 2, "only one"),
        (["retry", "no"], 3, 'no job has the id "no"'),
        (["retry", "--all", "--delay", "x"], 2, 'delay "x"'),
        (["retry", "--all", "--edit", "{"], 2, "edit is not JSON"),
        (["retry", "--all", "--rate", "often"], 2, 'rate "often": expected a rate'),
        (["retry", "--all", "--rate", "0/s"], 2, "allows no start at all"),
        (["retry", "--all", "--canary", "--canary-wait", "x"], 2, 'canary-wait "x"'),
        (
            ["retry", "--all", "--max-redrives", "0"],
            2,
            "redrives_max 0 is out of range: expected 1",
        ),
        (["retry", "--all", "--watch"], 2, "--watch needs --rate or --canary"),
        (["groups", "--limit", "0"], 2, "limit 0 is out of range: expected 1"),
        (["quarantine", "--reason", "expired"], 2, "not expired"),
        (["show", "no"], 3, '"no"'),
        (["export", "/proc/nowhere/x"], 2, "/proc/nowhere/x cannot be written"),
        (["list", "--reason", "bored"], 2, "bored"),
    ],
)
def test_an_error_changes_nothing(letters: Cli, line: list[str], code: int, says: str) -> None:
    ran = letters("dlq", *line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err
    assert dead(letters) == "cba"


def test_only_dead_letters_are_retried_by_id(letters: Cli) -> None:
    ran = letters("dlq", "retry", "done", "a")
    assert (ran.code, ran.out) == (1, "a retried\n")
    assert "done was not retried: it is done, and must be dead" in ran.err


def test_jobs_that_were_redriven_too_often_are_skipped(letters: Cli) -> None:
    seed.with_app(lambda app: app.redrive("b"))
    seed.settle(seed.lease(), Complete())
    seed.settle(seed.lease(), Bury(failure=Failure(message="again")))
    again = letters("dlq", "retry", "--all", "--max-redrives", "1")
    assert (again.code, again.out) == (0, "retried 2 jobs\n")
    assert again.err == "left 1 job dead: already retried 1 time or more\n"
    assert dead(letters) == "b"
    assert letters("dlq", "retry", "b").out == "b retried\n", "who names it means it"


def test_payloads_are_edited_before_a_retry(cli: Cli) -> None:
    seed.dead("a", payload={"to": "ann", "retry": 1})
    seed.dead("b", payload={"to": "bob"})
    seed.dead("c", payload=[1])
    assert cli("dlq", "retry", "a", "--edit", '{"retry": null, "to": "eve"}').out == "a retried\n"
    assert cli("dlq", "retry", "--all", "--edit", '{"n": 1}').out == "retried 2 jobs\n"
    shown = {id_: cli("job", "show", id_, "--json").json for id_ in "abc"}
    assert [shown[id_]["payload"] for id_ in "abc"] == [
        {"to": "eve"},
        {"to": "bob", "n": 1},
        {"n": 1},
    ]
    events = cli("job", "timeline", "a", "--json").json
    assert [event["event"] for event in events][-2:] == ["edited", "redriven"]
    assert all("@" in event["worker"] for event in events[-2:]), "who did it"
    again = cli("dlq", "retry", "a", "nothing", "--edit", "{}")
    assert again.code == 3
    assert "a was not retried: it is waiting, and must be dead" in again.err
