"""The command line on Amazon SQS: each command works, or says what is missing and what to do."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import Failure, Lease, LeaseRequest, Reason
from holdfast.core.verdict import Bury, Settlement
from holdfast.errors import Unsupported
from tests.cli.program import Cli

pytestmark = pytest.mark.usefixtures("aws")

NO_RECORDS = "name an engine that stores them in the URL: control=URL"
NO_SEARCH = "use an engine that can search its jobs"


@pytest.fixture
def bare(endpoint: str) -> str:
    """The URL of an engine without a control engine."""
    return f"sqs://us-east-1/t{uuid4().hex[:8]}-?endpoint={endpoint}&create=true"


@pytest.fixture
def url(bare: str, memory_path: Path) -> str:
    return f"{bare}&control=sqlite:///{memory_path}/control.db"


def bury(url: str, *ids: str) -> None:
    async def run() -> None:
        async with Holdfast(url) as app:
            for id_ in ids:
                await app.enqueue("t", {"n": 1}, id=id_)
            leases: list[Lease] = []
            while len(leases) < len(ids):
                leases += await app.engine.lease(
                    LeaseRequest(queues=("default",), limit=10, wait_ms=20_000)
                )
            verdict = Bury(Reason.EXPLICIT, Failure(type="KeyError", message="no such order"))
            await app.engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])

    asyncio.run(run())


def test_commands_on_queues_need_no_control_engine(cli: Cli, bare: str) -> None:
    assert cli("queue", "create", "mail", "--lease", "20s", "--url", bare).code == 0
    assert cli("enqueue", "--task", "t", "--queue", "mail", "--url", bare).code == 0
    paused = cli("queue", "pause", "mail", "--text", "why", "--url", bare)
    assert paused.code == 0
    assert f"the reason is not stored: {NO_RECORDS}" in paused.err
    (_, mail) = cli("queue", "list", "--url", bare, "--json").json
    assert (mail["name"], mail["paused"], mail["lease_ms"]) == ("mail", True, 20_000)
    assert cli("queue", "resume", "mail", "--url", bare).code == 0
    shown = cli("status", "--url", bare)
    assert shown.code == 0
    assert f"workers, breakers, gates and alerts are not shown: {NO_RECORDS}" in shown.err
    assert cli("top", "--once", "--url", bare).code == 0
    for line in ("scaling", "config list"):
        assert cli(*line.split(), "--url", bare).code == 0
    doctor = cli("doctor", "--url", bare)
    assert (doctor.code, "stores no workers, schedules and settings" in doctor.out) == (0, True)
    assert cli("queue", "delete", "mail", "--yes", "--url", bare).code == 0


@pytest.mark.parametrize(
    "line",
    [
        "worker list", "worker stop x", "schedule list", "schedule add s --every 1h --task t",
        "breaker list", "config set alert-cool-down 1m", "audit", "gate list",
        "token list",
    ],
)  # fmt: skip
def test_commands_on_records_say_what_to_add(cli: Cli, bare: str, line: str) -> None:
    ran = cli(*line.split(), "--url", bare)
    assert ran.code == 2
    assert NO_RECORDS in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "line",
    [
        "job show x", "job logs x", "job timeline x", "job explain x", "job cancel x", "list",
        "queue clear default --yes", "dlq groups", "dlq quarantine", "dlq export",
        "cleanup --yes", "enqueue --task t --wait",
    ],
)  # fmt: skip
def test_commands_that_search_name_another_engine(cli: Cli, url: str, line: str) -> None:
    ran = cli(*line.split(), "--url", url)
    assert ran.code == 2
    assert "the sqs engine does not support" in ran.err
    assert NO_SEARCH in ran.err
    (queue,) = cli("queue", "list", "--url", url, "--json").json
    assert (queue["name"], queue["ready"]) == ("default", 0), "refused before anything was sent"


async def test_waiting_for_a_result_names_another_engine(url: str) -> None:
    async with Holdfast(url) as app:

        @app.task(name="answer")
        def answer() -> int:
            return 1

        handle = await answer.aenqueue()
        with pytest.raises(Unsupported, match=NO_SEARCH):
            await handle.aresult()


@pytest.mark.parametrize("line", ["backup copy.db", "move-store --to sqlite:///copy.db"])
def test_a_copy_is_refused(cli: Cli, url: str, line: str) -> None:
    ran = cli(*line.split(), "--url", url)
    assert (ran.code, "unsupported" in ran.err) == (2, True)
    assert not Path("copy.db").exists()


def test_records_are_those_of_the_control_engine(cli: Cli, url: str) -> None:
    assert cli("schedule", "add", "s", "--every", "1h", "--task", "t", "--url", url).code == 0
    assert cli("schedule", "run", "s", "--url", url).code == 0
    (queue,) = cli("queue", "list", "--url", url, "--json").json
    assert queue["ready"] == 1
    assert cli("config", "set", "alert-cool-down", "1m", "--url", url).code == 0
    status = cli("status", "--url", url, "--json").json
    assert (status["workers"], status["redrives"]) == ([], [])
    assert "failed" in status["queues"][0]["estimated"], "which nobody can count"
    for line in ("worker list", "breaker list", "gate list", "redrive list", "doctor"):
        assert cli(*line.split(), "--url", url).code == 0, line


def test_dead_letters_are_sampled(cli: Cli, bare: str) -> None:
    assert cli("dlq", "list", "--url", bare).out.split()[0] == "id"
    bury(bare, "a", "b")
    listed = cli("dlq", "list", "--url", bare)
    assert "a sample: 2 of about 2 dead letters" in listed.err
    assert listed.out.count("no such order") == 2
    ran = cli("dlq", "list", "--task", "other", "--url", bare, "--json")
    assert (ran.code, ran.out.strip()) == (0, "[]")
    shown = cli("dlq", "show", "a", "--url", bare)
    assert "explicit: KeyError: no such order" in shown.out
    missing = cli("dlq", "show", "c", "--url", bare)
    assert (missing.code, "in a sample" in missing.err) == (3, True)
    paged = cli("dlq", "list", "--after", "3", "--url", bare)
    assert (paged.code, "shows only a sample" in paged.err) == (2, True)


def test_sqs_moves_dead_letters_back(cli: Cli, bare: str) -> None:
    bury(bare, "a", "b")
    dry = cli("dlq", "retry", "--all", "--dry-run", "--url", bare, "--json").json
    assert (dry["found"], dry["retried"]) == (2, 0)
    started = cli("dlq", "retry", "--queue", "default", "--rate", "10/s", "--url", bare)
    assert (started.code, started.out) == (0, "default\n")
    assert 'see "holdfast redrive show default"' in started.err
    assert cli("redrive", "show", "default", "--watch", "--url", bare).code == 0
    (move,) = cli("redrive", "list", "--url", bare, "--json").json
    assert (move["id"], move["state"], move["retried"]) == ("default", "finished", 2)
    assert move["rate"] == "10/s"
    ended = cli("redrive", "cancel", "default", "--url", bare)
    assert (ended.code, "has already ended" in ended.err) == (0, True)
    assert cli("redrive", "show", "other", "--url", bare).code == 3
    none = cli("dlq", "retry", "--all", "--url", bare)
    assert (none.code, "there are no dead letters" in none.err) == (0, True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("retry a", "putting single dead letters back"),
        ("retry --task t", "putting single dead letters back"),
        ("retry --all --canary", "canaries"),
        ("retry --all --edit {}", "changes to the payloads"),
        ("retry --all --delay 1m", "a delay"),
        ("retry --all --max-redrives 9", "a limit on redrives"),
        ("retry --queue default --rate 100/m", "a whole number from 1/s to 500/s"),
        ("retry --queue default --rate 1000/s", "a whole number from 1/s to 500/s"),
        ("retry --queue missing", "missing does not exist"),
        ("purge a --yes", "purging single dead letters"),
        ("purge --reason expired --yes", "purging single dead letters"),
        ("purge --queue missing --yes", "missing does not exist"),
    ],
)
def test_only_whole_queues_are_moved_and_purged(cli: Cli, bare: str, line: str, why: str) -> None:
    ran = cli("dlq", *line.split(), "--url", bare)
    assert ran.code in (2, 3)
    assert why in ran.err
    (queue,) = cli("queue", "list", "--url", bare, "--json").json
    assert queue["ready"] == 0


def test_a_purge_of_dead_letters(cli: Cli, bare: str) -> None:
    bury(bare, "a")
    dry = cli("dlq", "purge", "--all", "--dry-run", "--url", bare)
    assert dry.out == "would purge about 1 dead letter\n"
    assert cli("dlq", "purge", "--all", "--yes", "--url", bare, "--json").json["purged"] == 1
    assert "0 of about 0" in cli("dlq", "list", "--url", bare).err
