"""For engines whose leases run on a clock that nobody can set: a wall clock may jump."""

from __future__ import annotations

import pytest

from holdfast.core.limits import DAY_MS
from holdfast.core.model import Renewal
from holdfast.core.verdict import Complete, Outcome, Retry
from holdfast.testing.contract.making import (
    a_job,
    a_limit,
    a_queue,
    jobs,
    lease_ids,
    leased,
    reap,
    settle,
)
from holdfast.testing.harness import Harness
from holdfast.testing.twin import Twin


class JumpContract:
    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS, 3_600_000, -3_600_000])
    async def test_a_jump_neither_ends_nor_stretches_a_lease(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        lease = await leased(twin)
        harness.clock.advance(10_000)
        harness.clock.jump(jump)
        overdue = await twin.overdue()
        assert (overdue.leases, overdue.next_ms) == ((), 20_000)
        (renewed,) = await twin.renew([Renewal(lease=lease)])
        assert renewed is not None
        assert renewed.job.deadline_at == harness.clock.wall_ms() + 30_000
        harness.clock.advance(30_000)
        assert (await twin.renew([Renewal(lease=lease)])) == [None]
        assert await reap(twin) == [Outcome.SETTLED]

    async def test_jobs_go_by_the_wall_clock(self, harness: Harness, twin: Twin) -> None:
        await twin.enqueue([a_job("a", delay_ms=DAY_MS), a_job("b", expires_ms=DAY_MS)])
        harness.clock.jump(DAY_MS)
        assert await lease_ids(twin) == ["a"]
        harness.clock.jump(-DAY_MS)
        assert (await twin.queues())[0].ready == 1
        assert await lease_ids(twin) == ["b"]

    async def test_after_a_jump_back_what_was_due_waits_and_new_jobs_do_not(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue(jobs("a"))
        harness.clock.jump(-DAY_MS)
        await twin.enqueue(jobs("b"))
        lease_now = await lease_ids(twin)
        assert lease_now == ["b"]
        assert (await twin.queues())[0].delayed == 1
        harness.clock.advance(DAY_MS)
        assert await lease_ids(twin) == ["a"]

    async def test_settling_after_a_jump_back(self, harness: Harness, twin: Twin) -> None:
        lease = await leased(twin)
        harness.clock.jump(-DAY_MS)
        now = harness.clock.wall_ms()
        await settle(twin, lease, Retry())
        assert (await twin.the("a")).due_at == now
        (id_,) = await lease_ids(twin)
        assert id_ == "a"
        lease_again = await twin.the("a")
        assert lease_again.leased_at == now
        assert await settle(twin, lease, Complete()) is Outcome.LOST

    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS])
    async def test_a_jump_neither_opens_nor_closes_a_rate(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        await twin.enqueue(jobs("abc"))
        harness.clock.advance(DAY_MS)
        await twin.declare(a_queue(limits=(a_limit(rate="1/1000"),)))
        assert await lease_ids(twin) == ["a"]
        harness.clock.jump(jump)
        harness.clock.advance(999)
        assert await lease_ids(twin) == []
        harness.clock.advance(1)
        harness.clock.jump(-jump)
        assert await lease_ids(twin) == ["b"]

    @pytest.mark.parametrize("jump", [DAY_MS, -DAY_MS])
    async def test_a_jump_in_the_books_of_tenants(
        self, harness: Harness, twin: Twin, jump: int
    ) -> None:
        await twin.declare(a_queue(fairness="noisy"))
        await twin.enqueue([a_job("a", tenant="x"), a_job("b", tenant="y"), a_job("c", tenant="x")])
        (a, b) = [await lease_ids(twin, limit=1) for _ in range(2)]
        assert (a, b) == (["a"], ["b"])
        harness.clock.jump(jump)
        assert await reap(twin) == []
        harness.clock.advance(30_000)
        assert await reap(twin) == [Outcome.SETTLED] * 2
        await twin.flow()
