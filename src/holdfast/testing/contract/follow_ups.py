"""Follow-up jobs go in together with the completion, or not at all; and where retries line up."""

from __future__ import annotations

import pytest

from holdfast.core.model import State
from holdfast.core.verdict import Complete, Outcome, Release, Retry, Settlement, Verdict
from holdfast.testing.contract.making import (
    a_job,
    a_queue,
    jobs,
    lease_ids,
    lease_one,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class FollowUps:
    async def test_follow_ups_are_enqueued_with_the_completion(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("q"))
        lease = await leased(twin)
        harness.clock.advance(5)
        now = harness.clock.wall_ms()
        then = (a_job("x", queue="q", delay_ms=3), a_job("y", payload=b"\x00", priority=4))
        assert await settle(twin, lease, Complete(b"r", then)) is Outcome.SETTLED
        x, y = await twin.the("x"), await twin.the("y")
        assert (x.created_at, x.due_at, x.queue, x.state) == (now, now + 3, "q", "waiting")
        assert (y.payload, y.priority, y.queue) == (b"\x00", 4, "default")
        assert await lease_ids(twin) == ["y"]

    async def test_law_08_a_repeated_completion_adds_no_follow_ups_twice(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, Complete(then=(a_job("x"),))) is Outcome.SETTLED
        again = Complete(then=(a_job("x"), a_job("y")))
        assert await settle(twin, lease, again) is Outcome.SETTLED
        assert await twin.get("y") is None

    async def test_a_lost_completion_adds_no_follow_ups(self, twin: Twin) -> None:
        lease = await leased(twin)
        await settle(twin, lease, Retry())
        fresh = await lease_one(twin)
        assert await settle(twin, lease, Complete(then=(a_job("x"),))) is Outcome.LOST
        assert await twin.get("x") is None
        assert await settle(twin, fresh, Complete()) is Outcome.SETTLED

    async def test_a_bad_follow_up_refuses_the_completion_and_all_of_them(self, twin: Twin) -> None:
        lease = await leased(twin)
        before = await twin.the("a")
        for bad in (a_job("b", queue="nowhere"), a_job("b", priority=101), a_job("")):
            verdict = Complete(then=(a_job("x"), bad))
            assert await settle(twin, lease, verdict) is Outcome.REFUSED
        assert await twin.get("x") is None
        assert await twin.the("a") == before

    async def test_a_job_hands_its_key_on_when_it_completes(self, twin: Twin) -> None:
        lease = await leased(twin, key="k", key_window_ms=0)
        after = a_job("x", key="k", key_window_ms=0)
        assert await settle(twin, lease, Complete(then=(after,))) is Outcome.SETTLED
        assert (await twin.the("x")).key == "k"

    async def test_a_key_within_its_window_is_not_handed_on(self, twin: Twin) -> None:
        lease = await leased(twin, key="k", key_window_ms=50)
        assert await settle(twin, lease, Complete(then=(a_job("x", key="k"),))) is Outcome.SETTLED
        assert await twin.get("x") is None

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
        old = await twin.the("old")
        assert (old.payload, old.version) == (b"1", 1)
        assert await twin.get("new") is None
        assert await twin.get("y") is None
        assert (await twin.the("x")).key == "j"

    async def test_follow_ups_pass_a_full_or_closed_queue(self, twin: Twin) -> None:
        await twin.declare(a_queue("full", max_depth=1, payload_max=1))
        await twin.declare(a_queue("closed", accepting=False))
        await twin.enqueue([a_job("filler", queue="full", payload=b"")])
        lease = await leased(twin)
        then = (a_job("x", queue="full"), a_job("y", queue="closed"))
        assert await settle(twin, lease, Complete(then=then)) is Outcome.SETTLED
        assert (await twin.the("x")).queue == "full"
        assert (await twin.the("y")).queue == "closed"

    async def test_a_job_may_follow_itself_under_another_id_only(self, twin: Twin) -> None:
        lease = await leased(twin)
        assert await settle(twin, lease, Complete(then=(a_job("a"),))) is Outcome.SETTLED
        assert (await twin.the("a")).state is State.DONE

    @pytest.mark.parametrize("verdict", [Retry(), Release()], ids=["retry", "release"])
    async def test_law_07_what_comes_back_goes_behind_what_is_due(
        self, twin: Twin, verdict: Verdict
    ) -> None:
        await twin.enqueue(jobs("abc"))
        await settle(twin, await lease_one(twin), verdict)
        assert await lease_ids(twin) == ["b", "c", "a"]

    async def test_law_07_reaped_jobs_go_behind_too(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("abc"))
        assert await lease_ids(twin, limit=2) == ["a", "b"]
        harness.clock.advance(30_000)
        await twin.enqueue(jobs("d"))
        assert await reap(twin) == [Outcome.SETTLED] * 2
        assert await lease_ids(twin) == ["c", "d", "a", "b"]

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

    async def test_law_07_never_behind_a_lower_priority(self, twin: Twin) -> None:
        await twin.enqueue([a_job("a", priority=1), a_job("b", priority=1), a_job("low")])
        await settle(twin, await lease_one(twin), Retry())
        assert await lease_ids(twin) == ["b", "a", "low"]

    @pytest.mark.parametrize("verdict", [Retry(), Release()], ids=["retry", "release"])
    async def test_law_07_order_keep_gives_the_old_place_back(
        self, harness: Harness, twin: Twin, verdict: Verdict
    ) -> None:
        await twin.declare(a_queue("default", order="keep"))
        await twin.enqueue(jobs("abc"))
        due_at = (await twin.the("a")).due_at
        harness.clock.advance(7)
        await settle(twin, await lease_one(twin), verdict)
        assert (await twin.the("a")).due_at == due_at
        assert await lease_ids(twin) == ["a", "b", "c"]

    async def test_law_07_order_keep_with_a_delay_goes_by_the_delay(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue("default", order="keep"))
        await twin.enqueue(jobs("ab"))
        await settle(twin, await lease_one(twin), Retry(5))
        harness.clock.advance(5)
        assert await lease_ids(twin) == ["b", "a"]
