"""Long-polling: a lease that waits is given what comes, and never keeps what nobody took.

Nothing here is timed: the timeouts end a hang. How soon a waiting lease wakes is measured by the
benchmarks and by each engine's own tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.model import JobFilter, Lease, LeaseRequest
from holdfast.core.verdict import Bury, Redrive, Retry
from holdfast.engines.base import Engine
from holdfast.testing.contract.making import a_job, a_queue, from_default, jobs, lease_one, settle
from holdfast.testing.harness import Harness

PATIENCE_S = 30
WAIT_MS = 10 * PATIENCE_S * 1_000
"""Much longer, so that what a lease finds when its wait is over counts as not woken."""


@contextmanager
def patient(engine: Engine, **fields: Any) -> Iterator[asyncio.Task[list[Lease]]]:
    request = from_default(wait_ms=WAIT_MS, **fields)
    task = asyncio.create_task(engine.lease(request))
    try:
        yield task
    finally:
        task.cancel()


async def ids_of(task: asyncio.Task[list[Lease]]) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        return [lease.id for lease in await task]


async def settled(task: asyncio.Task[list[Lease]]) -> None:
    """Let the call begin, and very likely come to wait; every test is right without it, too."""
    await asyncio.wait({task}, timeout=0.05)


class Waiting:
    async def test_a_lease_that_need_not_wait_does_not(self, harness: Harness) -> None:
        await harness.engine.enqueue(jobs("ab"))
        with patient(harness.engine, limit=10) as task:
            assert await ids_of(task) == ["a", "b"]

    async def test_the_wait_ends_empty(self, harness: Harness) -> None:
        assert await harness.engine.lease(from_default(wait_ms=1)) == []

    async def test_a_new_job_ends_the_wait(self, harness: Harness) -> None:
        with patient(harness.engine) as task:
            await settled(task)
            assert not task.done()
            await harness.engine.enqueue(jobs("a"))
            assert await ids_of(task) == ["a"]

    async def test_only_a_job_that_fits_ends_the_wait(self, harness: Harness) -> None:
        await harness.engine.declare(a_queue("q"))
        with patient(harness.engine, tasks=frozenset({"wanted"})) as task:
            await settled(task)
            await harness.engine.enqueue([a_job("other"), a_job("q", queue="q", task="wanted")])
            await settled(task)
            assert not task.done()
            await harness.engine.enqueue([a_job("a", task="wanted")])
            assert await ids_of(task) == ["a"]

    async def test_a_retried_job_ends_the_wait(self, harness: Harness) -> None:
        await harness.engine.enqueue(jobs("a"))
        lease = await lease_one(harness.engine)
        with patient(harness.engine) as task:
            await settled(task)
            await settle(harness.engine, lease, Retry())
            assert await ids_of(task) == ["a"]

    async def test_a_redriven_job_ends_the_wait(self, harness: Harness) -> None:
        await harness.engine.enqueue(jobs("a"))
        await settle(harness.engine, await lease_one(harness.engine), Bury())
        with patient(harness.engine) as task:
            await settled(task)
            await harness.engine.amend(JobFilter(), Redrive(), limit=1)
            assert await ids_of(task) == ["a"]

    async def test_a_queue_that_goes_on_ends_the_wait(self, harness: Harness) -> None:
        await harness.engine.declare(a_queue(paused=True))
        await harness.engine.enqueue(jobs("a"))
        with patient(harness.engine) as task:
            await settled(task)
            assert not task.done()
            await harness.engine.declare(a_queue(paused=False))
            assert await ids_of(task) == ["a"]

    async def test_a_job_that_becomes_due_ends_the_wait(self, harness: Harness) -> None:
        await harness.engine.enqueue([a_job(delay_ms=1_000)])
        with patient(harness.engine) as task:
            await settled(task)
            assert not task.done()
            harness.clock.advance(1_000)
            assert await ids_of(task) == ["a"]

    async def test_waiting_for_an_id(self, harness: Harness) -> None:
        with patient(harness.engine, queues=(), ids=("b",)) as task:
            await settled(task)
            await harness.engine.enqueue(jobs("ab"))
            assert await ids_of(task) == ["b"]

    async def test_each_of_many_waiting_gets_one(self, harness: Harness) -> None:
        request = from_default(wait_ms=WAIT_MS)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(harness.engine.lease(request)) for _ in range(10)]
            await settled(tasks[0])
            await harness.engine.enqueue([a_job(f"j{n}") for n in range(10)])
        ids = sorted(lease.id for task in tasks for lease in task.result())
        assert ids == sorted(f"j{n}" for n in range(10))

    async def test_closing_ends_the_wait_empty(self, harness: Harness) -> None:
        with patient(harness.engine) as task:
            await settled(task)
            assert not task.done()
            await harness.engine.close()
            assert await ids_of(task) == []

    async def test_who_gave_up_waiting_takes_nothing_with_him(self, harness: Harness) -> None:
        with patient(harness.engine) as task:
            await settled(task)
        await asyncio.wait({task})
        assert task.cancelled()
        await harness.engine.enqueue(jobs("a"))
        request = LeaseRequest(queues=("default",))
        assert [lease.id for lease in await harness.engine.lease(request)] == ["a"]
