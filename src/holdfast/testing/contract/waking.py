"""A lease that waits is woken when a slot, a place in a group or a child becomes free.

As in `waiting`, nothing here is timed.
"""

from __future__ import annotations

import pytest

from holdfast.core.model import JobFilter
from holdfast.core.verdict import Bury, Cancel, Complete, Delete, Forward, Move, Retry, Verdict
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    end,
    jobs,
    lease_one,
    settle,
)
from holdfast.testing.contract.waiting import ids_of, patient, settled
from holdfast.testing.harness import Harness

ONE = (a_limit(concurrency=1),)


class Waking:
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

    async def test_a_slot_that_a_forced_delete_frees(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue(limits=ONE))
        await engine.enqueue(jobs("ab"))
        await lease_one(engine)
        with patient(engine) as task:
            await settled(task)
            await engine.amend(JobFilter(ids=("a",)), Delete(force=True), limit=1)
            assert await ids_of(task) == ["b"]

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

    async def test_a_deleted_parent_ends_the_wait_of_a_child(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.declare(a_queue("q"))
        await engine.enqueue([a_job("p", queue="q"), a_job("a", after=("p",), after_on="either")])
        with patient(engine) as task:
            await settled(task)
            assert not task.done()
            await engine.amend(JobFilter(ids=("p",)), Delete(), limit=1)
            assert await ids_of(task) == ["a"]

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
