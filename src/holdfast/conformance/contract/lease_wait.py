"""Long polling: a waiting lease gets jobs as they become due, and keeps none if cancelled.

Nothing here is timed: timeouts only end a hang. Benchmarks and each engine's own tests measure how
soon a waiting lease wakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    end,
    from_default,
    jobs,
    lease_one,
    needs,
    settle,
)
from holdfast.conformance.harness import Harness
from holdfast.core.model import JobFilter, Lease
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Delete,
    Forward,
    Move,
    Redrive,
    Retry,
    Verdict,
)
from holdfast.engines.base import Engine

TIMEOUT_S = 30
WAIT_MS = 10 * TIMEOUT_S * 1_000
"""Much longer than the timeout of a test: a lease that is not woken fails it."""


@contextmanager
def patient(engine: Engine, **fields: Any) -> Iterator[asyncio.Task[list[Lease]]]:
    request = from_default(wait_ms=WAIT_MS, **fields)
    task = asyncio.create_task(engine.lease(request))
    try:
        yield task
    finally:
        task.cancel()


async def ids_of(task: asyncio.Task[list[Lease]]) -> list[str]:
    async with asyncio.timeout(TIMEOUT_S):
        return [lease.id for lease in await task]


async def settled(task: asyncio.Task[list[Lease]]) -> None:
    """Let the call begin and, most likely, start to wait. Tests of an engine that also polls, or
    that misses no change, are correct without it."""
    await asyncio.wait({task}, timeout=0.05)


class LeaseWaitContract:
    """Waiting leases."""

    @needs("ordered")
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

    @needs("inspect")
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

    @needs("inspect")
    async def test_waiting_for_an_id(self, harness: Harness) -> None:
        with patient(harness.engine, queues=(), ids=("b",)) as task:
            await settled(task)
            await harness.engine.enqueue(jobs("ab"))
            assert await ids_of(task) == ["b"]

    async def test_each_of_many_waiting_gets_one(self, harness: Harness) -> None:
        request = from_default(wait_ms=WAIT_MS)
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
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

    async def test_a_cancelled_wait_takes_no_job(self, harness: Harness) -> None:
        with patient(harness.engine) as task:
            await settled(task)
        await asyncio.wait({task})
        assert task.cancelled()
        await harness.engine.enqueue(jobs("a"))
        with patient(harness.engine) as again:
            assert await ids_of(again) == ["a"]


ONE = (a_limit(concurrency=1),)


class WakeContract:
    """A freed slot, group or child wakes a waiting lease."""

    @needs("limits")
    @pytest.mark.parametrize(
        "verdict",
        [Complete(), Bury(), Retry(1_000_000), Forward("other")],
        ids=lambda verdict: type(verdict).__name__,
    )
    async def test_a_free_slot_ends_the_wait(self, harness: Harness, verdict: Verdict) -> None:
        engine = harness.engine
        await engine.declare(a_queue("other"))
        await engine.declare(a_queue(limits=ONE))
        await engine.enqueue(jobs("ab"))
        lease = await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await settle(engine, lease, verdict)
            assert await ids_of(task) == ["b"]

    @needs("limits")
    async def test_a_slot_that_another_queue_frees(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=ONE))
        await engine.declare(a_queue("q", limits=ONE))
        await engine.enqueue([a_job("a", queue="q"), a_job("b")])
        lease = await lease_one(engine, queues=("q",))
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await end(engine, lease)
            assert await ids_of(task) == ["b"]

    @needs("limits")
    async def test_a_slot_that_a_drop_frees(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=ONE))
        await engine.declare(a_queue("q", limits=ONE))
        await engine.enqueue([a_job("a", queue="q"), a_job("b")])
        await lease_one(engine, queues=("q",))
        with patient(engine) as task:
            await settled(task)
            await engine.drop("q")
            assert await ids_of(task) == ["b"]

    @needs("inspect", "limits")
    async def test_a_slot_that_a_forced_delete_frees(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=ONE))
        await engine.enqueue(jobs("ab"))
        await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            await engine.amend(JobFilter(ids=("a",)), Delete(force=True), limit=1)
            assert await ids_of(task) == ["b"]

    @needs("limits")
    async def test_a_raised_limit_ends_the_wait(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=ONE))
        await engine.enqueue(jobs("ab"))
        await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await engine.declare(a_queue(limits=(a_limit(concurrency=2),)))
            assert await ids_of(task) == ["b"]

    @needs("rates")
    async def test_a_rate_that_lets_the_next_start_ends_the_wait(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=(a_limit(rate="1/500"),)))
        await engine.enqueue(jobs("ab"))
        await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            harness.clock.advance(500)
            assert await ids_of(task) == ["b"]

    @needs("groups")
    @pytest.mark.parametrize("verdict", [Complete(), Bury()], ids=["complete", "bury"])
    async def test_the_next_of_a_group_ends_the_wait(
        self, harness: Harness, verdict: Verdict
    ) -> None:
        engine = harness.engine
        await engine.enqueue(jobs("ab", group="g"))
        lease = await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await settle(engine, lease, verdict)
            assert await ids_of(task) == ["b"]

    @needs("inspect", "groups", "delay_ms_max")
    @pytest.mark.parametrize("act", [Cancel(), Delete(), Move(queue="q")], ids=str)
    async def test_a_head_that_a_person_takes_away_ends_the_wait(
        self, harness: Harness, act: Cancel | Delete | Move
    ) -> None:
        engine = harness.engine
        await engine.declare(a_queue("q"))
        await engine.enqueue([a_job("a", group="g", delay_ms=1_000_000), a_job("b", group="g")])
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await engine.amend(JobFilter(ids=("a",)), act, limit=1)
            assert await ids_of(task) == ["b"]

    @needs("dependencies")
    async def test_the_last_parent_ends_the_wait_of_a_child(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue("q"))
        await engine.enqueue([*jobs("pq", queue="q"), a_job("a", after=("p", "q"))])
        p, q = await lease_one(engine, queues=("q",)), await lease_one(engine, queues=("q",))
        with patient(engine) as task:
            await settled(task)
            await end(engine, p)
            await settled(task)
            assert not task.done()
            await end(engine, q)
            assert await ids_of(task) == ["a"]

    @needs("inspect", "dependencies")
    async def test_a_deleted_parent_ends_the_wait_of_a_child(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue("q"))
        await engine.enqueue([a_job("p", queue="q"), a_job("a", after=("p",), after_on="either")])
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await engine.amend(JobFilter(ids=("p",)), Delete(), limit=1)
            assert await ids_of(task) == ["a"]

    @needs("limits")
    async def test_each_free_slot_wakes_one_of_many(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=(a_limit(concurrency=3),)))
        await engine.enqueue(jobs("abcdef"))
        held = [await lease_one(engine) for _ in range(3)]
        with patient(engine) as one, patient(engine) as two, patient(engine) as three:
            tasks = (one, two, three)
            await settled(one)
            await end(engine, *held)
            ids = [id_ for task in tasks for id_ in await ids_of(task)]
            assert sorted(ids) == ["d", "e", "f"]
