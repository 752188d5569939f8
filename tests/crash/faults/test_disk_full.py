"""A full disk: no job is enqueued, leased jobs still settle, and the engine recovers by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.conformance.faulty_disk import FaultyDisk
from holdfast.core.model import Lease, LeaseRequest, NewJob, Renewal, State
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite import files as engine_disk
from holdfast.errors import StorageFull
from tests.crash.faults.conftest import OpenEngine

JOBS = 200
MEGABYTE = 1024 * 1024


async def test_leased_jobs_settle_when_sqlite_finds_no_room(
    tmp_path: Path, disk: FaultyDisk, open_engine: OpenEngine
) -> None:
    engine = await open_engine(vfs=disk.name)
    leases = await lease_many(engine)
    disk.faults.limit_room(0, beside=tmp_path / "jobs.db-ballast")
    await fill(engine)
    await finish(engine, leases)
    disk.faults.mend()
    await enqueue(engine, "again")


async def test_a_refused_enqueue_leaves_nothing_behind(
    disk: FaultyDisk, open_engine: OpenEngine
) -> None:
    """Wherever the disk becomes full, the batch is stored as a whole or not at all."""
    engine = await open_engine(vfs=disk.name)
    refused = 0
    for number in range(60):
        disk.faults.limit_room(number * 1500)
        batch = [NewJob(id=f"{number}-{n}", task="noop", payload=bytes(3000)) for n in range(10)]
        try:
            await engine.enqueue(batch)
            expected: set[State | None] = {State.WAITING}
        except StorageFull:
            refused += 1
            expected = {None}
        disk.faults.mend()
        assert {await state_of(engine, job.id) for job in batch} == expected
    assert 0 < refused < 60


async def test_below_the_floor_no_job_is_enqueued(
    monkeypatch: pytest.MonkeyPatch, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    leases = await lease_many(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine_disk.Disk, "free_bytes", lambda _: engine_disk.FLOOR_BYTES - 1)
        with pytest.raises(StorageFull, match="reserved"):
            await enqueue(engine, "refused")
        await finish(engine, leases)
    assert await state_of(engine, "refused") is None
    await enqueue(engine, "again")


async def test_a_small_disk_that_is_really_full(
    small_disk: Path, fill_up: Callable[[int], None], open_engine: OpenEngine
) -> None:
    engine = await open_engine(small_disk / "jobs.db")
    leases = await lease_many(engine)
    fill_up(engine_disk.FLOOR_BYTES // 2)
    with pytest.raises(StorageFull, match="reserved"):
        await enqueue(engine, "refused")
    await finish(engine, leases[: JOBS // 2])
    fill_up(0)
    await finish(engine, leases[JOBS // 2 :])
    (small_disk / "filler").unlink()
    await enqueue(engine, "again")
    job = await engine.get("job-0")
    assert job is not None
    assert job.state is State.DONE


async def test_opening_and_settling_on_a_disk_that_is_full(
    small_disk: Path, fill_up: Callable[[int], None], open_engine: OpenEngine
) -> None:
    engine = await open_engine(small_disk / "jobs.db")
    leases = await lease_many(engine)
    await engine.close()
    fill_up(0)
    engine = await open_engine(small_disk / "jobs.db")
    await finish(engine, leases)


async def test_a_batch_that_would_fill_the_disk_is_refused(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    free_bytes = engine_disk.FLOOR_BYTES + 10 * MEGABYTE
    monkeypatch.setattr(engine_disk.Disk, "free_bytes", lambda _: free_bytes)
    batch = [NewJob(id=f"job-{n}", task="noop", payload=bytes(MEGABYTE)) for n in range(6)]
    before = engine._database.wal.pages
    with pytest.raises(StorageFull, match="reserved"):
        await engine.enqueue(batch)
    assert engine._database.wal.pages == before
    await engine.enqueue(batch[:4])


async def lease_many(engine: SQLiteEngine) -> list[Lease]:
    await engine.enqueue([NewJob(id=f"job-{n}", task="noop") for n in range(JOBS)])
    leases: list[Lease] = await engine.lease(LeaseRequest(queues=("default",), limit=JOBS))
    assert len(leases) == JOBS
    return leases


async def fill(engine: SQLiteEngine) -> None:
    for number in range(1000):
        try:
            await enqueue(engine, f"filler-{number}", size=100_000)
        except StorageFull:
            return
    raise AssertionError("the disk was never full")


async def finish(engine: SQLiteEngine, leases: list[Lease]) -> None:
    """One at a time, as workers do, and with a renewal before."""
    for lease in leases:
        (renewed,) = await engine.renew([Renewal(lease=lease)])
        assert renewed is not None
        outcomes = await engine.settle([Settlement(lease=renewed, verdict=Complete(b"fine"))])
        assert outcomes == [Outcome.SETTLED]


async def enqueue(engine: SQLiteEngine, id: str, *, size: int = 10) -> None:
    await engine.enqueue([NewJob(id=id, task="noop", payload=bytes(size))])


async def state_of(engine: SQLiteEngine, id: str) -> State | None:
    job = await engine.get(id)
    return None if job is None else job.state
