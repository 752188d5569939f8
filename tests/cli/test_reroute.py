"""`job reroute`, and jobs that are enqueued with a policy for it."""

import json

from holdfast.core.model import Job, Reroute
from tests.cli import seed
from tests.cli.program import Cli


def job(id_: str = "j") -> Job:
    found = seed.with_app(lambda app: app.get(id_))
    assert found is not None
    return found


def prepare() -> None:
    for name, labels in (("a", {}), ("b", {}), ("c", {"zone": "eu"})):
        seed.worker(name, labels=labels)
        seed.with_app(lambda app, name=name: app.declare(f"worker.{name}"))  # type: ignore[misc]


def test_a_job_is_rerouted_to_a_named_or_chosen_worker(cli: Cli) -> None:
    prepare()
    seed.enqueue("j", to="a")
    assert cli("job", "reroute", "j", "--to", "b").out == "j rerouted to b\n"
    assert (job().queue, job().origin) == ("worker.b", "worker.a")
    assert cli("job", "reroute", "j", "--label", "zone=eu").out == "j rerouted to c\n"
    assert cli("job", "reroute", "j", "--expires", "1h").out == "j rerouted to a\n"
    assert (job().expires_at or 0) - job().created_at >= 3_600_000
    event = job().events[-1]
    assert (str(event.kind), "@" in event.by) == ("moved", True)
    assert event.text == "from worker.c to worker.a: rerouted"


def test_a_refused_reroute_says_why(cli: Cli) -> None:
    prepare()
    seed.enqueue("j", to="a")
    seed.enqueue("plain")
    ran = cli("job", "reroute", "plain", "j", "--label", "zone=mars", "--json")
    assert ran.code == 1
    answer = json.loads(ran.out)
    assert answer["rerouted"] == []
    assert "not addressed to a worker" in answer["refused"]["plain"]
    assert "no other healthy worker" in answer["refused"]["j"]
    assert cli("job", "reroute", "missing").code == 3
    ran = cli("job", "reroute", "j", "--to", "nobody")
    assert (ran.code, 'unknown worker "nobody"' in ran.err) == (3, True)
    assert cli("job", "reroute", "j", "--to", "b", "--label", "a=b").code == 2


def test_a_job_is_enqueued_with_a_reroute_policy(cli: Cli) -> None:
    prepare()
    assert cli("enqueue", "--task", "t", "--id", "any", "--to", "a", "--reroute", "any").code == 0
    assert job("any").overrides.reroute == Reroute()
    flags = ("--to", "a", "--reroute", "zone=eu", "--reroute", "disk=ssd")
    assert cli("enqueue", "--task", "t", "--id", "some", *flags).code == 0
    assert job("some").overrides.reroute == Reroute(labels={"zone": "eu", "disk": "ssd"})
    line = {"id": "json", "task": "t", "to": "a", "reroute": {"zone": "eu"}}
    assert cli("enqueue", json.dumps(line)).code == 0
    assert job("json").overrides.reroute == Reroute(labels={"zone": "eu"})
    assert cli("job", "show", "json", "--json").json["reroute"] == {"labels": {"zone": "eu"}}
    cli("job", "edit", "json", "--expires", "0s")
    [first, *_] = cli("job", "explain", "json", "--json").json["reasons"]
    assert (first["code"], "moves to another worker" in first["text"]) == ("expired", True)
    ran = cli("enqueue", "--task", "t", "--reroute", "any")
    assert (ran.code, 'set "to" as well' in ran.err) == (2, True)
