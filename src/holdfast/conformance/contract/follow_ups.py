"""Follow-up jobs are stored together with the completion or not at all; refused children."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    case,
    jobs,
    lease_ids,
    lease_one,
    leased,
    needs,
    reap,
    settle,
    work_off,
)
from holdfast.conformance.contract.dependencies import after, code, family, finish
from holdfast.conformance.harness import Harness, Twin
from holdfast.core.model import JobFilter, NewJob, Reason, State, Waits
from holdfast.core.verdict import Complete, Delete, Outcome, Release, Retry, Settlement, Verdict


class FollowUpContract:
    """Follow-up jobs, and the place of retried jobs."""

    @needs("inspect", "priority", "results", "follow_ups")
    async def test_follow_ups_are_enqueued_with_the_completion(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin)
        harness.clock.advance(5)
        now = harness.clock.wall_ms()
        then = (a_job("x", queue="q", delay_ms=3), a_job("y", payload=b"\x00", priority=4))
        assert await settle(twin, lease, Complete(b"r", then)) is Outcome.SETTLED
        x, y = await twin.require("x"), await twin.require("y")
        assert (x.created_at, x.due_at, x.queue, x.state) == (now, now + 3, "q", "waiting")
        assert (y.payload, y.priority, y.queue) == (b"\x00", 4, "default")
        assert await lease_ids(twin) == ["y"]

    @needs("inspect", "fencing", "follow_ups")
    async def test_law_08_a_repeated_completion_adds_no_follow_ups_twice(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, Complete(then=(a_job("x"),))) is Outcome.SETTLED
        again = Complete(then=(a_job("x"), a_job("y")))
        assert await settle(twin, lease, again) is Outcome.SETTLED
        assert await twin.get("y") is None

    @needs("inspect", "fencing", "follow_ups")
    async def test_a_lost_completion_adds_no_follow_ups(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Retry())
        fresh = await lease_one(twin)
        assert await settle(twin, lease, Complete(then=(a_job("x"),))) is Outcome.LOST
        assert await twin.get("x") is None
        assert await settle(twin, fresh, Complete()) is Outcome.SETTLED

    @needs("inspect", "follow_ups")
    async def test_a_bad_follow_up_refuses_the_completion_and_all_of_them(self, twin: Twin) -> None:
        lease = await leased(twin)
        before = await twin.require("a")
        for bad in (a_job("b", queue="nowhere"), a_job("b", priority=101), a_job("")):
            verdict = Complete(then=(a_job("x"), bad))
            assert await settle(twin, lease, verdict) is Outcome.REFUSED
        assert await twin.get("x") is None
        assert await twin.require("a") == before

    @needs("inspect", "keys", "follow_ups")
    async def test_a_job_hands_its_key_on_when_it_completes(self, twin: Twin) -> None:
        lease = await leased(twin, key="k", key_window_ms=0)
        after = a_job("x", key="k", key_window_ms=0)
        assert await settle(twin, lease, Complete(then=(after,))) is Outcome.SETTLED
        assert (await twin.require("x")).key == "k"

    @needs("inspect", "keys", "follow_ups")
    async def test_a_key_within_its_window_is_not_handed_on(self, twin: Twin) -> None:
        lease = await leased(twin, key="k", key_window_ms=50)
        assert await settle(twin, lease, Complete(then=(a_job("x", key="k"),))) is Outcome.SETTLED
        assert await twin.get("x") is None

    @needs("inspect", "keys", "key_hold", "follow_ups", "combinations")
    async def test_a_follow_up_may_take_a_key_past_its_window(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a"), a_job("old", key="k", key_window_ms=0)])
        lease = await lease_one(twin)
        over: dict[str, Any] = {"key": "k", "key_window_ms": 0, "key_hold": "window"}
        then = (a_job("x", **over), a_job("y", **over), a_job("z", key="k"))
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert [await twin.get(id_) is None for id_ in "xyz"] == [False, False, True]

    @needs("inspect", "keys", "follow_ups", "combinations")
    async def test_known_ids_and_held_keys_are_skipped(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a"), a_job("old", key="k", payload=b"1")])
        lease = await lease_one(twin)
        then = (
            a_job("old", payload=b"2"),
            a_job("new", key="k", key_policy="replace", payload=b"3"),
            a_job("x", key="j"),
            a_job("x"),
            a_job("y", key="j"),
        )
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        old = await twin.require("old")
        assert (old.payload, old.version) == (b"1", 1)
        assert await twin.get("new") is None
        assert await twin.get("y") is None
        assert (await twin.require("x")).key == "j"

    @needs("inspect", "follow_ups", "limits")
    async def test_follow_ups_pass_a_full_or_closed_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("full", max_depth=1, payload_max=1))
        await twin.declare(a_queue("closed", accepting=False))
        await twin.enqueue([a_job("filler", queue="full", payload=b"")])
        lease = await leased(twin)
        then = (a_job("x", queue="full"), a_job("y", queue="closed"))
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert (await twin.require("x")).queue == "full"
        assert (await twin.require("y")).queue == "closed"

    @needs("inspect", "follow_ups")
    async def test_a_job_may_follow_itself_under_another_id_only(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, Complete(then=(a_job("a"),))) is Outcome.SETTLED
        assert (await twin.require("a")).state is State.DONE

    @needs("ordered", "refunds")
    @pytest.mark.parametrize("verdict", [Retry(), Release()], ids=["retry", "release"])
    async def test_law_07_what_comes_back_goes_behind_what_is_due(
        self, twin: Twin, verdict: Verdict
    ) -> None:
        await twin.enqueue(jobs("abc"))
        await settle(twin, await lease_one(twin), verdict)
        assert await lease_ids(twin) == ["b", "c", "a"]

    @needs("ordered")
    async def test_law_07_reaped_jobs_go_behind_too(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        assert await lease_ids(twin, limit=2) == ["a", "b"]
        harness.clock.advance(30_000)
        await twin.enqueue(jobs("d"))
        assert await reap(twin) == [Outcome.SETTLED] * 2
        assert await lease_ids(twin) == ["c", "d", "a", "b"]

    @needs("ordered")
    async def test_law_07_in_the_same_millisecond_the_order_of_settling_counts(
        self, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("abc"))
        a, b = [await lease_one(twin) for _ in "ab"]
        await twin.settle(
            [Settlement(lease=b, verdict=Retry()), Settlement(lease=a, verdict=Retry())]
        )
        await twin.enqueue(jobs("d"))
        assert await lease_ids(twin) == ["c", "b", "a", "d"]

    @needs("priority", "ordered")
    async def test_law_07_never_behind_a_lower_priority(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", priority=1), a_job("b", priority=1), a_job("low")])
        await settle(twin, await lease_one(twin), Retry())
        assert await lease_ids(twin) == ["b", "a", "low"]

    @needs("inspect", "ordered", "keep_order", "refunds")
    @pytest.mark.parametrize("verdict", [Retry(), Release()], ids=["retry", "release"])
    async def test_law_07_order_keep_gives_the_old_place_back(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        await twin.declare(a_queue("default", order="keep"))
        await twin.enqueue(jobs("abc"))
        due_at = (await twin.require("a")).due_at
        harness.clock.advance(7)
        await settle(twin, await lease_one(twin), verdict)
        assert (await twin.require("a")).due_at == due_at
        assert await lease_ids(twin) == ["a", "b", "c"]

    @needs("ordered", "keep_order")
    async def test_law_07_order_keep_with_a_delay_goes_by_the_delay(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", order="keep"))
        await twin.enqueue(jobs("ab"))
        await settle(twin, await lease_one(twin), Retry(5))
        harness.clock.advance(5)
        assert await lease_ids(twin) == ["b", "a"]


P = JobFilter(ids=("p",))


class RefusedChildContract:
    """Children that are refused: with a clear code, and nothing half-written."""

    @needs("inspect", "dependencies")
    async def test_children_may_come_before_their_parents(self, twin: Twin) -> None:
        receipts = await twin.enqueue([after("c", "b"), after("b", "a"), a_job("a")])
        assert [(receipt.id, receipt.status) for receipt in receipts] == [
            ("c", "new"),
            ("b", "new"),
            ("a", "new"),
        ]
        assert [job.id for job in await twin.find(JobFilter())] == ["c", "b", "a"]
        assert await work_off(twin) == ["a", "b", "c"]

    @needs("dependencies")
    async def test_a_circle(self, twin: Twin) -> None:
        receipts = await twin.enqueue(
            [after("a", "b"), after("b", "c"), after("c", "a"), after("d", "a"), a_job("e")]
        )
        assert code(receipts) == [*["circular_jobs"] * 3, "unknown_parent", "new"]
        assert await lease_ids(twin) == ["e"]

    @needs("inspect", "dependencies")
    async def test_a_job_after_itself(self, twin: Twin) -> None:
        assert code(await twin.enqueue([after("a", "a")])) == ["circular_jobs"]
        assert await twin.get("a") is None

    @needs("inspect", "dependencies")
    async def test_a_parent_that_does_not_exist(self, twin: Twin) -> None:
        receipts = await twin.enqueue([after("a", "nobody"), a_job("b")])
        assert code(receipts) == ["unknown_parent", "new"]
        assert await twin.get("a") is None

    @needs("dependencies")
    async def test_a_parent_that_was_refused_in_the_same_call(self, twin: Twin) -> None:
        receipts = await twin.enqueue(
            [
                after("a", "p"),
                a_job("p", priority=101),
                after("b", "a"),
                after("c", "d"),
                a_job("d"),
            ]
        )
        assert code(receipts) == ["unknown_parent", "invalid_job", "unknown_parent", "new", "new"]

    @needs("keys", "dependencies")
    async def test_a_parent_that_was_a_duplicate_by_its_key(self, twin: Twin) -> None:
        await twin.enqueue([a_job("holder", key="k")])
        receipts = await twin.enqueue([after("a", "p"), a_job("p", key="k")])
        assert code(receipts) == ["unknown_parent", "duplicate"]

    @needs("inspect", "dependencies")
    async def test_law_13_a_repeat_is_a_duplicate_whatever_became_of_its_parents(
        self, twin: Twin
    ) -> None:
        await family(twin)
        await finish(twin, State.DONE)
        await twin.amend(P, Delete())
        assert code(await twin.enqueue([after("a", "p")])) == ["duplicate"]

    @needs("dependencies")
    async def test_an_existing_job_closes_no_circle(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a")])
        assert code(await twin.enqueue([after("a", "b"), after("b", "a")])) == ["duplicate", "new"]
        assert await work_off(twin) == ["a", "b"]

    @needs("dependencies")
    async def test_one_id_twice_in_a_call(self, twin: Twin) -> None:
        receipts = await twin.enqueue([a_job("a"), after("a", "b"), after("b", "a")])
        assert code(receipts) == ["new", "duplicate", "new"]
        assert await work_off(twin) == ["a", "b"]

    @needs("dependencies", "limits")
    async def test_a_full_queue_comes_last(self, twin: Twin) -> None:
        await twin.declare(a_queue(max_depth=1))
        await twin.enqueue([a_job("p")])
        receipts = await twin.enqueue([after("a", "p"), after("b", "nobody"), after("c", "c")])
        assert code(receipts) == ["queue_full", "unknown_parent", "circular_jobs"]

    async def test_values_out_of_bounds_are_refused(self, twin: Twin) -> None:
        await twin.enqueue([a_job("p")])
        bad: tuple[dict[str, Any], ...] = (
            {"after": ("a b",)},
            {"after_on": "never"},
            {"parent_death": "weep"},
        )
        for fields in bad:
            with case(fields):
                new = a_job(**{"id": "a", "after": ("p",)} | fields)
                assert code(await twin.enqueue([new])) == ["invalid_job"]


@needs("dependencies", "follow_ups")
class FollowUpChildContract:
    """Follow-up jobs that are after other jobs."""

    @needs("inspect")
    async def test_a_follow_up_may_come_after_the_job_it_follows(self, twin: Twin) -> None:
        await twin.enqueue(jobs("xy"))
        then = (after("b", "a"), after("a", "x", "y"), after("c", "x", after_on="death"))
        lease = await lease_one(twin)
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert (await twin.require("c")).reason is Reason.DEPENDENCY
        assert await twin.waits("a") == Waits(parents=("y",), parent_count=1)
        assert await work_off(twin) == ["y", "a", "b"]

    @needs("inspect", "keys", "ordered")
    @pytest.mark.parametrize(
        "then",
        [
            (after("a", "nobody"),),
            (after("a", "b"), after("b", "a")),
            (after("a", "a"),),
            (a_job("ok"), after("a", "ok", "p"), a_job("p", key="held")),
        ],
        ids=["unknown", "circle", "itself", "of a held key"],
    )
    async def test_follow_ups_that_cannot_come_in(
        self, twin: Twin, then: tuple[NewJob, ...]
    ) -> None:
        await twin.enqueue([a_job("x"), a_job("y", key="held")])
        lease = await lease_one(twin)
        assert await settle(twin, lease, Complete(then=then)) is Outcome.REFUSED
        assert (await twin.require("x")).state is State.LEASED
        assert await twin.get("ok") is None
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    @needs("keys", "combinations")
    async def test_follow_ups_that_are_known_need_no_parents(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("xa"), a_job("y", key="k")])
        then = (after("a", "nobody"), after("z", "nobody", key="k"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a", "y"]

    @needs("inspect", "keys")
    async def test_a_follow_up_takes_the_key_of_the_job_it_follows(self, twin: Twin) -> None:
        await twin.enqueue([a_job("x", key="k", key_window_ms=0)])
        then = (a_job("a", key="k"), after("b", "a"), a_job("c", key="k"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await work_off(twin) == ["a", "b"]
        assert await twin.get("c") is None

    @needs("inspect", "keys")
    async def test_follow_ups_come_in_before_children_are_judged(self, twin: Twin) -> None:
        await twin.enqueue([a_job("x"), after("a", "x", after_on="death", key="k")])
        then = (a_job("b", key="k"), after("c", "a"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await twin.get("b") is None
        assert [event.text for event in (await twin.require("c")).events] == [
            "parent a is cancelled"
        ]
