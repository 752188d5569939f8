"""Priority that grows with waiting: a low job under constant high load starts within its bound."""

from __future__ import annotations

import pytest

from holdfast.core.model import JobFilter
from holdfast.core.verdict import Edit, Expedite, Retry
from holdfast.errors import UsageError
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    end,
    jobs,
    lease_ids,
    lease_one,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class Aging:
    @pytest.mark.parametrize("fairness", ["off", "shares", "noisy"])
    async def test_a_low_job_under_constant_load_starts_within_its_bound(
        self, harness: Harness, twin: Twin, fairness: str
    ) -> None:
        await twin.declare(a_queue(aging_ms=10, fairness=fairness))
        await twin.enqueue([a_job("low", priority=-3)])
        began = harness.clock.wall_ms()
        for number in range(100):
            await twin.enqueue([a_job(f"high{number}", priority=5)])
            lease = await lease_one(twin)
            await end(twin, lease)
            if lease.id == "low":
                break
            harness.clock.advance(1)
        # At the bound they are equal, and the higher priority goes first.
        assert harness.clock.wall_ms() - began == (5 + 3) * 10 + 1

    async def test_without_aging_it_starves(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("low")])
        for number in range(100):
            await twin.enqueue([a_job(f"high{number}", priority=1)])
            await end(twin, lease := await lease_one(twin))
            assert lease.id != "low"
            harness.clock.advance(1_000_000)

    async def test_the_order_of_a_list(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=100))
        await twin.enqueue([a_job("a"), a_job("b", priority=1)])
        harness.clock.advance(100)
        await twin.enqueue([a_job("c", priority=1), a_job("d")])
        harness.clock.advance(1)
        await twin.enqueue([a_job("e", priority=1), a_job("f", priority=2)])
        assert await lease_ids(twin) == ["b", "f", "c", "a", "e", "d"]

    async def test_a_delayed_job_ages_from_when_it_is_due(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue([a_job("a", delay_ms=100)])
        harness.clock.advance(100)
        await twin.enqueue([a_job("b", priority=1)])
        assert await lease_ids(twin) == ["b", "a"]

    async def test_a_retried_job_begins_anew(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue(jobs("a"))
        harness.clock.advance(100)
        await settle(twin, await lease_one(twin), Retry())
        await twin.enqueue([a_job("b", priority=1)])
        assert await lease_ids(twin) == ["b", "a"]

    async def test_changed_with_a_backlog(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue(jobs("a"))
        harness.clock.advance(50)
        await twin.enqueue([a_job("b", priority=9), a_job("c", priority=9)])
        await twin.enqueue([*jobs("d"), a_job("e", priority=9)])
        assert await lease_ids(twin, limit=1) == ["b"]
        await twin.declare(a_queue(aging_ms=1))
        assert await lease_ids(twin, limit=1) == ["a"]
        await twin.declare(a_queue(aging_ms=100))
        assert await lease_ids(twin) == ["c", "e", "d"]

    async def test_acts_of_people(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue(jobs("abc"))
        await twin.amend(JobFilter(ids=("b",)), Edit(priority=1))
        await twin.amend(JobFilter(ids=("c",)), Expedite())
        assert await lease_ids(twin) == ["c", "b", "a"]

    async def test_under_a_limit(self, harness: Harness, twin: Twin) -> None:
        limit = a_limit(concurrency=1, key="{tenant}")
        await twin.declare(a_queue(aging_ms=10, limits=(limit,)))
        await twin.enqueue([a_job("a", tenant="x"), a_job("b", tenant="y")])
        harness.clock.advance(30)
        await twin.enqueue([a_job("c", tenant="x", priority=2), a_job("d", tenant="y", priority=4)])
        a = await lease_one(twin, queues=(), ids=("a",))
        assert await lease_ids(twin) == ["d"]
        await end(twin, a)
        assert await lease_ids(twin) == ["c"]

    async def test_in_groups(self, harness: Harness, twin: Twin) -> None:
        await twin.declare(a_queue(aging_ms=10))
        await twin.enqueue([a_job("a", group="g"), a_job("b", group="g", priority=50), a_job("c")])
        await twin.enqueue([a_job("d", priority=1)])
        assert await lease_ids(twin) == ["d", "a", "c"]

    async def test_with_shares_the_best_job_names_the_priority(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.declare(a_queue(aging_ms=10, fairness="shares"))
        await twin.enqueue([a_job("x0", tenant="x"), a_job("x1", tenant="x")])
        harness.clock.advance(50)
        await twin.enqueue([a_job("y0", tenant="y"), a_job("z0", tenant="z", priority=4)])
        # x0 is the best, so that those of its priority go, in turn; until z0 is better than y0.
        assert await lease_ids(twin, limit=20) == ["x0", "y0", "x1", "z0"]

    @pytest.mark.parametrize("aging_ms", [0, -1])
    async def test_no_time_at_all(self, twin: Twin, aging_ms: int) -> None:
        with pytest.raises(UsageError):
            await twin.declare(a_queue(aging_ms=aging_ms))
