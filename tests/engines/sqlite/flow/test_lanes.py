"""Jobs change between two steps of a relane: every job still ends in the lane that the new settings
demand."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Bury, Complete, Redrive, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite.flow import lanes
from holdfast.engines.sqlite.schema import encode_queue
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine

SHAPES = (
    Queue(name="q"),
    Queue(name="q", fairness="shares"),
    Queue(name="q", limits=(Limit(name="l", key="{tenant}", concurrency=2),)),
    Queue(name="q", fairness="noisy", limits=(Limit(name="l", key="{task}", concurrency=4),)),
)


STEPS = 6
"""With one job per step, more than a queue of three jobs needs."""

Act = Callable[[], Awaitable[object]]


class Between:
    """A queue whose last job changes between two steps."""

    def __init__(self, engine: SQLiteEngine, clock: ManualClock, queue: str) -> None:
        self.engine = engine
        self.clock = clock
        self.queue = queue

    async def add(self, name: str, **given: Any) -> None:
        new = NewJob(id=f"{self.queue}-{name}", task="t", tenant="a", queue=self.queue)
        await self.engine.enqueue([replace(new, **given)])

    async def take(self, name: str) -> Lease:
        (lease,) = await self.engine.lease(LeaseRequest(ids=(f"{self.queue}-{name}",)))
        return lease

    async def parent_ends(self) -> Act:
        await self.add("parent", queue="other")
        await self.add("last", after=(f"{self.queue}-parent",))
        lease = await self.take("parent")
        return partial(self.engine.settle, [Settlement(lease=lease, verdict=Complete())])

    async def head_ends(self) -> Act:
        await self.add("head", group="g")
        await self.add("last", group="g")
        lease = await self.take("head")
        return partial(self.engine.settle, [Settlement(lease=lease, verdict=Complete())])

    async def head_is_retried(self) -> Act:
        await self.add("head", group="g")
        await self.add("last", group="g")
        lease = await self.take("head")
        return partial(self.engine.settle, [Settlement(lease=lease, verdict=Retry())])

    async def old_head_comes_back(self) -> Act:
        await self.add("head", group="g")
        await self.add("last", group="g")
        lease = await self.take("head")
        await self.engine.settle([Settlement(lease=lease, verdict=Bury())])
        head = JobFilter(ids=(lease.id,))
        return partial(self.engine.amend, head, Redrive(), limit=1)

    async def clock_is_set_back(self) -> Act:
        await self.add("other", queue="other")
        await self.add("last", expires_ms=1_000, priority=1)
        await self.add("after", priority=1)
        self.clock.jump(2_000)
        (lease,) = await self.engine.lease(LeaseRequest(queues=(self.queue,)))
        assert lease.id == f"{self.queue}-after", "the last one was held as expired on the way"

        async def set_back() -> None:
            self.clock.jump(-2_000)
            await self.take("other")

        return set_back


@pytest.mark.parametrize(
    "prepare",
    [
        Between.parent_ends,
        Between.head_ends,
        Between.head_is_retried,
        Between.old_head_comes_back,
        Between.clock_is_set_back,
    ],
)
async def test_every_job_reaches_its_lane(
    open_engine: OpenEngine,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Between], Awaitable[Act]],
) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="other"))
    monkeypatch.setattr(lanes, "RELANE_STEP", 1)
    for case, (before, after) in enumerate(permutations(SHAPES, 2)):
        for steps in range(STEPS):
            at = Between(engine, clock, f"q{case}-{steps}")
            await engine.declare(replace(before, name=at.queue))
            await at.add("ready")
            act = await prepare(at)
            with monkeypatch.context() as killed:
                killed.setattr(engine, "_relane", lambda _queue: asyncio.sleep(0))
                await engine.declare(replace(after, name=at.queue))
            for _ in range(steps):
                await engine._write(partial(lanes.relane_step, queue=at.queue))
            await act()
            await finish(at)


async def finish(at: Between) -> None:
    """Lease and complete all jobs; the counts are right at any time."""
    engine, ended = at.engine, set()
    request = LeaseRequest(queues=(at.queue,), limit=9)
    while leases := await engine.lease(request):
        assert await engine.recount(100) == 0, at.queue
        await engine.settle([Settlement(lease=one, verdict=Complete()) for one in leases])
        ended |= {one.id for one in leases}
    assert ended >= {f"{at.queue}-ready", f"{at.queue}-last"}
    assert await engine.recount(100) == 0, at.queue
    await engine.drop(at.queue)


@pytest.mark.parametrize(("before", "after"), list(permutations(SHAPES, 2)))
async def test_a_recount_finds_jobs_in_the_wrong_lane(
    open_engine: OpenEngine, path: Path, before: Queue, after: Queue
) -> None:
    engine = await open_engine()
    await engine.declare(before)
    new = NewJob(id="j0", task="t", tenant="a", queue="q")
    await engine.enqueue([replace(new, id=f"j{n}", delay_ms=n % 2) for n in range(5)])
    await engine.enqueue([replace(new, id=f"g{n}", group="g") for n in range(2)])
    foreign = apsw.Connection(str(path))
    with foreign:
        foreign.execute(
            "UPDATE hf_queues SET settings = ? WHERE name = 'q'", (encode_queue(after),)
        )
        foreign.execute("UPDATE hf_meta SET revision = revision + 1")
    foreign.close()
    repaired = 0
    for _ in range(10):
        repaired += await engine.recount(2)
    assert repaired == 7
    assert await engine.recount(100) == 0
