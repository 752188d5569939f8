"""Quotas while jobs are on their way to the store, and when they did not get there."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Receipt
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import QuotaExceeded
from holdfast.server.callers import ANYBODY
from holdfast.server.guarded import Guarded, Watch
from holdfast.server.quotas import WHOLE, Allowance, Quota, Quotas


class Held(MemoryEngine):
    """Takes jobs in only when it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.asked.set()
        await self.go.wait()
        return await super().enqueue(jobs)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def bounded(**bounds: Any) -> tuple[Held, Guarded, Clock]:
    engine, clock = Held(), Clock()
    await engine.open()
    quotas = Quotas(lambda: engine, clock=clock)
    await quotas.put(WHOLE, Quota(**bounds))
    return engine, Guarded(engine, ANYBODY, Watch(quotas=quotas)), clock


def jobs(name: str, count: int) -> list[NewJob]:
    return [NewJob(id=f"{name}{number}", task="t") for number in range(count)]


async def test_what_is_on_its_way_when_the_store_is_asked_counts() -> None:
    engine, guarded, clock = await bounded(depth=10)
    engine.go.clear()
    first = asyncio.create_task(guarded.enqueue(jobs("a", 8)))
    await engine.asked.wait()
    # Long enough that the store is asked again, which knows of none of them.
    clock.now += 60
    with pytest.raises(QuotaExceeded):
        await guarded.enqueue(jobs("b", 8))
    engine.go.set()
    await first
    clock.now += 60
    await guarded.enqueue(jobs("c", 2))
    with pytest.raises(QuotaExceeded):
        await guarded.enqueue(jobs("d", 1))
    assert sum(each.count for each in await engine.tally(JobFilter(), "state", limit=9)) == 10


async def test_who_leaves_on_the_way_holds_no_room_for_ever() -> None:
    engine, guarded, clock = await bounded(depth=10)
    engine.go.clear()
    left = asyncio.create_task(guarded.enqueue(jobs("a", 8)))
    await engine.asked.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    engine.go.set()
    clock.now += 60
    await guarded.enqueue(jobs("b", 10))


async def test_follow_ups_of_a_lease_that_was_lost_cost_nothing() -> None:
    _, guarded, clock = await bounded(rate=Allowance(3, 1_000))
    await guarded.enqueue(jobs("a", 1))
    [lease] = await guarded.lease(LeaseRequest(queues=("default",)))
    stolen = Settlement(
        lease=type(lease)(job=lease.job, token=lease.token + 1, lease_ms=lease.lease_ms),
        verdict=Complete(then=tuple(jobs("f", 1_000))),
    )
    assert await guarded.settle([stolen]) == [Outcome.LOST]
    await guarded.enqueue(jobs("b", 1))
    clock.now += 1
    await guarded.enqueue(jobs("c", 1))
