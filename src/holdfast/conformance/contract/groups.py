"""Strict groups: one batch in flight, in order of arrival."""

from __future__ import annotations

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    end,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    needs,
    reap,
    settle,
    work_off,
)
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import JobFilter, QueueView, State, Status, Waits
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
)

A, B, C = (JobFilter(ids=(id_,)) for id_ in "abc")
LONG_MS = 100_000


@needs("groups")
class GroupContract:
    """Order and exclusion in strict groups."""

    @needs("priority")
    async def test_law_15_a_group_goes_in_the_order_of_arrival(self, twin: Twin) -> None:
        await twin.enqueue(
            [a_job("a", group="g"), a_job("b", group="g", priority=9), *jobs("c", group="g")]
        )
        assert await work_off(twin, limit=10) == ["a", "b", "c"]

    async def test_law_15_one_of_a_group_is_leased_at_a_time(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc", group="g"))
        first = await lease_one(twin, limit=10)
        assert first.id == "a"
        assert await lease_ids(twin) == []
        await end(twin, first)
        assert await lease_ids(twin) == ["b"]

    @needs("inspect")
    async def test_receipts_number_a_group_in_the_order_of_arrival(self, harness: Harness) -> None:
        engine = harness.engine
        await engine.enqueue([a_job("x")])
        receipts = await engine.enqueue([*jobs("ba", group="g"), *jobs("c", group="h")])
        receipts += await engine.enqueue(jobs("fed", group="g"))
        numbers = {receipt.id: receipt.seq for receipt in receipts}
        for id_, number in numbers.items():
            job = await engine.get(id_)
            assert job is not None and job.seq == number
        rising = [numbers[id_] or 0 for id_ in "bafed"]
        assert rising == sorted(set(rising))

    @needs("inspect", "keys", "combinations")
    async def test_a_duplicate_never_gets_another_number(self, harness: Harness) -> None:
        engine = harness.engine
        (first,) = await engine.enqueue([a_job("a", group="g", key="k")])
        for again in (a_job("a", group="g", key="k"), a_job("b", group="g", key="k")):
            (receipt,) = await engine.enqueue([again])
            assert (receipt.id, receipt.status) == ("a", Status.DUPLICATE)
            assert receipt.seq in (first.seq, None)

    async def test_a_leased_head_holds_up_its_own_group_alone(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("ab", group="g"), *jobs("cd", group="h"), *jobs("ef")])
        assert await lease_ids(twin) == ["a", "c", "e", "f"]

    async def test_a_delayed_head_holds_up_its_own_group_alone(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([a_job("a", group="g", delay_ms=50), *jobs("b", group="g"), a_job("c")])
        assert await lease_ids(twin) == ["c"]
        harness.clock.advance(50)
        assert await work_off(twin) == ["a", "b"]

    async def test_groups_are_of_their_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([*jobs("ab", group="g"), *jobs("cd", group="g", queue="q")])
        assert await lease_ids(twin, queues=("q", "default")) == ["c", "a"]

    async def test_groups_differ_in_every_byte(self, twin: Twin) -> None:
        names = ("g", "G", "g ", "\u00e9", "e\u0301", "%")
        await twin.enqueue([a_job(f"j{n}", group=name) for n, name in enumerate(names)])
        assert len(await lease_ids(twin)) == len(names)

    @needs("inspect", "ordered", "keep_order", "refunds")
    @pytest.mark.parametrize("order", ["tail", "keep"])
    @pytest.mark.parametrize("verdict", [Retry(), Release("busy")])
    async def test_law_07_a_returned_member_is_first_again(
        self, harness: Harness, twin: Twin, order: str, verdict: Retry | Release
    ) -> None:
        await twin.declare(a_queue(order=order))
        await twin.enqueue(jobs("ab", group="g"))
        before = await lease_one(twin)
        await twin.enqueue(jobs("c"))
        harness.clock.advance(10)
        await settle(twin, before, verdict)
        assert (await twin.require("a")).due_at == before.job.due_at
        # It keeps its place before the others of the queue, too.
        assert await lease_ids(twin) == ["a", "c"]

    async def test_a_delayed_retry_holds_up_its_group(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("ab", group="g"))
        await settle(twin, await lease_one(twin), Retry(20))
        assert await lease_ids(twin) == []
        harness.clock.advance(20)
        assert await lease_ids(twin) == ["a"]

    @pytest.mark.parametrize(
        "verdict", [Complete(), Bury(), Forward("q")], ids=lambda verdict: type(verdict).__name__
    )
    async def test_an_ended_head_lets_the_next_go(
        self, twin: Twin, verdict: Complete | Bury | Forward
    ) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("abc", group="g"))
        await settle(twin, await lease_one(twin), verdict)
        assert await lease_ids(twin) == ["b"]

    @needs("inspect")
    @pytest.mark.parametrize(
        "act",
        [Cancel(), BuryWaiting(), Delete(), Move(queue="q")],
        ids=lambda act: type(act).__name__,
    )
    async def test_a_head_that_a_person_takes_away(self, twin: Twin, act: Amendment) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("abc", group="g"))
        assert await twin.amend(A, act) == 1
        assert await twin.amend(C, act) == 1
        assert await lease_ids(twin) == ["b"]
        assert await lease_ids(twin, limit=1, queues=("q",)) == (
            ["a"] if isinstance(act, Move) else []
        )

    @needs("inspect", "priority")
    @pytest.mark.parametrize(
        "act", [Expedite(), Retime(delay_ms=0), Edit(priority=100)], ids=lambda a: type(a).__name__
    )
    async def test_no_act_lets_a_member_pass(self, twin: Twin, act: Amendment) -> None:
        await twin.enqueue(
            [a_job("a", group="g", delay_ms=LONG_MS), *jobs("b", group="g", delay_ms=LONG_MS)]
        )
        assert await twin.amend(B, act) == 1
        assert await lease_ids(twin) == []
        await twin.amend(A, Expedite())
        assert await lease_ids(twin) == ["a"]

    @needs("inspect")
    async def test_a_forced_delete_of_the_leased_head(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc", group="g"))
        lease = await lease_one(twin)
        assert await twin.amend(A, Delete(force=True)) == 1
        assert await lease_ids(twin) == ["b"]
        assert await settle(twin, lease, Complete()) is Outcome.LOST
        assert await lease_ids(twin) == []

    @needs("inspect")
    async def test_a_cancel_request_frees_nothing_before_the_lease_ends(self, twin: Twin) -> None:
        await twin.enqueue(jobs("ab", group="g"))
        lease = await lease_one(twin)
        await twin.amend(A, Cancel())
        assert await lease_ids(twin) == []
        await settle(twin, lease, Retry())
        assert (await twin.require("a")).state is State.CANCELLED
        assert await lease_ids(twin) == ["b"]

    @needs("inspect", "exact_counts")
    async def test_an_expired_head_holds_up_its_group_until_it_is_buried(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(
            [a_job("a", group="g", expires_ms=10), *jobs("b", group="g"), a_job("c")]
        )
        harness.clock.advance(10)
        assert await lease_ids(twin) == ["c"]
        (view,) = await twin.queues()
        assert (view.ready, view.blocked) == (0, 1)
        assert await twin.amend(JobFilter(expired=True), BuryWaiting()) == 1
        assert await lease_ids(twin) == ["b"]

    @needs("inspect")
    async def test_an_expired_member_in_the_middle(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([*jobs("a", group="g"), a_job("b", group="g", expires_ms=10)])
        await twin.enqueue(jobs("c", group="g"))
        lease = await lease_one(twin)
        harness.clock.advance(10)
        assert [job.id for job in (await twin.expired()).jobs] == ["b"]
        await twin.amend(JobFilter(expired=True), BuryWaiting())
        await end(twin, lease)
        assert await lease_ids(twin) == ["c"]

    @needs("fencing")
    async def test_a_reaped_member_is_first_again(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("ab", group="g"))
        late = await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        assert await lease_ids(twin) == []
        assert await reap(twin) == [Outcome.SETTLED]
        again = await lease_one(twin)
        assert again.id == "a"
        assert await settle(twin, late, Complete()) is Outcome.LOST
        assert await lease_ids(twin) == []
        await end(twin, again)
        assert await lease_ids(twin) == ["b"]

    @needs("fencing")
    async def test_law_05_a_late_settle_of_a_waiting_head(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("ab", group="g"))
        late = await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        assert await settle(twin, late, Complete()) is Outcome.SETTLED
        assert await lease_ids(twin) == ["b"]

    @needs("inspect")
    async def test_a_reaped_member_may_die(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(max_attempts=1))
        await twin.enqueue(jobs("ab", group="g"))
        await lease_one(twin, lease_ms=10)
        harness.clock.advance(10)
        await reap(twin)
        assert (await twin.require("a")).state is State.DEAD
        assert await lease_ids(twin) == ["b"]

    @needs("inspect")
    async def test_a_redriven_member_comes_back_by_its_arrival(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abc", group="g"))
        await settle(twin, await lease_one(twin), Bury())
        b = await lease_one(twin)
        await twin.amend(A, Redrive())
        assert (await twin.waits("a")) == Waits(group_head="b")
        assert await lease_ids(twin) == []
        await end(twin, b)
        assert await work_off(twin) == ["a", "c"]

    @needs("inspect")
    async def test_a_moved_member_comes_in_by_its_arrival(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([*jobs("a", group="g", queue="q"), *jobs("bcd", group="g")])
        assert await twin.amend(A, Move(queue="default")) == 1
        assert (await twin.waits("b")) == Waits(group_head="a")
        assert await work_off(twin) == ["a", "b", "c", "d"]

    @needs("inspect")
    async def test_moved_behind_a_leased_member(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([*jobs("a", group="g", queue="q"), *jobs("bc", group="g")])
        b = await lease_one(twin)
        await twin.amend(A, Move(queue="default"))
        assert await lease_ids(twin) == []
        await settle(twin, b, Retry())
        assert await work_off(twin) == ["a", "b", "c"]

    async def test_forwarded_into_a_group(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue([*jobs("a", group="g", queue="q"), *jobs("bc", group="g")])
        await settle(twin, await lease_one(twin, queues=("q",)), Forward("default"))
        assert await work_off(twin) == ["a", "b", "c"]

    async def test_a_dead_queue_has_the_groups_too(self, twin: Twin) -> None:
        await twin.declare(a_queue("grave"))
        await twin.declare(a_queue("q", dead_queue="grave"))
        await twin.enqueue(
            [*jobs("ab", group="g", queue="q"), *jobs("c", group="g", queue="grave")]
        )
        await settle(twin, await lease_one(twin, queues=("q",)), Bury())
        assert await lease_ids(twin, queues=("q",)) == ["b"]
        assert await work_off(twin, queues=("grave",)) == ["c"]

    @needs("dead_leases")
    async def test_a_leased_dead_letter_does_not_hold_its_group_up(self, twin: Twin) -> None:
        await twin.enqueue(jobs("abcd", group="g"))
        for _ in "ab":
            await settle(twin, await lease_one(twin), Bury())
        first = await lease_one(twin, dead=True)
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin, dead=True) == ["b"]
        assert await lease_ids(twin) == ["d"]
        assert await settle(twin, first, Retry()) is Outcome.SETTLED
        assert await lease_ids(twin) == []

    @needs("inspect", "keys", "combinations")
    async def test_a_replaced_job_changes_its_group(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", group="g", key="k"), *jobs("b", group="g")])
        await twin.enqueue([*jobs("c", group="h")])
        await twin.enqueue([a_job("x", group="h", key="k", key_policy="replace")])
        assert (await twin.require("a")).group == "h"
        assert (await twin.waits("c")) == Waits(group_head="a")
        assert sorted(await lease_ids(twin)) == ["a", "b"]

    @needs("keys", "combinations")
    async def test_a_replaced_job_leaves_its_group(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", group="g", key="k"), *jobs("b", group="g")])
        await twin.enqueue([a_job("x", key="k", key_policy="replace")])
        assert sorted(await lease_ids(twin)) == ["a", "b"]

    @needs("inspect", "keys", "combinations")
    async def test_a_merged_job_stays_in_its_group(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", group="g", key="k"), *jobs("b", group="g")])
        await twin.enqueue([a_job("x", group="h", key="k", key_policy="merge", payload=b'{"n":1}')])
        assert (await twin.require("a")).group == "g"
        assert await work_off(twin) == ["a", "b"]

    async def test_other_tasks_block_their_group(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", group="g", task="other"), *jobs("b", group="g")])
        assert await lease_ids(twin, tasks=frozenset({"work"})) == []
        assert await lease_ids(twin, tasks=frozenset({"other"})) == ["a"]

    @needs("inspect")
    async def test_only_a_head_is_leased_by_its_id(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=5))
        await twin.enqueue([*jobs("abc", group="g"), *jobs("d")])
        assert await lease_ids(twin, queues=(), ids=("b", "d")) == ["d"]
        assert await lease_ids(twin, queues=(), ids=("b", "a", "c")) == ["a"]
        assert await lease_ids(twin, queues=(), ids=("b", "c")) == []

    @needs("exact_counts")
    async def test_later_members_of_a_group_are_blocked(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(
            [*jobs("ab", group="g"), a_job("c", group="h", delay_ms=50), *jobs("d", group="h")]
        )
        harness.clock.advance(7)
        expected = QueueView(queue=a_queue(), ready=1, delayed=1, blocked=2, oldest_age_ms=7)
        assert await twin.queues() == [expected]
        await lease_one(twin)
        assert await twin.queues() == [QueueView(queue=a_queue(), delayed=1, blocked=2, leased=1)]

    @needs("inspect", "ordered")
    async def test_waits_names_the_member_ahead(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("abc", group="g"), a_job("d")])
        assert await twin.waits("a") == Waits()
        assert await twin.waits("b") == await twin.waits("c") == Waits(group_head="a")
        assert await twin.waits("d") == Waits()
        assert await twin.waits("nobody") is None
        await lease_one(twin)
        assert await twin.waits("a") is None
        assert await twin.waits("b") == await twin.waits("c") == Waits(group_head="a")

    async def test_a_dropped_queue_forgets_its_groups(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("ab", group="g", queue="q"))
        await lease_one(twin, queues=("q",))
        await twin.drop("q")
        await twin.declare(a_queue("q"))
        await twin.enqueue(jobs("cd", group="g", queue="q"))
        assert await lease_ids(twin, queues=("q",)) == ["c"]

    @needs("inspect")
    async def test_of_one_id_twice_in_a_call_the_first_comes_in(self, twin: Twin) -> None:
        receipts = await twin.enqueue(
            [a_job("a", group="g"), a_job("b"), a_job("a", task="y"), a_job("b", group="g")]
        )
        assert [receipt.status for receipt in receipts] == ["new", "new", "duplicate", "duplicate"]
        assert [(await twin.require(id_)).group for id_ in "ab"] == ["g", None]

    @needs("inspect", "keys", "combinations")
    async def test_of_one_key_twice_in_a_call_the_first_comes_in(self, twin: Twin) -> None:
        receipts = await twin.enqueue(
            [
                a_job("a", group="g", key="k"),
                a_job("b", key="k"),
                a_job("c", key="l"),
                a_job("d", group="g", key="l"),
            ]
        )
        assert [receipt.id for receipt in receipts] == ["a", "a", "c", "c"]
        assert [job.id for job in await twin.find(JobFilter())] == ["c", "a"]

    @needs("priority")
    async def test_a_long_group(self, twin: Twin) -> None:
        ids = [f"j{n:03}" for n in range(150)]
        await twin.enqueue([a_job(id_, group="g", priority=n % 7) for n, id_ in enumerate(ids)])
        assert await work_off(twin, limit=3) == ids


@needs("groups")
class GroupBatchContract:
    """`Queue.group_batch`: how many jobs of a group one call may lease."""

    async def test_law_15_one_call_takes_the_next_of_a_group_together(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcde", group="g"))
        first = await twin.lease(from_default(10))
        assert [lease.id for lease in first] == ["a", "b", "c"]
        assert await lease_ids(twin) == []
        await end(twin, *first[:2])
        assert await lease_ids(twin) == []
        await end(twin, first[2])
        assert await lease_ids(twin) == ["d", "e"]

    @needs("priority")
    async def test_a_batch_comes_in_the_order_of_the_group(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(
            [a_job(id_, group="g", priority=n) for n, id_ in enumerate("abc")]
            + [a_job("d", priority=1)]
        )
        # The head decides when the batch goes, and the others go with it.
        assert await lease_ids(twin) == ["d", "a", "b", "c"]

    @needs("ordered")
    async def test_a_batch_goes_before_what_comes_after_its_head(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue([*jobs("a", group="g"), *jobs("x"), *jobs("bc", group="g")])
        assert await lease_ids(twin, limit=3) == ["a", "b", "x"]

    async def test_a_batch_keeps_to_the_limit_of_the_call(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcd", group="g"))
        leases = await twin.lease(from_default(2))
        assert [lease.id for lease in leases] == ["a", "b"]
        # A second call gets nothing, though two are fewer than three.
        assert await lease_ids(twin) == []

    @needs("dependencies", "combinations")
    @pytest.mark.parametrize(
        "fields",
        [{"delay_ms": 50}, {"expires_ms": 0}, {"task": "other"}, {"after": ("p",)}],
        ids=lambda fields: next(iter(fields)),
    )
    async def test_a_batch_ends_before_a_job_that_cannot_start(
        self, twin: Twin, fields: dict[str, object]
    ) -> None:
        await twin.declare(a_queue(group_batch=5))
        await twin.enqueue([a_job("p", delay_ms=LONG_MS)])
        await twin.enqueue([*jobs("ab", group="g"), a_job("c", group="g", **fields)])
        await twin.enqueue(jobs("d", group="g"))
        assert await lease_ids(twin, tasks=frozenset({"work"})) == ["a", "b"]

    @needs("inspect")
    async def test_a_batch_of_which_one_comes_back(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue(jobs("abc", group="g"))
        a, b = await twin.lease(from_default(10))
        await settle(twin, a, Retry())
        assert await lease_ids(twin) == []
        assert (await twin.waits("a")) == Waits(group_head="b")
        await end(twin, b)
        assert await lease_ids(twin) == ["a", "c"]

    async def test_several_groups_each_with_its_batch(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue([a_job(f"{group}{n}", group=group) for n in range(3) for group in "gh"])
        assert await lease_ids(twin) == ["g0", "g1", "h0", "h1"]

    async def test_the_batch_changes_at_once(self, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=3))
        await twin.enqueue(jobs("abcdefg", group="g"))
        leases = await twin.lease(from_default(10))
        await twin.declare(a_queue(group_batch=1))
        await end(twin, *leases)
        (lease,) = await twin.lease(from_default(10))
        await twin.declare(a_queue(group_batch=2))
        assert await lease_ids(twin) == []
        await end(twin, lease)
        assert await lease_ids(twin) == ["e", "f"]

    async def test_a_batch_of_a_lapsed_worker(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(group_batch=2))
        await twin.enqueue(jobs("abc", group="g"))
        late = await twin.lease(from_default(10, lease_ms=10))
        harness.clock.advance(10)
        assert await reap(twin) == [Outcome.SETTLED] * 2
        assert await settle(twin, late[1], Complete()) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a", "c"]
