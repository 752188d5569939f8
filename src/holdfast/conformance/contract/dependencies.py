"""Jobs after other jobs: when a child may start, and how the end of a parent affects it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import (
    ERROR,
    a_job,
    a_queue,
    case,
    end,
    jobs,
    lease_ids,
    lease_one,
    needs,
    reap,
    settle,
    work_off,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import (
    AfterOn,
    Event,
    EventKind,
    JobFilter,
    NewJob,
    ParentDeath,
    QueueView,
    Reason,
    Receipt,
    State,
    Status,
    Waits,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)

A, B, C, P = (JobFilter(ids=(id_,)) for id_ in "abcp")
AFTER_ON: tuple[AfterOn, ...] = ("success", "death", "either")
PARENT_DEATH: tuple[ParentDeath, ...] = ("cancel", "run", "hold")
ENDS = (None, State.DONE, State.DEAD, State.CANCELLED)


def code(receipts: Sequence[Receipt]) -> list[str]:
    return [receipt.code or receipt.status for receipt in receipts]


def after(id: str, *parents: str, **fields: object) -> NewJob:
    return a_job(id, after=parents, **fields)


async def family(twin: Twin, **fields: object) -> None:
    """A parent `p` and its child `a`."""
    await twin.enqueue([a_job("p"), after("a", "p", **fields)])


async def finish(twin: Twin, state: State, id: str = "p") -> None:
    """End the job in this state."""
    if state is State.CANCELLED:
        assert await twin.amend(JobFilter(ids=(id,)), Cancel()) == 1
        return
    lease = await lease_one(twin, queues=(), ids=(id,))
    await settle(twin, lease, Complete() if state is State.DONE else Bury())


@needs("dependencies")
class DependencyContract:
    """Parents that end in every way."""

    @needs("inspect", "priority")
    async def test_law_17_a_child_starts_when_its_parents_are_done(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q", priority=100)])
        p, q = [await lease_one(twin) for _ in range(2)]
        assert await lease_ids(twin) == []
        await end(twin, p)
        assert await lease_ids(twin) == []
        assert await lease_ids(twin, queues=(), ids=("a",)) == []
        await end(twin, q)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect")
    async def test_a_job_says_what_it_comes_after(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq")])
        new = after("a", "q", "p", "q", after_on="either", parent_death="hold")
        await twin.enqueue([new])
        job = await twin.require("a")
        assert (job.after, job.after_on, job.parent_death) == (("q", "p"), "either", "hold")
        assert await work_off(twin) == ["p", "q", "a"]
        assert (await twin.require("a")).after == ("q", "p")
        (found,) = await twin.find(A)
        assert found.after == ()

    async def test_a_lease_says_what_its_job_comes_after(self, twin: Twin) -> None:
        await family(twin)
        await end(twin, await lease_one(twin))
        lease = await lease_one(twin)
        assert lease.job.after == ("p",)

    async def test_law_02_a_child_is_not_early_either(self, harness: Harness, twin: Twin) -> None:
        await family(twin, delay_ms=50)
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin) == []
        harness.clock.advance(50)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect")
    @pytest.mark.parametrize("first", ["parent", "child"])
    async def test_every_end_and_what_a_child_makes_of_it(self, twin: Twin, first: str) -> None:
        """The same whether the parent ends before or after the child is enqueued."""
        for number, how in enumerate(product(AFTER_ON, PARENT_DEATH, ENDS)):
            with case(*how):
                await self._end_and_see(twin, f"p{number}", f"a{number}", (first, *how))

    async def _end_and_see(
        self,
        twin: Twin,
        parent: str,
        id: str,
        how: tuple[str, AfterOn, ParentDeath, State | None],
    ) -> None:
        first, after_on, parent_death, ended = how
        child = after(id, parent, after_on=after_on, parent_death=parent_death)
        await twin.enqueue([a_job(parent)])
        if first == "child":
            assert code(await twin.enqueue([child])) == [Status.NEW]
        if ended is None:
            await twin.amend(JobFilter(ids=(parent,)), Delete())
        else:
            await finish(twin, ended, parent)
        if first == "parent":
            expected = "unknown_parent" if ended is None else Status.NEW
            assert code(await twin.enqueue([child])) == [expected]
            if ended is None:
                return
        job = await twin.require(id)
        lived = ended is State.DONE
        if after_on == "either" or (after_on == "death") is not lived:
            fate = "runs"
        elif lived:
            fate = "cancel"
        else:
            fate = {"run": "runs"}.get(parent_death, parent_death)
        assert job.state is (State.CANCELLED if fate == "cancel" else State.WAITING)
        assert job.reason is (Reason.DEPENDENCY if fate == "cancel" else None)
        assert await lease_ids(twin) == ([id] if fate == "runs" else [])

    @needs("inspect")
    async def test_a_cancelled_child_tells_why(self, harness: Harness, twin: Twin) -> None:
        await family(twin)
        before = await twin.require("a")
        harness.clock.advance(5)
        await finish(twin, State.DEAD)
        now = harness.clock.wall_ms()
        event = Event(at=now, kind=EventKind.CANCELLED, text="parent p is dead")
        assert await twin.require("a") == replace(
            before,
            state=State.CANCELLED,
            finished_at=now,
            reason=Reason.DEPENDENCY,
            version=2,
            events=(event,),
        )

    @needs("inspect", "combinations")
    async def test_a_child_cancelled_at_the_door(self, twin: Twin) -> None:
        await twin.enqueue(jobs("opq"))
        await finish(twin, State.DEAD, "p")
        await finish(twin, State.DEAD, "q")
        assert code(await twin.enqueue([after("a", "o", "q", "p"), after("b", "a")])) == ["new"] * 2
        a, b = await twin.require("a"), await twin.require("b")
        assert (a.state, a.reason, a.version) == (State.CANCELLED, Reason.DEPENDENCY, 2)
        assert [event.text for event in a.events] == ["parent q is dead"]
        assert [event.text for event in b.events] == ["parent a is cancelled"]
        assert await work_off(twin) == ["o"]

    @needs("limits")
    async def test_a_child_cancelled_at_the_door_takes_no_room(self, twin: Twin) -> None:
        await twin.enqueue(jobs("p"))
        await finish(twin, State.DEAD, "p")
        await twin.declare(a_queue("default", max_depth=1))
        batch = [after("a", "p"), after("b", "a"), a_job("c"), a_job("d")]
        assert code(await twin.enqueue(batch)) == ["new", "new", "new", "queue_full"]

    @needs("inspect")
    async def test_cancelling_goes_down_the_line(self, twin: Twin) -> None:
        await twin.enqueue(
            [
                *jobs("px"),
                after("a", "p"),
                after("b", "a", "x"),
                after("c", "b", parent_death="run"),
                after("d", "b", parent_death="hold"),
                after("e", "b", after_on="death"),
                after("f", "d"),
            ]
        )
        await finish(twin, State.DEAD)
        states = {id_: (await twin.require(id_)).state for id_ in "abcdef"}
        assert states == {"a": "cancelled", "b": "cancelled"} | dict.fromkeys("cdef", "waiting")
        assert await twin.waits("d") == Waits(parents=("b",), parent_count=1)
        assert await work_off(twin) == ["x", "c", "e"]

    @needs("inspect")
    async def test_the_oldest_that_ended_is_the_one_that_is_named(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q"), after("b", "q", "p")])
        assert await twin.amend(JobFilter(ids=("q", "p")), Cancel()) == 2
        for id_ in "ab":
            (event,) = (await twin.require(id_)).events
            assert event.text == "parent p is cancelled"

    @needs("inspect")
    @pytest.mark.parametrize("act", [Cancel(), Delete()], ids=["cancel", "delete"])
    async def test_down_the_line_the_first_that_ended_is_named(
        self, twin: Twin, act: Amendment
    ) -> None:
        """Parents take effect in order of arrival, so children end in the order of their parents,
        not in that of their own arrival."""
        await twin.enqueue(
            [
                *jobs("pqr"),
                after("a", "r"),
                after("b", "q", "r"),
                after("c", "p"),
                after("d", "p", "q"),
                after("e", "a", "b", "c", "d"),
                after("f", "b", "a"),
                after("g", "a", "b", "d"),
                after("h", "c", "r"),
                after("i", "f", "h", "e"),
                after("j", "g", "f"),
            ]
        )
        assert await twin.amend(JobFilter(ids=("r", "q", "p")), act) == 3
        named = {}
        for id_ in "abcdefghij":
            (event,) = (await twin.require(id_)).events
            named[id_] = event.text.split()[1]
        assert named == dict(zip("abcdefghij", "rqppcbdrhg", strict=True))

    @needs("inspect", "groups")
    @pytest.mark.parametrize("verdict", [Complete(), Bury()], ids=["complete", "bury"])
    @pytest.mark.parametrize("group", [None, "g"])
    async def test_of_parents_settled_together_the_oldest_is_named(
        self, twin: Twin, verdict: Verdict, group: str | None
    ) -> None:
        parents = [a_job("p", group=group), a_job("q")]
        after_on = "death" if isinstance(verdict, Complete) else "success"
        await twin.enqueue([*parents, after("a", "q", "p", after_on=after_on)])
        p, q = [await lease_one(twin) for _ in range(2)]
        await twin.settle([Settlement(lease=lease, verdict=verdict) for lease in (q, p)])
        (event,) = (await twin.require("a")).events
        assert event.text.split()[:2] == ["parent", "p"]

    @needs("inspect")
    async def test_parents_and_children_in_one_act(self, twin: Twin) -> None:
        """The amendment applies to all jobs before their children are considered."""
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "a"), after("c", "p")])
        assert await twin.amend(JobFilter(ids=("p", "a")), Cancel(by="ann")) == 2
        a, b = await twin.require("a"), await twin.require("b")
        assert (a.reason, [event.by for event in a.events]) == (None, ["ann"])
        assert (b.reason, b.state) == (Reason.DEPENDENCY, State.CANCELLED)
        assert [event.text for event in b.events] == ["parent a is cancelled"]

    @needs("inspect")
    async def test_a_deleted_family(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "a"), after("c", "b")])
        assert await twin.amend(JobFilter(ids=("p", "a")), Delete()) == 2
        assert [event.text for event in (await twin.require("b")).events] == [
            "parent a was deleted"
        ]
        assert [event.text for event in (await twin.require("c")).events] == [
            "parent b is cancelled"
        ]

    @needs("inspect", "refunds")
    async def test_a_retry_is_no_end(self, harness: Harness, twin: Twin) -> None:
        await family(twin)
        for verdict in (Retry(), Release(), Retry(5, ERROR)):
            await settle(twin, await lease_one(twin), verdict)
            assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
        harness.clock.advance(5)
        assert await work_off(twin) == ["p", "a"]

    @needs("inspect", "ordered")
    async def test_a_parent_that_goes_on_elsewhere_has_not_ended(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        await twin.enqueue([a_job("r"), after("b", "r")])
        await settle(twin, await lease_one(twin), Forward("grave"))
        await twin.amend(JobFilter(ids=("r",)), Move(queue="q"))
        assert await lease_ids(twin) == []
        assert await work_off(twin, queues=("grave", "q")) == ["r"]
        assert await lease_ids(twin) == ["b"]

    @needs("inspect", "dead_leases")
    async def test_a_parent_in_a_dead_queue_is_dead(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        parent = a_job("p", queue="q")
        await twin.enqueue([parent, after("a", "p"), after("b", "p", after_on="death")])
        await twin.enqueue([after("c", "p", parent_death="hold")])
        await settle(twin, await lease_one(twin, queues=("q",)), Bury())
        assert (await twin.require("a")).state is State.CANCELLED
        assert await lease_ids(twin) == ["b"]
        lease = await lease_one(twin, queues=("grave",), dead=True)
        # It has ended, also while its dead letter is handled.
        await twin.enqueue([after("d", "p"), after("e", "p", after_on="death")])
        assert (await twin.require("d")).state is State.CANCELLED
        assert await lease_ids(twin) == ["e"]
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED
        assert await twin.waits("c") == Waits(parents=("p",), parent_count=1)

    @needs("dead_leases", "keys", "ordered")
    async def test_a_parent_whose_dead_letter_is_leased_has_ended(self, twin: Twin) -> None:
        """Also for a batch whose keys lock other jobs."""
        await twin.enqueue([a_job("p")])
        await settle(twin, await lease_one(twin), Bury())
        await lease_one(twin, dead=True)
        await twin.enqueue([a_job("k", key="x")])
        await twin.enqueue([a_job("l", key="x"), after("e", "p", after_on="death")])
        assert await lease_ids(twin) == ["k", "e"]

    @needs("inspect", "fencing")
    @pytest.mark.parametrize("verdict", [Complete(), Bury()], ids=["complete", "bury"])
    async def test_law_05_a_late_settle_ends_a_parent(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        await family(twin, after_on="either")
        late = await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        assert (await twin.require("p")).state is State.WAITING
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
        assert await settle(twin, late, verdict) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a"]

    @needs("fencing")
    async def test_law_08_a_repeated_settle_of_a_parent(self, twin: Twin) -> None:
        await family(twin)
        lease = await lease_one(twin)
        for _ in range(2):
            assert await settle(twin, lease, Complete()) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a"]

    async def test_a_reaped_parent_that_dies(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await family(twin, after_on="death")
        await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        assert await lease_ids(twin) == ["a"]

    @needs("inspect")
    async def test_an_expired_parent_ends_when_it_is_buried(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("p", expires_ms=10), after("a", "p")])
        harness.clock.advance(10)
        assert await lease_ids(twin) == []
        await twin.amend(JobFilter(expired=True), BuryWaiting(reason=Reason.EXPIRED))
        assert (await twin.require("a")).reason is Reason.DEPENDENCY


CHILD, PARENT = (JobFilter(ids=(id_,)) for id_ in "ap")


@needs("dependencies")
class ParentChangeContract:
    """Parents that come back or disappear, and amended children."""

    @needs("inspect")
    async def test_a_held_child_waits_for_another_life_of_its_parent(self, twin: Twin) -> None:
        await family(twin, parent_death="hold")
        for _ in range(2):
            await finish(twin, State.DEAD)
            assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
            await twin.amend(PARENT, Redrive())
        assert await work_off(twin) == ["p", "a"]

    @needs("inspect")
    async def test_a_held_child_of_a_deleted_parent(self, twin: Twin) -> None:
        """It waits for the next job with that id."""
        await family(twin, parent_death="hold")
        await finish(twin, State.DEAD)
        await twin.amend(PARENT, Delete())
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)
        assert await lease_ids(twin) == []
        await twin.enqueue([a_job("p")])
        assert await work_off(twin) == ["p", "a"]

    @needs("inspect")
    async def test_a_redriven_parent_takes_nothing_back(self, twin: Twin) -> None:
        await family(twin)
        await finish(twin, State.DONE)
        assert await twin.amend(JobFilter(ids=("p",), states=(State.DONE,)), Redrive()) == 1
        assert await lease_ids(twin) == ["a", "p"]

    @needs("inspect")
    async def test_deleting_a_finished_parent_changes_nothing(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q")])
        await finish(twin, State.DONE)
        await twin.amend(PARENT, Delete())
        assert await twin.waits("a") == Waits(parents=("q",), parent_count=1)
        assert await work_off(twin) == ["q", "a"]
        assert (await twin.require("a")).after == ("p", "q")

    @needs("inspect")
    async def test_a_redriven_orphan_waits_for_no_parent(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", "q")])
        await finish(twin, State.DEAD)
        assert await twin.amend(replace(CHILD, states=(State.CANCELLED,)), Redrive()) == 1
        assert await twin.waits("a") == Waits()
        assert await lease_ids(twin) == ["q", "a"]

    @needs("inspect")
    async def test_a_child_that_does_not_wait_is_let_be(self, twin: Twin) -> None:
        """If it is redriven, it still waits for the parents that have not ended."""
        await twin.enqueue([*jobs("pqr"), after("a", "p", "q", "r")])
        await twin.amend(CHILD, Cancel(by="ann"))
        before = await twin.require("a")
        await finish(twin, State.DONE, "p")
        await finish(twin, State.DEAD, "q")
        assert await twin.require("a") == before
        assert await twin.amend(replace(CHILD, states=(State.CANCELLED,)), Redrive()) == 1
        assert await twin.waits("a") == Waits(parents=("r",), parent_count=1)
        assert await work_off(twin) == ["r", "a"]

    @needs("inspect", "priority")
    @pytest.mark.parametrize(
        "act",
        [Expedite(), Retime(delay_ms=0), Move(queue="q"), Edit(priority=9)],
        ids=lambda act: type(act).__name__,
    )
    async def test_no_act_lets_a_child_pass(self, twin: Twin, act: Amendment) -> None:
        await twin.declare(a_queue("q"))
        await family(twin)
        assert await twin.amend(CHILD, act) == 1
        assert await lease_ids(twin, queues=("q", "default")) == ["p"]
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)

    @needs("inspect")
    async def test_a_buried_child_is_an_end_for_its_own(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "a", after_on="death")])
        await twin.amend(CHILD, BuryWaiting())
        assert await lease_ids(twin) == ["p", "b"]

    async def test_an_expired_child(self, harness: Harness, twin: Twin) -> None:
        await family(twin, expires_ms=10)
        harness.clock.advance(10)
        assert [job.id for job in (await twin.expired()).jobs] == ["a"]
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin) == []

    @needs("inspect")
    async def test_a_deleted_child(self, twin: Twin) -> None:
        await family(twin)
        await twin.amend(CHILD, Delete())
        await finish(twin, State.DONE)
        assert await lease_ids(twin) == []
        assert code(await twin.enqueue([a_job("a")])) == ["new"]
        assert await lease_ids(twin) == ["a"]

    async def test_parents_of_other_queues(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([a_job("p", queue="q"), after("a", "p")])
        assert await work_off(twin, queues=("default", "q")) == ["p", "a"]

    @needs("inspect")
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
        assert [event.text for event in (await twin.require("a")).events] == [
            "parent p was deleted"
        ]
        assert [event.text for event in (await twin.require("c")).events] == [
            "parent x was deleted"
        ]
        assert await lease_ids(twin) == ["b", "e"]

    @needs("inspect")
    async def test_a_forced_delete_ends_a_leased_parent(self, twin: Twin) -> None:
        await family(twin, after_on="death")
        lease = await lease_one(twin)
        await twin.amend(PARENT, Delete(force=True))
        assert await lease_ids(twin) == ["a"]
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    @needs("inspect", "keys", "combinations")
    async def test_a_held_key_keeps_what_its_job_comes_after(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("pq"), after("a", "p", key="k")])
        for policy in ("replace", "merge", "keep"):
            (receipt,) = await twin.enqueue(
                [after("x", "q", "nobody", key="k", key_policy=policy, after_on="death")]
            )
            assert receipt == Receipt(id="a", status=Status.DUPLICATE)
        job = await twin.require("a")
        assert (job.after, job.after_on) == (("p",), "success")
        assert await twin.waits("a") == Waits(parents=("p",), parent_count=1)

    @needs("inspect", "groups")
    async def test_a_child_in_a_group_holds_it_up(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p", group="g"), a_job("b", group="g")])
        assert await twin.waits("b") == Waits(group_head="a")
        assert await work_off(twin) == ["p", "a", "b"]

    @needs("inspect", "groups")
    async def test_an_orphan_lets_its_group_go_on(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p"), after("a", "p", group="g"), a_job("b", group="g")])
        await finish(twin, State.DEAD)
        assert await lease_ids(twin) == ["b"]

    @needs("inspect", "groups")
    async def test_a_parent_behind_its_child_in_a_group_never_comes(self, twin: Twin) -> None:
        """Both wait for each other; an operator can see and end that."""
        await twin.enqueue([after("a", "p", group="g"), a_job("p", group="g")])
        assert await work_off(twin) == ["p", "a"]  # The parent comes in first.
        await twin.enqueue([a_job("x"), after("b", "x", group="g"), a_job("c", group="g")])
        assert await twin.waits("b") == Waits(parents=("x",), parent_count=1)
        assert await twin.waits("c") == Waits(group_head="b")

    @needs("exact_counts")
    async def test_a_job_that_waits_for_a_parent_is_blocked(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("p"), after("a", "p"), after("b", "p", delay_ms=90)])
        harness.clock.advance(5)
        assert await twin.queues() == [
            QueueView(queue=a_queue(), ready=1, blocked=2, oldest_age_ms=5)
        ]
        await end(twin, await lease_one(twin))
        assert await twin.queues() == [
            QueueView(queue=a_queue(), ready=1, delayed=1, done=1, oldest_age_ms=5)
        ]

    @needs("inspect", "combinations")
    async def test_many_parents_and_many_children(self, twin: Twin) -> None:
        parents = [f"p{n:03}" for n in range(110)]
        children = [f"c{n:03}" for n in range(70)]
        await twin.enqueue([a_job(id_) for id_ in parents])
        await twin.enqueue([after(id_, *reversed(parents)) for id_ in children])
        waits = await twin.waits("c000")
        assert waits == Waits(parents=tuple(reversed(parents))[:100], parent_count=110)
        assert await work_off(twin, limit=40) == parents + children
