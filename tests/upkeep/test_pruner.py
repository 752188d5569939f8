"""The pruner: finished jobs are archived and deleted, never one that was retried meanwhile."""

import fcntl
import os
import stat
from pathlib import Path

import msgspec
import pytest

from holdfast.core.breaker import KIND, BreakerRecord, BreakerState
from holdfast.core.model import Job, JobFilter, LeaseRequest, NewJob, Queue, Record, State
from holdfast.core.verdict import Bury, Complete, Redrive, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.events import Pruned
from holdfast.ops.jobs.bulk import Archive, delete_unchanged
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Pruner
from tests.upkeep.faulty_engine import RecordingListener

DAY = 24 * 3_600_000


async def finish(engine: Engine, *ids: str, dead: bool = False) -> None:
    await engine.enqueue([NewJob(id=id_, task="t", payload=b"\xff\x00") for id_ in ids])
    leases = await engine.lease(LeaseRequest(ids=ids, limit=len(ids)))
    verdict = Bury() if dead else Complete(b"[1]")
    await engine.settle([Settlement(lease=lease, verdict=verdict) for lease in leases])


def archived(path: Path) -> list[Job]:
    return [msgspec.json.decode(line, type=Job) for line in path.read_bytes().splitlines()]


async def test_jobs_are_deleted_after_their_own_retention(
    engine: Engine, clock: ManualClock
) -> None:
    pruner = Pruner(engine)
    await finish(engine, "done")
    await finish(engine, "dead", dead=True)
    await engine.enqueue([NewJob(id="waiting", task="t")])
    clock.advance(7 * DAY - 1)
    await pruner.once()
    assert await engine.get("done") is not None
    clock.advance(1)
    await pruner.once()
    assert await engine.get("done") is None
    assert await engine.get("dead") is not None
    clock.advance(7 * DAY)
    await pruner.once()
    assert await engine.get("dead") is None
    assert await engine.get("waiting") is not None


async def test_old_breakers_are_forgotten(engine: Engine, clock: ManualClock) -> None:
    """A breaker that an operator opened stays, and an open one stays a day longer."""
    records = {
        "task:gone": BreakerRecord(streak=2),
        "task:open": BreakerRecord(state=BreakerState.OPEN, open_ms=DAY),
        "task:by-hand": BreakerRecord(state=BreakerState.OPEN, by="ada"),
    }
    for key, record in records.items():
        await engine.save([Record(kind=KIND, key=key, value=msgspec.json.encode(record))])
    pruner = Pruner(engine)

    async def left() -> list[str]:
        await pruner.once()
        return [record.key for record in await engine.load(KIND, limit=9)]

    clock.advance(DAY)
    assert await left() == ["task:by-hand", "task:gone", "task:open"]
    clock.advance(1)
    assert await left() == ["task:by-hand", "task:open"]
    clock.advance(DAY)
    assert await left() == ["task:by-hand"]


async def test_the_full_job_is_archived_before_it_is_deleted(
    engine: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.jsonl"
    await finish(engine, "a", "b")
    await finish(engine, "c", dead=True)
    whole = [await engine.get(id_) for id_ in "abc"]
    clock.advance(30 * DAY)
    listener = RecordingListener()
    old = os.umask(0)
    try:
        assert await Pruner(engine, archive=Archive(path), tell=listener).once() is None
    finally:
        os.umask(old)
    assert archived(path) == whole
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listener.events == [Pruned(deleted=3, archived=3)]


def test_an_archive_is_not_written_through_a_link(tmp_path: Path) -> None:
    """A user who can write to the folder could otherwise make the service overwrite any of its
    files."""
    (tmp_path / "precious").write_text("x")
    (tmp_path / "jobs.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        Archive(tmp_path / "jobs.jsonl").write([])
    assert (tmp_path / "precious").read_text() == "x"


async def test_nothing_is_deleted_when_the_archive_fails(
    engine: Engine, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.jsonl"
    await finish(engine, "a", "b")
    clock.advance(30 * DAY)

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    pruner = Pruner(engine, archive=Archive(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            await pruner.once()
    assert await engine.get("a") is not None
    await pruner.once()
    assert await engine.get("a") is None
    assert [job.id for job in archived(path)][-2:] == ["a", "b"]


async def test_a_torn_line_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    job = Job(id="a", task="t", queue="default")
    archive = Archive(path)
    archive.write([job])
    with path.open("ab") as file:
        file.write(b'{"id": "torn')
    archive.write([job])
    lines = path.read_bytes().split(b"\n")
    assert [msgspec.json.decode(lines[at], type=Job) for at in (0, 2)] == [job, job]
    assert lines[1] == b'{"id": "torn'


async def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.jsonl"
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    jobs = [Job(id=f"{i}", task="t", queue="default") for i in range(3)]
    Archive(path).write(jobs)
    assert archived(path) == jobs


async def test_lines_are_synced_before_jobs_are_deleted(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_write, real_sync = os.write, os.fsync

    def write(file: int, data: bytes) -> int:
        steps.append("write")
        return real_write(file, data)

    def sync(file: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "sync file")
        real_sync(file)

    class Watched(MemoryEngine):
        async def amend(self, *args: object, **more: object) -> int:
            steps.append("delete")
            return await super().amend(*args, **more)  # type: ignore[arg-type]

    engine = Watched(clock=clock)
    await engine.open()
    await finish(engine, "a")
    clock.advance(30 * DAY)
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", sync)
    await Pruner(engine, archive=Archive(tmp_path / "jobs.jsonl")).once()
    assert steps == ["write", "sync file", "sync folder", "delete"]


@pytest.mark.parametrize("finished_again", [False, True])
async def test_a_job_retried_in_between_is_not_deleted(
    engine: Engine, clock: ManualClock, finished_again: bool
) -> None:
    await engine.declare(Queue(name="default", retention_ms=0, dead_retention_ms=0))
    await finish(engine, "a", "b", dead=True)
    jobs = await engine.finished(10)
    assert await engine.amend(JobFilter(ids=("a",)), Redrive(), limit=1) == 1
    if finished_again:
        leases = await engine.lease(LeaseRequest(ids=("a",)))
        await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    assert await delete_unchanged(engine, jobs) == 1
    job = await engine.get("a")
    assert job is not None
    assert job.state is (State.DONE if finished_again else State.WAITING)
    assert await engine.get("b") is None


async def test_a_full_batch_is_followed_at_once(engine: Engine, clock: ManualClock) -> None:
    await finish(engine, *[f"{i}" for i in range(25)])
    clock.advance(30 * DAY)
    listener = RecordingListener()
    pruner = Pruner(engine, tell=listener, batch=10)
    assert [await pruner.once() for _ in range(4)] == [0, 0, None, None]
    assert [each.deleted for each in listener.events if isinstance(each, Pruned)] == [10, 10, 5]


def test_the_lines_of_two_pruners_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.jsonl"
    real = os.write
    kept_out: list[bool] = []

    def write(file: int, data: bytes) -> int:
        with path.open("ab") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept_out.append(False)
            except BlockingIOError:
                kept_out.append(True)
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    Archive(path).write([Job(id="a", task="t", queue="default")])
    assert kept_out == [True]


async def test_big_jobs_are_read_a_few_at_a_time(clock: ManualClock) -> None:
    limits_used: list[int] = []

    class Counted(MemoryEngine):
        async def finished(self, limit: int) -> list[Job]:
            limits_used.append(limit)
            return await super().finished(limit)

    engine = Counted(clock=clock)
    await engine.open()
    await engine.declare(Queue(name="default", retention_ms=0))
    pruner = Pruner(engine)
    for number in range(5):
        await finish(engine, *(f"small-{number}-{at}" for at in range(100)))
    while await pruner.once() == 0:
        pass
    assert limits_used == [16, 32, 64, 128, 200, 200], "small ones in growing batches"
    big = b"x" * 1024 * 1024
    await engine.enqueue([NewJob(id=f"big-{at}", task="t", payload=big) for at in range(250)])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=250))
    await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    limits_used.clear()
    while await pruner.once() == 0:
        pass
    assert limits_used[:2] == [200, 16], "about 16 MiB at a time"
    assert (await engine.find(JobFilter(), limit=1)).jobs == ()
