"""The lane cache is dropped as soon as it may be wrong."""

import random
from pathlib import Path

import apsw
import pytest

from holdfast.conformance.harness import Twin
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Delete, Expedite, Release, Retry, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine, transaction
from holdfast.engines.sqlite.lease import LeaseBatch
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine

STEPS = 250
PER_TENANT = Limit(name="per", key="{tenant}", concurrency=6)
ONE_TASK = Limit(name="slow", task="slow", rate=Rate(count=20, per_ms=1_000, burst=4))
QUEUES = {
    "limits": Queue(name="default", limits=(PER_TENANT, ONE_TASK)),
    "some-plain": Queue(name="default", limits=(ONE_TASK,)),
    "shares": Queue(name="default", fairness="shares", limits=(PER_TENANT,), weights={"t1": 3}),
    "noisy": Queue(name="default", fairness="noisy"),
    "aging": Queue(name="default", fairness="noisy", aging_ms=50),
    "aging-shares": Queue(name="default", fairness="shares", aging_ms=50, limits=(PER_TENANT,)),
    "batches": Queue(name="default", fairness="shares", group_batch=3),
    "batches-of-limits": Queue(name="default", limits=(PER_TENANT, ONE_TASK), group_batch=3),
}
REQUEST = LeaseRequest(queues=("default",), limit=9, worker="w")


class History:
    """Random calls from a seed. Jobs are enqueued in large batches, so that lanes are long."""

    def __init__(self, twin: Twin, clock: ManualClock, dice: random.Random) -> None:
        self.twin = twin
        self.clock = clock
        self.dice = dice
        self.leases: list[Lease] = []
        self.count = 0

    async def step(self) -> None:
        kinds = (self.enqueue, self.lease, self.lease, self.settle, self.settle, self.amend)
        await self.dice.choice(kinds)()
        if self.dice.random() < 0.02:
            assert await self.twin.recount(100) == 0
        self.clock.advance(self.dice.choice((0, 0, 1, 7)))
        if self.dice.random() < 0.02:
            # Expired jobs may be held, and stay held if the clock is set back by less than that.
            back = (-20,) if not (await self.twin.reference.expired(1)).jobs else ()
            self.clock.jump(self.dice.choice((*back, 40)))

    async def enqueue(self) -> None:
        dice, first = self.dice, self.count
        self.count += dice.choice((1, 2, 30))
        await self.twin.enqueue(
            [
                NewJob(
                    id=f"j{n}",
                    task=dice.choice(("t", "t", "slow")),
                    tenant=f"t{dice.choice((0, 0, 0, 1, 2, 3))}",
                    group=dice.choice((None, None, None, "g", "h")),
                    priority=dice.choice((0, 0, 0, 1)),
                    delay_ms=dice.choice((0, 0, 0, 5)),
                    expires_ms=dice.choice((None, None, None, 30)),
                )
                for n in range(first, self.count)
            ]
        )

    async def lease(self) -> None:
        limit = self.dice.choice((1, 5, 40))
        tasks = self.dice.choice((None, None, frozenset({"t"})))
        request = LeaseRequest(queues=("default",), limit=limit, tasks=tasks, worker="w")
        self.leases += await self.twin.lease(request)

    async def settle(self) -> None:
        self.dice.shuffle(self.leases)
        ended = [self.leases.pop() for _ in range(min(len(self.leases), self.dice.choice((1, 9))))]
        verdicts = (Complete(), Complete(), Complete(), Retry(), Retry(delay_ms=3), Release())
        await self.twin.settle(
            [Settlement(lease=lease, verdict=self.dice.choice(verdicts)) for lease in ended]
        )

    async def amend(self) -> None:
        ids = (f"j{self.dice.randrange(self.count + 1)}",)
        await self.twin.amend(JobFilter(ids=ids), self.dice.choice((Delete(), Expedite())))


@pytest.mark.parametrize("queue", QUEUES.values(), ids=QUEUES.keys())
async def test_alternating_writers_agree_with_the_reference(
    open_engine: OpenEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    # So small that lanes are also evicted.
    monkeypatch.setattr(transaction, "LANES_MAX", 5)
    monkeypatch.setattr(transaction, "JOBS_MAX", 4)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    engines = [await open_engine(), await open_engine()]
    reference = MemoryEngine(clock=clock)
    await reference.open()
    twin = Twin(engines[0], reference)
    await twin.declare(queue)
    history = History(twin, clock, dice)
    for step in range(STEPS):
        # Mostly the same engine for a while: otherwise nothing would be cached.
        if dice.random() < 0.1:
            twin.engine = dice.choice(engines)
        try:
            await history.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    await twin.agree()
    await reference.close()


async def lanes_known(engine: SQLiteEngine) -> int:
    return len(engine._database._writer.lane_cache.lanes)


async def test_a_rollback_clears_the_cache(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="default", limits=(Limit(name="all", concurrency=50),)))
    await engine.enqueue([NewJob(id=f"j{n:02}", task="t") for n in range(60)])
    first = [lease.id for lease in await engine.lease(REQUEST)]
    assert await lanes_known(engine) == 1

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle of it")

    with monkeypatch.context() as broken:
        broken.setattr(LeaseBatch, "take", fail)
        with pytest.raises(RuntimeError):
            await engine.lease(REQUEST)
    assert await lanes_known(engine) == 0
    second = [lease.id for lease in await engine.lease(REQUEST)]
    assert first + second == [f"j{n:02}" for n in range(18)]


async def test_writes_of_other_programs_are_seen(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="default", limits=(Limit(name="all", concurrency=50),)))
    await engine.enqueue([NewJob(id=f"j{n:02}", task="t") for n in range(60)])
    await engine.lease(REQUEST)
    foreign = apsw.Connection(str(path))
    foreign.execute("DELETE FROM hf_jobs WHERE id IN ('j10', 'j11')")
    foreign.close()
    leased = [lease.id for lease in await engine.lease(REQUEST)]
    assert leased == ["j09", *(f"j{n}" for n in range(12, 20))]
