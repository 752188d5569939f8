"""Children whose parents come back, or go away; and what people do to children."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.flow import Waits
from holdfast.core.model import (
    JobFilter,
    QueueView,
    Receipt,
    State,
    Status,
)
from holdfast.core.verdict import (
    Amendment,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Move,
    Outcome,
    Redrive,
    Retime,
)
from holdfast.testing.contract.depending import after, code, family, finish
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    end,
    jobs,
    lease_ids,
    lease_one,
    settle,
    work_off,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin

A, P = (JobFilter(ids=(id_,)) for id_ in "ap")


class Outliving:
    async def test_a_held_child_waits_for_another_life_of_its_parent(self, twin: Twin) -> None:
        await family(twin, parent_death="hold")
        for _ in range(2):
            await finish(twin, State.DEAD)
            assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
            await twin.amend(P, Redrive())
        assert await work_off(twin) == ["p", "a"]

    async def test_a_held_child_of_a_deleted_parent(self, twin: Twin) -> None:
        """It waits for whoever comes under that id."""
        await family(twin, parent_death="hold")
        await finish(twin, State.DEAD)
        await twin.amend(P, Delete())
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
        assert await lease_ids(twin) == []
        await twin.enqueue([a_job("p")])
        assert await work_off(twin) == ["p", "a"]

    async def test_a_redriven_parent_takes_nothing_back(self, twin: Twin) -> None:
        await family(twin)
        await finish(twin, State.DONE)
        assert await twin.amend(JobFilter(ids=("p",), states=(State.DONE,)), Redrive()) == 1
        assert await lease_ids(twin) == ["a", "p"]

    async def test_deleting_a_finished_parent_changes_nothing(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q")])
        await finish(twin, State.DONE)
        await twin.amend(P, Delete())
        assert await twin.waits("a") == Waits(parents=("q",), parent_count=1)
        assert await work_off(twin) == ["q", "a"]
        assert (await twin.the("a")).after == ("p", "q")

    async def test_a_redriven_orphan_waits_for_nobody(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q")])
        await finish(twin, State.DEAD)
        assert await twin.amend(replace(A, states=(State.CANCELLED,)), Redrive()) == 1
        assert await twin.waits("a") == Waits()
        assert await lease_ids(twin) == ["q", "a"]

    async def test_a_child_that_does_not_wait_is_let_be(self, twin: Twin) -> None:
        """And if it is redriven, it still waits for those who have not ended."""
        await twin.enqueue([*jobs("pqr"), after("a", "p", "q", "r")])
        await twin.amend(A, Cancel(by="ann"))
        before = await twin.the("a")
        await finish(twin, State.DONE, "p")
        await finish(twin, State.DEAD, "q")
        assert await twin.the("a") == before
        assert await twin.amend(replace(A, states=(State.CANCELLED,)), Redrive()) == 1
        assert await twin.waits("a") == Waits(parents=("r",), parent_count=1)
        assert await work_off(twin) == ["r", "a"]

    @pytest.mark.parametrize(
        "act",
        [Expedite(), Retime(delay_ms=0), Move(queue="q"), Edit(priority=9)],
        ids=lambda act: type(act).__name__,
    )
    async def test_no_act_lets_a_child_pass(self, twin: Twin, act: Amendment) -> None:
        await twin.declare(a_queue("q"))
        await family(twin)
        assert await twin.amend(A, act) == 1
        assert await lease_ids(twin, queues=("q", "default")) == ["p"]
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)

    async def test_a_buried_child_is_an_end_for_its_own(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "a", after_on="death")])
        await twin.amend(A, BuryWaiting())
        assert await lease_ids(twin) == ["p", "b"]

    async def test_an_expired_child(self, harness: Harness, twin: Twin) -> None:
        await family(twin, expires_ms=10)
        harness.clock.advance(10)
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin) == []

    async def test_a_deleted_child(self, twin: Twin) -> None:
        await family(twin)
        await twin.amend(A, Delete())
        await finish(twin, State.DONE)
        assert await lease_ids(twin) == []
        assert code(await twin.enqueue([a_job("a")])) == ["new"]
        assert await lease_ids(twin) == ["a"]

    async def test_parents_of_other_queues(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job("p", queue="q"), after("a", "p")])
        assert await work_off(twin, queues=("default", "q")) == ["p", "a"]

    async def test_a_dropped_queue_ends_its_jobs(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(
            [
                *jobs("pd", queue="q"),
                after("x", "p", queue="q"),
                after("a", "p"),
                after("b", "p", after_on="either"),
                after("c", "x"),
                after("e", "d"),
            ]
        )
        await finish(twin, State.DONE, "d")
        await lease_one(twin, queues=("q",))
        await twin.drop("q")
        assert [event.text for event in (await twin.the("a")).events] == ["parent p was deleted"]
        assert [event.text for event in (await twin.the("c")).events] == ["parent x was deleted"]
        assert await lease_ids(twin) == ["b", "e"]

    async def test_a_forced_delete_ends_a_leased_parent(self, twin: Twin) -> None:
        await family(twin, after_on="death")
        lease = await lease_one(twin)
        await twin.amend(P, Delete(force=True))
        assert await lease_ids(twin) == ["a"]
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    async def test_a_held_key_keeps_what_its_job_comes_after(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", key="k")])
        for policy in ("replace", "merge", "keep"):
            (receipt,) = await twin.enqueue(
                [after("x", "q", "nobody", key="k", key_policy=policy, after_on="death")]
            )
            assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.the("a")
        assert (job.after, job.after_on) == (("p",), "success")
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)

    async def test_a_child_in_a_group_holds_it_up(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p", group="g"), a_job("b", group="g")])
        assert await twin.waits("b") == Waits(group_head="a")
        assert await work_off(twin) == ["p", "a", "b"]

    async def test_an_orphan_lets_its_group_go_on(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p", group="g"), a_job("b", group="g")])
        await finish(twin, State.DEAD)
        assert await lease_ids(twin) == ["b"]

    async def test_a_parent_behind_its_child_in_a_group_never_comes(self, twin: Twin) -> None:
        """Both wait for each other, which can be seen and ended by a person."""
        await twin.enqueue([after("a", "p", group="g"), a_job("p", group="g")])
        assert await work_off(twin) == ["p", "a"]  # The parent comes in first.
        await twin.enqueue([a_job("x"), after("b", "x", group="g"), a_job("c", group="g")])
        assert await twin.waits("b") == Waits(parents=("x",), parent_count=1)
        assert await twin.waits("c") == Waits(group_head="b")

    async def test_what_waits_for_a_parent_is_blocked(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "p", delay_ms=90)])
        harness.clock.advance(5)
        assert await twin.queues() == [
            QueueView(queue=a_queue(), ready=1, blocked=2, oldest_age_ms=5)
        ]
        await end(twin, await lease_one(twin))
        assert await twin.queues() == [
            QueueView(queue=a_queue(), ready=1, delayed=1, done=1, oldest_age_ms=5)
        ]

    async def test_many_parents_and_many_children(self, twin: Twin) -> None:
        parents = [f"p{n:03}" for n in range(150)]
        children = [f"c{n:03}" for n in range(150)]
        await twin.enqueue([a_job(id_) for id_ in parents])
        await twin.enqueue([after(id_, *reversed(parents)) for id_ in children])
        waits = await twin.waits("c000")
        assert waits == Waits(parents=tuple(reversed(parents))[:100], parent_count=150)
        assert await work_off(twin, limit=40) == parents + children
