"""The recorder: every request and answer is on disk, also after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.conformance.checker import check
from holdfast.conformance.history import (
    HistoryLine,
    Journal,
    Recorded,
    dump,
    read_journals,
    to_file,
)
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Queue, Renewal
from holdfast.core.verdict import Cancel, Complete, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull, UsageError


def recorded(lines: list[HistoryLine]) -> Recorded:
    return Recorded(MemoryEngine(), Journal("p1", lines.append))


async def test_every_call_leaves_two_lines() -> None:
    lines: list[HistoryLine] = []
    engine = recorded(lines)
    await engine.open()
    await engine.declare(Queue(name="work"))
    child = NewJob(id="child", task="t", queue="work")
    await engine.enqueue([NewJob(id="a", task="t", queue="work", payload=b"x", key="k")])
    [lease] = await engine.lease(LeaseRequest(queues=("work",), worker="w"))
    [renewed] = await engine.renew([Renewal(lease=lease, lease_ms=5_000)])
    assert renewed is not None
    await engine.settle([Settlement(lease=renewed, verdict=Complete(then=(child,)))])
    await engine.overdue(10)
    await engine.expired(10)
    await engine.amend(JobFilter(ids=("child",)), Cancel(), limit=1)
    await engine.drop("work")
    assert [(line.phase, line.op) for line in lines] == [
        (phase, op)
        for op in (
            "declare", "enqueue", "lease", "renew", "settle", "overdue", "expired", "amend", "drop",
        )
        for phase in ("inv", "ok")
    ]  # fmt: skip
    answers = {line.op: line for line in lines if line.phase == "ok"}
    asked = {line.op: line for line in lines if line.phase == "inv"}
    granted = answers["lease"].jobs[0]
    assert (granted.id, granted.attempt, granted.token) == ("a", 1, lease.token)
    assert granted.digest == asked["enqueue"].jobs[0].digest
    assert answers["enqueue"].jobs[0].answer == "new"
    assert asked["settle"].jobs[0].then[0].id == "child"
    assert answers["settle"].jobs[0].answer == "settled"
    assert answers["amend"].count == 1


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (UsageError("no"), "fail"),
        (EngineUnavailable("no"), "fail"),
        (OutcomeUnknown("who knows"), "info"),
        (StorageFull("who knows"), "info"),
        (ConnectionResetError(), "info"),
        (KeyboardInterrupt(), "info"),
    ],
)
async def test_only_errors_that_prove_no_effect_are_failures(
    error: BaseException, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[HistoryLine] = []
    engine = recorded(lines)

    async def refuse(self: object, jobs: object) -> None:
        raise error

    monkeypatch.setattr(MemoryEngine, "enqueue", refuse)
    with pytest.raises(type(error)):
        await engine.enqueue([NewJob(id="a", task="t")])
    assert [line.phase for line in lines] == ["inv", phase]


async def test_a_recorded_run_is_clean_and_complete(tmp_path: Path) -> None:
    journal = Journal("p1", to_file(tmp_path / "p1.jsonl"))
    engine = Recorded(MemoryEngine(), journal)
    await engine.open()
    await engine.declare(Queue(name="default"))
    await engine.enqueue([NewJob(id=f"job-{n}", task="t") for n in range(5)])
    for lease in await engine.lease(LeaseRequest(queues=("default",), limit=5)):
        await engine.settle([Settlement(lease=lease, verdict=Complete())])
    journal.note("drained")
    assert await dump(engine, journal) == 5
    findings = check(read_journals(tmp_path))
    assert findings.clean, findings.violations
    assert (findings.jobs, findings.states) == (5, {"done": 5})


def test_lines_survive_a_kill_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from holdfast.conformance.history import Journal, to_file\n"
        "journal = Journal('victim', to_file(Path(sys.argv[1])))\n"
        "journal.begin('overdue', 1)\n"
        "print('written', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = tmp_path / "victim.jsonl"
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"written\n"
        os.kill(victim.pid, signal.SIGKILL)
    with path.open("ab") as file:
        file.write(b'{"process":"victim","at_n')
    assert [(line.process, line.op) for line in read_journals(tmp_path)] == [("victim", "overdue")]
