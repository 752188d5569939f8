"""A disk that hangs, and a reader that never ends: leases stay alive and the event loop runs."""

import asyncio
from pathlib import Path

import apsw
import pytest

from holdfast.conformance.faulty_disk import FaultyDisk
from holdfast.core.model import LeaseRequest, NewJob, Queue, Renewal
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import database
from holdfast.engines.sqlite.connection import WAL_PAGES
from holdfast.errors import EngineUnavailable
from holdfast.testing.clock import ManualClock
from tests.crash.faults.conftest import OpenEngine

LEASE_MS = 6_000
STALL_MS = 2_000


async def test_a_lease_survives_a_stall_in_sync(
    disk: FaultyDisk, clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine(vfs=disk.name)
    await engine.declare(Queue(name="work", lease_ms=LEASE_MS))
    await engine.enqueue([NewJob(id="held", task="noop", queue="work")])
    (lease,) = await engine.lease(LeaseRequest(queues=("work",)))
    clock.advance(LEASE_MS // 3)

    disk.faults.stall()
    enqueued = asyncio.create_task(engine.enqueue([NewJob(id="slow", task="noop")]))
    await asyncio.to_thread(disk.faults.stalled.wait)
    renewed = asyncio.create_task(engine.renew([Renewal(lease=lease)]))
    # Other coroutines get their turns while the disk hangs: else this loop would never end.
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not enqueued.done()
    assert not renewed.done()
    clock.advance(STALL_MS)
    disk.faults.mend()

    await enqueued
    (held,) = await renewed
    assert held is not None
    assert not (await engine.overdue(10)).leases
    assert await engine.settle([Settlement(lease=held, verdict=Complete())]) == [Outcome.SETTLED]


async def test_reads_continue_during_a_stall(disk: FaultyDisk, open_engine: OpenEngine) -> None:
    engine = await open_engine(vfs=disk.name)
    await engine.enqueue([NewJob(id="there", task="noop")])
    disk.faults.stall()
    enqueued = asyncio.create_task(engine.enqueue([NewJob(id="slow", task="noop")]))
    await asyncio.to_thread(disk.faults.stalled.wait)
    job = await engine.get("there")
    assert job is not None
    assert not enqueued.done()
    disk.faults.mend()
    await enqueued


async def test_renewals_go_before_calls_that_can_wait(
    disk: FaultyDisk, open_engine: OpenEngine
) -> None:
    engine = await open_engine(vfs=disk.name)
    await engine.enqueue([NewJob(id="held", task="noop")])
    (lease,) = await engine.lease(LeaseRequest(queues=("default",)))
    order: list[str] = []
    disk.faults.stall()
    first = asyncio.create_task(engine.enqueue([NewJob(id="first", task="noop")]))
    await asyncio.to_thread(disk.faults.stalled.wait)
    waiting = [
        asyncio.create_task(engine.enqueue([NewJob(id=f"waiting-{n}", task="noop")]))
        for n in range(20)
    ]
    await asyncio.sleep(0)
    renewal = asyncio.create_task(engine.renew([Renewal(lease=lease)]))
    for task in (*waiting, renewal):
        task.add_done_callback(lambda done: order.append("renewal" if done is renewal else "job"))
    await asyncio.sleep(0)
    disk.faults.mend()
    await asyncio.gather(first, renewal, *waiting)
    assert order[0] == "renewal"


async def test_a_call_that_waits_too_long_for_its_turn_never_happens(
    disk: FaultyDisk, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine(vfs=disk.name)
    disk.faults.stall()
    begun = asyncio.create_task(engine.enqueue([NewJob(id="begun", task="noop")]))
    await asyncio.to_thread(disk.faults.stalled.wait)
    monkeypatch.setattr(database, "START_TIMEOUT_S", 0.01)
    with pytest.raises(EngineUnavailable, match="nothing was changed"):
        await engine.enqueue([NewJob(id="withdrawn", task="noop")])
    monkeypatch.undo()
    disk.faults.mend()
    await begun
    await engine.enqueue([NewJob(id="later", task="noop")])
    assert await engine.get("withdrawn") is None
    assert await engine.get("begun") is not None


async def test_writers_continue_beside_a_long_reader(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="first", task="noop")])
    log = tmp_path / "jobs.db-wal"
    reader = apsw.Connection(str(tmp_path / "jobs.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    reader.execute("BEGIN").fetchall()
    assert reader.execute("SELECT count(*) FROM hf_jobs").get == 1

    bound = WAL_PAGES * reader.pragma("page_size")
    number = 0
    while log.stat().st_size < 3 * bound:
        number += 1
        batch = [NewJob(id=f"{number}-{n}", task="noop", payload=bytes(4000)) for n in range(100)]
        await engine.enqueue(batch)
        assert number < 1000
    assert reader.execute("SELECT count(*) FROM hf_jobs").get == 1

    reader.execute("COMMIT")
    reader.close()
    for more in range(50):
        await engine.enqueue([NewJob(id=f"after-{more}", task="noop", payload=bytes(40_000))])
    assert log.stat().st_size <= bound + 2**20
