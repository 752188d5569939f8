"""The load behind scaling advice: read in bounded calls, and close to the truth."""

import msgspec
import pytest

from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Failure, LeaseRequest, NewJob, Queue, Reason, Record
from holdfast.core.scaling import Goal, Load
from holdfast.core.verdict import Bury, Complete, Settlement, Verdict
from holdfast.core.workers import KIND, WorkerRecord
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import UnknownQueue
from holdfast.ops.scaling import Scaling, read_scaling
from holdfast.testing.clock import ManualClock

GOAL = Goal(wait_ms=30_000)


class Store:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(clock=self.clock)

    async def run_jobs(
        self, count: int, *, apart_ms: int, run_ms: int, verdict: Verdict | None = None
    ) -> None:
        for number in range(count):
            new = NewJob(id=f"r{self.clock.wall_ms()}-{number}", task="t")
            await self.engine.enqueue([new])
            [lease] = await self.engine.lease(LeaseRequest(ids=(new.id,)))
            self.clock.advance(run_ms)
            ended = Settlement(lease=lease, verdict=verdict or Complete())
            await self.engine.settle([ended])
            self.clock.advance(apart_ms - run_ms)

    async def scaling(
        self, queue: str | None = "default", *, worker_slots: int | None = None
    ) -> Scaling:
        now = self.clock.wall_ms()
        [found] = await read_scaling(self.engine, queue, GOAL, now=now, worker_slots=worker_slots)
        return found

    async def load(self) -> Load:
        return (await self.scaling()).load

    async def worker(self, name: str, **fields: object) -> None:
        known: dict[str, object] = {"host": "h", "pid": 1, "started_at": 0, "id": name}
        record = WorkerRecord(name=name, **known | fields)  # type: ignore[arg-type]
        saved = Record(kind=KIND, key=name, value=msgspec.json.encode(record))
        await self.engine.save([saved])


@pytest.fixture
async def store() -> Store:
    store = Store()
    await store.engine.open()
    return store


async def test_rates_and_times_are_those_of_the_jobs(store: Store) -> None:
    await store.run_jobs(150, apart_ms=2_000, run_ms=1_500)
    load = await store.load()
    assert load.arrivals == pytest.approx(0.5, rel=0.02)
    assert (load.run_ms, load.attempts, load.failed) == (1_500, 1, 0)
    assert (load.waiting, load.leased, load.ended) == (0, 0, 100)
    assert (await store.scaling()).advice.slots == 1


async def test_few_jobs_count_over_the_whole_window(store: Store) -> None:
    """A few jobs in ten minutes are not a burst."""
    await store.run_jobs(6, apart_ms=1_000, run_ms=100)
    assert (await store.load()).arrivals == pytest.approx(0.01)
    store.clock.advance(3_600_000)
    load = await store.load()
    assert (load.arrivals, load.run_ms) == (0, 100)


async def test_a_backlog_that_arrived_at_once(store: Store) -> None:
    await store.run_jobs(20, apart_ms=3_000, run_ms=3_000)
    await store.engine.enqueue([NewJob(id=f"w{n}", task="t") for n in range(1000)])
    store.clock.advance(20_000)
    found = await store.scaling(worker_slots=10)
    assert (found.load.waiting, found.load.oldest_age_ms) == (1000, 20_000)
    # A thousand runs of 3 s in 15 s, and the same number that seem to arrive meanwhile.
    assert 150 < found.advice.slots < 450
    assert found.advice.workers == -(-found.advice.slots // 10)


async def test_failures_are_counted(store: Store) -> None:
    bury = Bury(Reason.ATTEMPTS, Failure(message="no"))
    await store.run_jobs(12, apart_ms=1_000, run_ms=100, verdict=bury)
    await store.engine.enqueue([NewJob(id=f"w{n}", task="t") for n in range(50)])
    found = await store.scaling()
    assert (found.load.failed, found.load.ended) == (12, 12)
    assert "failed" in found.advice.reason


async def test_workers_count_by_their_weights(store: Store) -> None:
    await store.worker("one", queues={"default": 1}, capacity=8)
    await store.worker("two", queues={"default": 1, "mail": 3}, capacity=8)
    await store.worker("other", queues={"mail": 1}, capacity=8)
    await store.worker("leaving", queues={"default": 1}, capacity=8, stopping=True)
    found = await store.scaling()
    assert (found.load.slots, found.load.workers) == (10, 2)
    assert found.goal.worker_slots == 8
    store.clock.advance(120_000)
    found = await store.scaling()
    assert (found.load.slots, found.load.workers, found.goal.worker_slots) == (0, 0, 16)


async def test_limits_and_pauses_bound_the_advice(store: Store) -> None:
    limits = (
        Limit(name="all", concurrency=5),
        Limit(name="each", key="{tenant}", concurrency=1),
        Limit(name="pace", rate=Rate(count=120, per_ms=60_000)),
    )
    await store.engine.declare(Queue(name="default", limits=limits, paused=True))
    load = await store.load()
    assert (load.slots_bound, load.rate_bound, load.paused) == (5, 2, True)


async def test_all_queues_or_one(store: Store) -> None:
    await store.engine.declare(Queue(name="mail"))
    now = store.clock.wall_ms()
    found = await read_scaling(store.engine, None, GOAL, now=now)
    assert [each.queue for each in found] == ["default", "mail"]
    with pytest.raises(UnknownQueue):
        await read_scaling(store.engine, "nope", GOAL, now=now)
