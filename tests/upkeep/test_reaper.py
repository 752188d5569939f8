"""The reaper: overdue leases and expired jobs; the engine decides every race."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    NewJob,
    Overrides,
    Queue,
    Reason,
    Renewal,
    State,
)
from holdfast.core.verdict import Cancel, Complete, Edit, Outcome, Settlement
from holdfast.engines.base import Engine, Overdue
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observed import Observed
from holdfast.events import EngineCalled, Listeners, ProcessEvent, Reaped
from holdfast.ops import workers
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper, Upkeep
from tests.upkeep.faulty_engine import RecordingListener

SECOND = 1_000


async def state_of(engine: Engine, id: str) -> State:
    job = await engine.get(id)
    assert job is not None
    return job.state


async def test_an_overdue_job_is_retried_with_a_reason(engine: Engine, clock: ManualClock) -> None:
    listener = RecordingListener()
    reaper = Reaper(engine, tell=listener)
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",), worker="w1"))
    clock.advance(29 * SECOND)
    assert await reaper.once() == SECOND, "the next deadline sets the timer"
    assert await state_of(engine, "a") is State.LEASED
    clock.advance(SECOND)
    assert await reaper.once() is None
    job = await engine.get("a")
    assert job is not None
    assert (job.state, job.attempt) == (State.WAITING, 1)
    [failure] = job.failures
    assert failure.failure is not None
    assert "w1 did not renew its lease in attempt 1" in failure.failure.message
    assert listener.events == [Reaped(overdue=1, expired=0)]


async def test_the_last_attempt_is_buried(engine: Engine, clock: ManualClock) -> None:
    once = Overrides(max_attempts=1)
    await engine.enqueue([NewJob(id="a", task="t", overrides=once)])
    await engine.lease(LeaseRequest(queues=("default",)))
    clock.advance(30 * SECOND)
    await Reaper(engine).once()
    job = await engine.get("a")
    assert job is not None
    assert (job.state, job.reason) == (State.DEAD, Reason.ATTEMPTS)


async def test_a_cancel_request_ends_with_the_lease(engine: Engine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",)))
    await engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    clock.advance(30 * SECOND)
    await Reaper(engine).once()
    assert await state_of(engine, "a") is State.CANCELLED


async def test_expired_jobs_are_buried_whatever_their_attempts(
    engine: Engine, clock: ManualClock
) -> None:
    listener = RecordingListener()
    reaper = Reaper(engine, tell=listener)
    await engine.enqueue(
        [NewJob(id=f"{i}", task="t", expires_ms=60 * SECOND) for i in range(5)]
        + [NewJob(id="lasting", task="t")]
    )
    await engine.lease(LeaseRequest(queues=("default",), limit=2, lease_ms=SECOND))
    clock.advance(SECOND)
    assert await reaper.once() == 59 * SECOND
    clock.advance(59 * SECOND)
    assert await reaper.once() is None
    for id_ in "01234":
        job = await engine.get(id_)
        assert job is not None
        assert (job.state, job.reason) == (State.DEAD, Reason.EXPIRED)
    assert await state_of(engine, "lasting") is State.WAITING
    assert listener.events == [Reaped(overdue=2, expired=0), Reaped(overdue=0, expired=5)]


async def test_an_expiry_that_was_put_off_in_between_is_respected(clock: ManualClock) -> None:
    class Meddling(MemoryEngine):
        async def amend(self, wanted: JobFilter, *rest: object, **more: object) -> int:
            if wanted.expired:
                put_off = Edit(expires_ms=60 * SECOND)
                await super().amend(JobFilter(ids=("a",)), put_off, limit=1)
            return await super().amend(wanted, *rest, **more)  # type: ignore[arg-type]

    engine = Meddling(clock=clock)
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t", expires_ms=SECOND)])
    clock.advance(SECOND)
    assert await Reaper(engine).once() is None, "no hot loop when others were first"
    assert await state_of(engine, "a") is State.WAITING


async def test_a_worker_that_settles_in_between_wins(clock: ManualClock) -> None:
    class Late(MemoryEngine):
        async def overdue(self, limit: int) -> Overdue:
            found = await super().overdue(limit)
            for lease in found.leases:
                await super().settle([Settlement(lease=lease, verdict=Complete(b"1"))])
            return found

    engine = Late(clock=clock)
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",)))
    clock.advance(30 * SECOND)
    assert await Reaper(engine, batch=1).once() is None, "no hot loop over a full page either"
    job = await engine.get("a")
    assert job is not None
    assert (job.state, job.result) == (State.DONE, b"1")


async def test_a_late_settle_wins_until_the_job_is_leased_anew(
    engine: Engine, clock: ManualClock
) -> None:
    await engine.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t")])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=2))
    clock.advance(30 * SECOND)
    await Reaper(engine).once()
    again = await engine.lease(LeaseRequest(ids=(leases[1].id,)))
    assert len(again) == 1
    late = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(late) == [Outcome.SETTLED, Outcome.LOST]


async def test_a_dropped_queue_takes_its_jobs_along(clock: ManualClock) -> None:
    class Vanishing(MemoryEngine):
        async def overdue(self, limit: int) -> Overdue:
            found = await super().overdue(limit)
            await self.drop("gone")
            return found

    engine = Vanishing(clock=clock)
    await engine.open()
    await engine.declare(Queue(name="gone"))
    await engine.enqueue([NewJob(id="a", task="t", queue="gone"), NewJob(id="b", task="t")])
    await engine.lease(LeaseRequest(queues=("gone", "default"), limit=2))
    clock.advance(30 * SECOND)
    await Reaper(engine).once()
    assert await engine.get("a") is None
    assert await state_of(engine, "b") is State.WAITING


async def test_full_batches_are_paged_past(engine: Engine, clock: ManualClock) -> None:
    count = 250
    jobs = [NewJob(id=f"{i}", task="t", expires_ms=90 * SECOND) for i in range(2 * count)]
    await engine.enqueue(jobs)
    await engine.lease(LeaseRequest(queues=("default",), limit=count))
    listener = RecordingListener()
    reaper = Reaper(engine, tell=listener, batch=100)
    clock.advance(30 * SECOND)
    steps = 1
    while (next_ms := await reaper.once()) == 0:
        steps += 1
    assert (steps, next_ms) == (3, 60 * SECOND)
    clock.advance(60 * SECOND)
    while await reaper.once() == 0:
        pass
    told = [event for event in listener.events if isinstance(event, Reaped)]
    assert sum(event.overdue for event in told) == count
    assert sum(event.expired for event in told) == 2 * count


async def test_two_reapers_charge_a_job_once(engine: Engine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id=f"{i}", task="t") for i in range(50)])
    await engine.lease(LeaseRequest(queues=("default",), limit=50))
    clock.advance(30 * SECOND)
    page = (await engine.overdue(100)).leases
    assert await workers._end_leases(engine, page) == 50
    await workers._end_leases(engine, page)
    for i in range(50):
        job = await engine.get(f"{i}")
        assert job is not None
        assert (job.state, job.attempt, len(job.failures)) == (State.WAITING, 1, 1)


class Events:
    """A listener that can be awaited."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[ProcessEvent] = asyncio.Queue()

    def __call__(self, event: ProcessEvent) -> None:
        self._events.put_nowait(event)

    async def next(self, wanted: Callable[[ProcessEvent], bool]) -> None:
        async with asyncio.timeout(60):
            while not wanted(await self._events.get()):
                pass


def looked(event: ProcessEvent) -> bool:
    return isinstance(event, EngineCalled) and event.verb == "expired"


@pytest.mark.parametrize("by", ["lease", "renew"])
async def test_a_short_lease_of_this_process_does_not_wait_for_the_poll(
    engine: Engine, clock: ManualClock, by: str
) -> None:
    events = Events()
    listeners = Listeners(events)
    observed = Observed(engine, listeners)
    upkeep = Upkeep(observed, tell=listeners, wall_ms=clock.wall_ms)
    # A poll would come too late for this test.
    [reaper] = [each for each in upkeep.services if isinstance(each, Reaper)]
    reaper.sleep_ms_max = 3600 * SECOND
    stop = asyncio.Event()
    running = asyncio.create_task(upkeep.run(stop))
    await events.next(looked)
    await engine.enqueue([NewJob(id="a", task="t")])
    span_ms = 20
    if by == "lease":
        await observed.lease(LeaseRequest(queues=("default",), lease_ms=span_ms))
    else:
        # Another process granted it.
        [lease] = await engine.lease(LeaseRequest(queues=("default",)))
        await observed.renew([Renewal(lease=lease, lease_ms=span_ms)])
    clock.advance(span_ms)
    await events.next(lambda event: event == Reaped(overdue=1, expired=0))
    stop.set()
    await running
    assert await state_of(engine, "a") is State.WAITING


async def test_a_lease_longer_than_the_poll_sets_no_alarm(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaper = Reaper(engine)
    alarms: list[int] = []
    monkeypatch.setattr(reaper.alarm, "set", alarms.append)
    observed = Observed(engine, reaper.on_event)
    await observed.enqueue([NewJob(id=id_, task="t") for id_ in "ab"])
    assert await observed.lease(LeaseRequest(queues=("none",))) == []
    leases = await observed.lease(LeaseRequest(queues=("default",), limit=2, lease_ms=5 * SECOND))
    assert alarms == []
    await engine.settle([Settlement(lease=leases[0], verdict=Complete())])
    renewals = [Renewal(lease=lease, lease_ms=SECOND) for lease in leases]
    assert (await observed.renew(renewals))[0] is None
    assert alarms == [SECOND + 1]


class Miscounting(MemoryEngine):
    """Returns planned numbers of repaired counts."""

    def __init__(self, mended: list[int]) -> None:
        super().__init__()
        self.mended = mended

    async def recount(self, limit: int) -> int:
        return min(limit, self.mended.pop(0))


async def test_counts_are_compared_at_the_start_and_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("holdfast.upkeep.reaper.time.monotonic", lambda: now)
    engine = Miscounting([2, 5_000, 0, 0])
    await engine.open()
    reaper = Reaper(engine)
    for _ in range(3):
        await reaper.once()
    assert engine.mended == [5_000, 0, 0]
    assert "2 wrong counters" in caplog.text
    now += 60
    # There may be more than one call can repair.
    for _ in range(3):
        await reaper.once()
    assert engine.mended == [0]
