"""Kills real workers, at a small size, and tests the judge. Any size: ./hf torture workers --help

It runs in a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from holdfast.conformance.chaos.faults import kill_roles
from holdfast.conformance.chaos.process_tree import LaunchedWorkers
from holdfast.conformance.chaos.run_log import HOME
from holdfast.conformance.chaos.verify import LINGER_MS_MAX, ChaosFindings, Fault, verify
from holdfast.core.model import Event, EventKind, Failure, FailureKind, Job, Queue, Reason, State
from holdfast.worker import processes
from tests.crash.torture.test_engines import run
from tests.sources import ROOT
from tests.wait import wait_until

QUEUE = Queue(name="default", lease_ms=2_000, max_attempts=3, max_crashes=2)
SECOND = 1_000_000_000


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_every_job_survives_its_workers(tmp_path: Path) -> None:
    """On SQLite, with a kill of every role. tests/crash/chaos kills one process on PostgreSQL, and
    `./hf torture workers` any number on both."""
    kills = 5
    given = os.environ.get("HOLDFAST_SEED")
    seed = SystemRandom().randrange(1_000_000) if given is None else int(given)
    figures = tmp_path / "figures.json"
    result = run(
        "torture", "workers", "--engine", "sqlite", "--workers", "2", "--kills", str(kills),
        "--freezes", "1", "--seconds", str(kills / 3), "--scale", "0.1", "--seed", str(seed),
        "--json", str(figures),
    )  # fmt: skip
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    [found] = json.loads(figures.read_text())
    assert (found["kills"], found["freezes"], found["violations"]) == (kills, 1, 0)
    assert found["jobs"] == found["done"] + found["dead"]
    assert found["runs"] >= found["done"]
    assert found["of_launchers"] == 1


@pytest.mark.torture
def test_workers_end_when_the_test_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torture", "workers", "--engine", "sqlite", "--workers", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*command, "--kills", "1", "--seconds", "600"], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: bool(list(tmp_path.glob("*/runs.jsonl"))))
        [home] = [path.parent for path in tmp_path.glob("*/runs.jsonl")]
    finally:
        process.kill()
        process.wait()
    marker = {HOME.encode(): str(home).encode()}
    wait_until(lambda: not list(processes.marked(marker)))


def test_few_kills_still_cover_every_role() -> None:
    assert set(kill_roles(5)) == {"child", "command_child", "command", "supervisor", "launcher"}
    assert len(kill_roles(3)) == 3
    assert len(kill_roles(300)) == 300


def test_a_correct_run_has_no_findings() -> None:
    assert found(lines("a", 1, 10, [20], end=30), store=[done("a")]) == []


def test_a_run_that_was_killed_may_be_repeated() -> None:
    again = [*lines("a", 1, 10, [20], pids=[7]), *lines("a", 2, 40, end=50)]
    kill = Fault("kill", "child", 25, (7,))
    assert found(again, [kill], store=[done("a", attempt=2)]) == []
    findings = judged(again, [kill], store=[done("a", attempt=2)])
    assert (findings.reruns, findings.recovery_ms) == (1, [15 / 1e6])


def test_a_frozen_worker_may_be_overtaken() -> None:
    overtaken = [
        *lines("a", 1, 1 * SECOND, [2 * SECOND, 7 * SECOND], pids=[8, 7]),
        *lines("a", 2, 6 * SECOND, end=8 * SECOND),
    ]
    freeze = Fault("freeze", "supervisor", 2 * SECOND, (7,), 6 * SECOND + SECOND // 2)
    lapsed = done("a", attempt=2, events=(failed(FailureKind.OVERDUE),))
    assert found(overtaken, [freeze], store=[lapsed]) == []
    findings = judged(overtaken, [freeze], store=[lapsed])
    assert (findings.lost_leases, findings.linger_ms) == (1, 500)
    # Neither the freeze of another process, nor a freeze during which the lease did not run out.
    other = Fault("freeze", "supervisor", 2 * SECOND, (9,), 6 * SECOND)
    assert len(found(overtaken, [other], store=[lapsed])) == 2
    assert len(found(overtaken, [freeze], store=[done("a", attempt=2)])) == 2


# Faults planted one at a time: the judge must find each and name it.
Planted = Callable[[], list[str]]
FAULTS: dict[str, Planted] = {
    "is lost": lambda: found([], store=[], accepted=["a"]),
    "did not end": lambda: found([], store=[job("a", State.LEASED)]),
    "no run of it finished": lambda: found(lines("a", 1, 10), store=[done("a")]),
    "was never enqueued": lambda: found(lines("b", 1, 10, end=11), store=[], accepted=[]),
    "no fault explains;": lambda: found(twice(), store=[done("a", attempt=2)]),
    "re-run that no fault": lambda: found(
        twice(), [Fault("kill", "child", 25, (99,))], store=[done("a", attempt=2)]
    ),
    "no fault explains; before": lambda: found(
        # The kill came after the job was running again.
        twice(), [Fault("kill", "child", 45, (7,))], store=[done("a", attempt=2)]
    ),
    "no lease was lost": lambda: found(
        [*lines("a", 1, 10, [60], pids=[7]), *lines("a", 2, 40, end=50)],
        [Fault("kill", "child", 25, (7,))],
        store=[done("a", attempt=2)],
    ),
    "could know that its lease was lost": lambda: found(
        [
            *lines("a", 1, 1, [9 * SECOND + LINGER_MS_MAX * 1_000_000], pids=[7]),
            *lines("a", 2, 6 * SECOND, end=7 * SECOND),
        ],
        [Fault("freeze", "supervisor", 2 * SECOND, (7,), 8 * SECOND)],
        store=[done("a", attempt=2, events=(failed(FailureKind.OVERDUE),))],
    ),
    "whose token is not smaller": lambda: found(
        [*lines("a", 2, 10, pids=[7]), *lines("a", 1, 40, end=50)],
        [Fault("kill", "child", 25, (7,))],
        store=[done("a", attempt=2)],
    ),
    "began 2 times under one lease": lambda: found(
        [*lines("a", 1, 10, end=20), *lines("a", 1, 30, end=40)], store=[done("a")]
    ),
    "exceeds the 3 attempts of its queue": lambda: found(
        lines("a", 4, 10, end=20, attempt=4), store=[done("a")]
    ),
    "the queue allows 3": lambda: found(
        lines("a", 1, 10, end=20), store=[done("a", attempt=4)]
    ),
    "died against policy: crashed": lambda: found(
        [], store=[job("a", State.DEAD, reason=Reason.CRASHED, crashes=1)]
    ),
    "died against policy: attempts": lambda: found(
        [], store=[job("a", State.DEAD, reason=Reason.ATTEMPTS, attempt=2)]
    ),
    "died against policy: explicit": lambda: found(
        [], store=[job("a", State.DEAD, reason=Reason.EXPLICIT, attempt=3)]
    ),
    "no fault explains that": lambda: found(
        lines("a", 1, 10, end=20), store=[done("a", events=(failed(FailureKind.TIMEOUT),))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS)
def test_a_planted_fault_is_found(text: str) -> None:
    violations = FAULTS[text]()
    assert [each for each in violations if text in each], violations


def test_a_process_that_is_left_behind_is_found(tmp_path: Path) -> None:
    # In a separate process, because LaunchedWorkers reaps all its children.
    program = f"""
import os, subprocess
from pathlib import Path
from holdfast.conformance.chaos.process_tree import LaunchedWorkers
from holdfast.conformance.chaos.run_log import HOME
workers = LaunchedWorkers(Path({str(tmp_path)!r}), [])
print(workers.survivors(), workers.strays())
left = subprocess.Popen(["sleep", "60"], env={{**os.environ, HOME: {str(tmp_path)!r}}})
print([each == [f"{{left.pid}} sleep 60"] for each in (workers.survivors(), workers.strays())])
workers.kill()
print(workers.survivors(), workers.strays())
"""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["[] []", "[True, True]", "[] []"], result.stderr


def test_a_worker_that_breaks_down_is_found(tmp_path: Path) -> None:
    # Only the log of the workers is read; the constructor would change this process.
    workers = LaunchedWorkers.__new__(LaunchedWorkers)
    workers._home = tmp_path
    assert workers.breakdowns() == []
    killed = "holdfast: a worker ended by signal 9; restarting it in 0.2 s"
    broken = "holdfast: a worker ended by exit code 1; restarting it in 0.2 s"
    workers.log.write_text(f"{killed}\n{broken}\n")
    assert workers.breakdowns() == [f"without a fault: {broken} (before that: {killed})"]
    # The database was down when the worker started, which is a fault of the test.
    away = "holdfast: the database does not answer (unavailable)"
    workers.log.write_text(f"{killed}\n{away}\n{broken}\n")
    assert workers.breakdowns(outages=True) == []
    workers.log.write_text(f"{killed}\n{away}\n{broken}\n{broken}\n")
    assert workers.breakdowns(outages=True) == [
        f"without a fault: {broken} (before that: {broken})"
    ]


def test_a_job_may_die_by_policy() -> None:
    crashed = job("a", State.DEAD, reason=Reason.CRASHED, crashes=2)
    spent = job("b", State.DEAD, reason=Reason.ATTEMPTS, attempt=3)
    assert found([], store=[crashed, spent]) == []


def twice() -> list[dict[str, Any]]:
    return [*lines("a", 1, 10, [20], pids=[7]), *lines("a", 2, 40, end=50)]


def lines(
    name: str,
    token: int,
    begin: int,
    beats: list[int] | None = None,
    *,
    end: int | None = None,
    pids: list[int] | None = None,
    attempt: int = 1,
) -> list[dict[str, Any]]:
    who = {"job": name, "token": token}
    first = {"what": "begin", "attempt": attempt, "kind": "sync", "pids": pids or [1000 + token]}
    ended = [] if end is None else [{**who, "what": "end", "at_ns": end}]
    between = [{**who, "what": "beat", "at_ns": beat} for beat in beats or []]
    return [{**who, **first, "at_ns": begin}, *between, *ended]


def job(name: str, state: State, **facts: Any) -> Job:
    return Job(**{"id": name, "task": "sync", "queue": "default", "state": state, **facts})


def done(name: str, attempt: int = 1, events: tuple[Event, ...] = ()) -> Job:
    return job(name, State.DONE, attempt=attempt, events=events)


def failed(kind: FailureKind) -> Event:
    return Event(at=1, kind=EventKind.RETRIED, attempt=1, failure=Failure(kind=kind))


def found(
    runs: list[dict[str, Any]],
    faults: list[Fault] | None = None,
    *,
    store: list[Job],
    accepted: list[str] | None = None,
) -> list[str]:
    return judged(runs, faults, store=store, accepted=accepted).violations


def judged(
    runs: list[dict[str, Any]],
    faults: list[Fault] | None = None,
    *,
    store: list[Job],
    accepted: list[str] | None = None,
) -> ChaosFindings:
    known = {each.id: each for each in store}
    return verify(runs, faults or [], known if accepted is None else accepted, known, QUEUE)
