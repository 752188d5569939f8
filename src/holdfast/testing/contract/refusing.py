"""Children that cannot come in, and those that come with the verdict on another job."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.flow import Waits
from holdfast.core.model import JobFilter, NewJob, Reason, State
from holdfast.core.verdict import Complete, Delete, Outcome
from holdfast.testing.contract.depending import after, code, family, finish
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    case,
    jobs,
    lease_ids,
    lease_one,
    settle,
    work_off,
)
from holdfast.testing.twin import Twin

P = JobFilter(ids=("p",))


class Refusing:
    """Children that cannot come in: a clear refusal, nothing half-written."""

    async def test_children_may_come_before_their_parents(self, twin: Twin) -> None:
        receipts = await twin.enqueue([after("c", "b"), after("b", "a"), a_job("a")])
        assert [(receipt.id, receipt.status) for receipt in receipts] == [
            ("c", "new"),
            ("b", "new"),
            ("a", "new"),
        ]
        assert [job.id for job in await twin.find(JobFilter())] == ["c", "b", "a"]
        assert await work_off(twin) == ["a", "b", "c"]

    async def test_a_circle(self, twin: Twin) -> None:
        receipts = await twin.enqueue(
            [after("a", "b"), after("b", "c"), after("c", "a"), after("d", "a"), a_job("e")]
        )
        assert code(receipts) == [*["circular_jobs"] * 3, "unknown_parent", "new"]
        assert await lease_ids(twin) == ["e"]

    async def test_a_job_after_itself(self, twin: Twin) -> None:
        assert code(await twin.enqueue([after("a", "a")])) == ["circular_jobs"]
        assert await twin.get("a") is None

    async def test_a_parent_that_does_not_exist(self, twin: Twin) -> None:
        receipts = await twin.enqueue([after("a", "nobody"), a_job("b")])
        assert code(receipts) == ["unknown_parent", "new"]
        assert await twin.get("a") is None

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

    async def test_a_parent_that_was_a_duplicate_by_its_key(self, twin: Twin) -> None:
        await twin.enqueue([a_job("holder", key="k")])
        receipts = await twin.enqueue([after("a", "p"), a_job("p", key="k")])
        assert code(receipts) == ["unknown_parent", "duplicate"]

    async def test_law_13_a_repeat_is_a_duplicate_whatever_became_of_its_parents(
        self, twin: Twin
    ) -> None:
        await family(twin)
        await finish(twin, State.DONE)
        await twin.amend(P, Delete())
        assert code(await twin.enqueue([after("a", "p")])) == ["duplicate"]

    async def test_what_is_known_closes_no_circle(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a")])
        assert code(await twin.enqueue([after("a", "b"), after("b", "a")])) == ["duplicate", "new"]
        assert await work_off(twin) == ["a", "b"]

    async def test_one_id_twice_in_a_call(self, twin: Twin) -> None:
        receipts = await twin.enqueue([a_job("a"), after("a", "b"), after("b", "a")])
        assert code(receipts) == ["new", "duplicate", "new"]
        assert await work_off(twin) == ["a", "b"]

    async def test_a_full_queue_comes_last(self, twin: Twin) -> None:
        await twin.declare(a_queue(max_depth=1))
        await twin.enqueue([a_job("p")])
        receipts = await twin.enqueue([after("a", "p"), after("b", "nobody"), after("c", "c")])
        assert code(receipts) == ["queue_full", "unknown_parent", "circular_jobs"]

    async def test_what_is_out_of_bounds(self, twin: Twin) -> None:
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


class FollowingOn:
    """Children that come with the verdict on another job."""

    async def test_a_follow_up_may_come_after_the_job_it_follows(self, twin: Twin) -> None:
        await twin.enqueue(jobs("xy"))
        then = (after("b", "a"), after("a", "x", "y"), after("c", "x", after_on="death"))
        lease = await lease_one(twin)
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert (await twin.the("c")).reason is Reason.DEPENDENCY
        assert await twin.waits("a") == Waits(parents=("y",), parent_count=1)
        assert await work_off(twin) == ["y", "a", "b"]

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
        assert (await twin.the("x")).state is State.LEASED
        assert await twin.get("ok") is None
        assert await settle(twin, lease, Complete()) is Outcome.SETTLED

    async def test_follow_ups_that_are_known_need_no_parents(self, twin: Twin) -> None:
        await twin.enqueue([*jobs("xa"), a_job("y", key="k")])
        then = (after("a", "nobody"), after("z", "nobody", key="k"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await lease_ids(twin) == ["a", "y"]

    async def test_a_follow_up_takes_the_key_of_the_job_it_follows(self, twin: Twin) -> None:
        await twin.enqueue([a_job("x", key="k", key_window_ms=0)])
        then = (a_job("a", key="k"), after("b", "a"), a_job("c", key="k"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await work_off(twin) == ["a", "b"]
        assert await twin.get("c") is None

    async def test_follow_ups_come_in_before_children_are_judged(self, twin: Twin) -> None:
        await twin.enqueue([a_job("x"), after("a", "x", after_on="death", key="k")])
        then = (a_job("b", key="k"), after("c", "a"))
        assert await settle(twin, await lease_one(twin), Complete(then=then)) is Outcome.SETTLED
        assert await twin.get("b") is None
        assert [event.text for event in (await twin.the("c")).events] == ["parent a is cancelled"]
