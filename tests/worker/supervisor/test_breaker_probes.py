"""After the cool-down one job of one worker probes; if that worker dies, another probes."""

import asyncio

import pytest

from holdfast.core.breaker import PROBE_MS
from holdfast.core.model import Failure
from holdfast.engines.base import Engine
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor import breaker_check
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.wire import AskedRetry
from tests.worker.breaker_worker import BAD, GOOD, SECOND, Worker, a_job, opened, record, state


async def test_one_worker_probes_with_one_job(engine: Engine, clock: ManualClock) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, one, two)
    one.jobs, two.jobs = [a_job(), a_job()], [a_job()]
    clock.advance(9 * SECOND)
    for worker in (one, two, one, two):
        await worker.breakers.sync()
    assert one.started == two.started == []
    clock.advance(SECOND)
    for worker in (two, one, two, one):
        await worker.breakers.sync()
    assert (len(one.started), len(two.started)) == (0, 1)
    assert await state(engine) == "half_open"
    two.breakers.record([EndedBatch([two.started[0]], GOOD)])
    await two.breakers.sync()
    await one.breakers.sync()
    assert await state(engine) == "closed"
    assert one.shut == two.shut == frozenset()


async def test_of_many_workers_one_probes_and_no_failure_is_lost(
    engine: Engine, clock: ManualClock
) -> None:
    workers = [Worker(engine, str(number)) for number in range(8)]
    await asyncio.gather(*(worker.breakers.sync() for worker in workers))
    for worker in workers[:3]:
        worker.saw(BAD)
    await asyncio.gather(*(worker.breakers.sync() for worker in workers))
    assert await state(engine) == "open"
    clock.advance(10 * SECOND)
    for worker in workers:
        worker.jobs = [a_job()]
    for _ in range(3):
        await asyncio.gather(*(worker.breakers.sync() for worker in workers))
    assert sum(len(worker.started) for worker in workers) == 1


async def test_a_failed_probe_opens_it_for_longer(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    for open_ms in (20_000, 40_000, 40_000):
        worker.jobs = [a_job()]
        known = await record(engine)
        assert known is not None
        clock.advance(known.open_ms)
        await worker.breakers.sync()
        worker.breakers.record([EndedBatch([worker.started.pop()], BAD)])
        await worker.breakers.sync()
        found = await record(engine)
        assert found is not None
        assert (str(found.state), found.open_ms) == ("open", open_ms)


async def test_an_inconclusive_probe_is_followed_by_another(
    engine: Engine, clock: ManualClock
) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.jobs = [a_job(), a_job()]
    clock.advance(10 * SECOND)
    await worker.breakers.sync()
    worker.breakers.record([EndedBatch([worker.started[0]], AskedRetry(Failure(), 1_000))])
    await worker.breakers.sync()
    assert (len(worker.started), await state(engine)) == (2, "half_open")


async def test_another_worker_probes_when_the_prober_dies(
    engine: Engine, clock: ManualClock
) -> None:
    dead, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, dead, other)
    dead.jobs, other.jobs = [a_job()], [a_job()]
    clock.advance(10 * SECOND)
    await dead.breakers.sync()
    # Ages are read by the clock of the engine and by that of this machine: nothing is exact.
    clock.advance(PROBE_MS - 10 * SECOND)
    await other.breakers.sync()
    assert other.started == []
    clock.advance(10 * SECOND)
    await other.breakers.sync()
    assert len(other.started) == 1
    dead.breakers.record([EndedBatch([dead.started[0]], BAD)])
    await dead.breakers.sync()
    assert await state(engine) == "half_open", "it is not the dead one's to decide any more"


async def test_a_long_probe_keeps_its_right(engine: Engine, clock: ManualClock) -> None:
    long, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, long, other)
    long.jobs, other.jobs = [a_job()], [a_job()]
    clock.advance(10 * SECOND)
    for _ in range(20):
        await long.breakers.sync()
        await other.breakers.sync()
        clock.advance(PROBE_MS // 2)
    assert (len(long.started), len(other.started)) == (1, 0)
    long.breakers.record([EndedBatch([long.started[0]], GOOD)])
    await long.breakers.sync()
    assert await state(engine) == "closed"


async def test_a_worker_without_a_job_leaves_the_probe_to_others(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not serve the queue of the jobs."""
    monkeypatch.setattr(breaker_check, "_HOLD_S", 0.0)
    without, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, without, other)
    clock.advance(10 * SECOND)
    await without.breakers.sync()
    other.jobs = [a_job()]
    clock.advance(PROBE_MS)
    await without.breakers.sync()
    await other.breakers.sync()
    assert len(other.started) == 1


async def test_a_worker_without_room_does_not_probe(engine: Engine, clock: ManualClock) -> None:
    full, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, full, other)
    full.has_room, other.jobs = False, [a_job()]
    clock.advance(10 * SECOND)
    await full.breakers.sync()
    await other.breakers.sync()
    assert len(other.started) == 1
