"""Fairness between the tenants of one queue: by turns and weights, or noisy ones last."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_limit,
    a_queue,
    case,
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
from holdfast.core.fairness import CREDIT, TURN, TenantView
from holdfast.core.model import Flow, JobFilter, NewJob, Waits
from holdfast.core.verdict import Cancel, Complete, Delete, Edit, Move, Retry
from holdfast.errors import UsageError

BAD_SETTINGS: tuple[dict[str, Any], ...] = (
    {"fairness": "most"},
    {"weights": {"x": 0}},
    {"weights": {"x": 1_001}},
    {"weights": {"\0": 1}},
    {"weights": {f"t{n}": 1 for n in range(1_001)}},
)


def of(tenant: str, count: int, **fields: Any) -> list[NewJob]:
    """x0, x1 and so on."""
    return [a_job(f"{tenant}{n}", tenant=tenant, **fields) for n in range(count)]


async def shared(twin: Twin, **settings: Any) -> None:
    await twin.declare(a_queue(**{"fairness": "shares"} | settings))


class TurnContract:
    """Tenants in turn and by weight."""

    @needs("fairness")
    async def test_tenants_take_turns(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 5), *of("y", 2), *of("z", 1)])
        expected = ["x0", "y0", "z0", "x1", "y1", "x2", "x3", "x4"]
        assert await lease_ids(twin, limit=10) == expected

    @needs("fairness")
    async def test_turns_go_on_from_call_to_call(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 3), *of("y", 3), *of("z", 1)])
        assert [*await lease_ids(twin, limit=1), *await lease_ids(twin, limit=1)] == ["x0", "y0"]
        assert await lease_ids(twin, limit=2) == ["z0", "x1"]
        assert await lease_ids(twin, limit=9) == ["y1", "x2", "y2"]

    @needs("fairness")
    async def test_weights(self, twin: Twin) -> None:
        await shared(twin, weights={"x": 3})
        await twin.enqueue([*of("y", 3), *of("x", 9)])
        expected = ["y0", "x0", "x1", "x2", "y1", "x3", "x4", "x5", "y2", "x6", "x7", "x8"]
        taken = await lease_ids(twin, limit=20)
        assert sorted(taken[:8]) == sorted(expected[:8])
        assert sorted(taken) == sorted(expected)

    @needs("fairness")
    async def test_weights_change_at_once(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 9), *of("y", 9)])
        assert await lease_ids(twin, limit=4) == ["x0", "y0", "x1", "y1"]
        await shared(twin, weights={"y": 4})
        taken = await lease_ids(twin, limit=10)
        assert sum(id_.startswith("y") for id_ in taken) >= 7

    @needs("fairness")
    async def test_a_quiet_tenant_has_credit_for_a_while(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 20)])
        assert len(await lease_ids(twin, limit=10)) == 10
        await twin.enqueue(of("y", 5))
        expected = ["y0", "y1", "y2", "y3", "y4", "x10", "x11"]
        assert await lease_ids(twin, limit=7) == expected

    @needs("fairness")
    async def test_the_credit_for_being_quiet_is_bounded(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue(of("x", 160))
        assert len(await lease_ids(twin, limit=150)) == 150
        await twin.enqueue(of("y", 120))
        # The clock of the queue stands at the turn in which x took its last two.
        credit = CREDIT // TURN + 2
        taken = [id_ for _ in range(6) for id_ in await lease_ids(twin, limit=20)]
        assert taken[:credit] == [f"y{n}" for n in range(credit)]
        assert taken[credit : credit + 4] == ["x150", f"y{credit}", "x151", f"y{credit + 1}"]

    @needs("priority", "fairness")
    async def test_priority_comes_before_fairness(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 2), *of("y", 1)])
        await twin.enqueue([a_job(f"x{n}", tenant="x", priority=1) for n in (7, 8)])
        await twin.enqueue([a_job("y9", tenant="y", priority=1)])
        # Jobs of x that started at the higher priority count in its turn.
        assert await lease_ids(twin, limit=20) == ["x7", "y9", "x8", "y0", "x0", "x1"]

    @needs("fairness")
    @pytest.mark.parametrize(
        ("limit", "quantum"), [(1, 1), (24, 1), (25, 2), (50, 3), (75, 4), (100, 4), (1_000, 4)]
    )
    async def test_a_large_call_takes_some_of_each_in_a_row(
        self, twin: Twin, limit: int, quantum: int
    ) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 6), *of("y", 6)])
        taken = await lease_ids(twin, limit=limit)
        assert (
            taken[: 2 * quantum]
            == [f"{tenant}{n}" for tenant in "xy" for n in range(quantum)][:limit]
        )

    @needs("fairness")
    async def test_jobs_without_a_tenant_are_of_one(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*jobs("abc"), *of("x", 2)])
        assert await lease_ids(twin, limit=20) == ["a", "x0", "b", "x1", "c"]

    @needs("fairness")
    async def test_a_quiet_tenant_behind_a_loud_one(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue(of("x", 200))
        await lease_ids(twin, limit=30)
        await twin.enqueue(of("y", 10))
        assert await lease_ids(twin, limit=10) == [f"y{n}" for n in range(10)]

    @needs("limits", "fairness")
    async def test_a_tenant_over_its_limit_is_passed_over(self, twin: Twin) -> None:
        await shared(twin, limits=(a_limit(concurrency=2, key="{tenant}"),))
        await twin.enqueue([*of("x", 5), *of("y", 1), *of("z", 5)])
        assert await lease_ids(twin, limit=20) == ["x0", "y0", "z0", "x1", "z1"]
        assert await lease_ids(twin, limit=20) == []

    @needs("limits", "fairness")
    async def test_a_turn_ends_where_the_slots_do(self, twin: Twin) -> None:
        await shared(twin, limits=(a_limit(concurrency=3, key="{tenant}"),))
        await twin.enqueue([*of("x", 5), *of("y", 5)])
        assert await lease_ids(twin, limit=100) == ["x0", "x1", "x2", "y0", "y1", "y2"]

    @needs("limits", "fairness")
    async def test_a_tenant_of_several_lanes_has_one_turn(self, twin: Twin) -> None:
        """Otherwise a tenant with many tasks would get many shares."""
        limits = (a_limit(concurrency=100, key="{task}"),)
        await shared(twin, limits=limits)
        await twin.enqueue([a_job(f"x{n}", tenant="x", task=f"t{n % 3}") for n in range(6)])
        await twin.enqueue(of("y", 3))
        assert await lease_ids(twin, limit=6) == ["x0", "y0", "x1", "y1", "x2", "y2"]

    @needs("fairness")
    async def test_turns_among_the_requested_tasks(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 2, task="other"), *of("y", 2)])
        assert await lease_ids(twin, limit=20, tasks=frozenset({"work"})) == ["y0", "y1"]
        assert await lease_ids(twin, limit=20) == ["x0", "x1"]

    @needs("inspect", "fairness")
    async def test_leasing_by_id_is_no_turn(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 4), *of("y", 2)])
        assert await lease_ids(twin, limit=20, queues=(), ids=("x3", "x2")) == ["x3", "x2"]
        assert await lease_ids(twin, limit=20) == ["x0", "y0", "x1", "y1"]

    @needs("fairness")
    async def test_delayed_and_expired_jobs(self, harness: Harness, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue(
            [*of("x", 1, delay_ms=9), *of("y", 1, expires_ms=0), *of("z", 2), *of("w", 1)]
        )
        assert await lease_ids(twin, limit=20) == ["z0", "w0", "z1"]
        harness.clock.advance(9)
        assert await lease_ids(twin, limit=20) == ["x0"]

    @needs("groups", "fairness")
    async def test_groups_among_tenants(self, twin: Twin) -> None:
        await shared(twin, group_batch=2)
        await twin.enqueue([*of("x", 4, group="g"), *of("y", 3)])
        # A batch counts as many as it has, so y makes up for it.
        assert await lease_ids(twin, limit=5) == ["x0", "x1", "y0", "y1", "y2"]

    @needs("fairness")
    async def test_a_retried_job_and_a_reaped_one(self, harness: Harness, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 2), *of("y", 2)])
        x0, _ = await twin.lease(from_default(2, lease_ms=10))
        await settle(twin, x0, Retry())
        harness.clock.advance(10)
        await reap(twin)
        assert await work_off(twin) == ["x1", "y1", "x0", "y0"]

    @needs("fairness")
    async def test_switched_on_with_a_backlog(self, twin: Twin) -> None:
        await twin.enqueue([*of("x", 4), *of("y", 2)])
        assert await lease_ids(twin, limit=2) == ["x0", "x1"]
        await shared(twin)
        assert await lease_ids(twin, limit=20) == ["x2", "y0", "x3", "y1"]

    @needs("fairness")
    async def test_switched_off_with_a_backlog_and_on_again(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 6), *of("y", 4)])
        assert await lease_ids(twin, limit=3) == ["x0", "y0", "x1"]
        await twin.declare(a_queue())
        assert await lease_ids(twin, limit=2) == ["x2", "x3"]
        await shared(twin)
        # No turn moved while fairness was off.
        assert await lease_ids(twin, limit=20) == ["y1", "x4", "y2", "x5", "y3"]

    @needs("inspect", "fairness")
    async def test_a_moved_job_joins_its_tenant_there(self, twin: Twin) -> None:
        await twin.declare(a_queue("q"))
        await shared(twin)
        await twin.enqueue([*of("x", 2), *of("y", 2, queue="q")])
        await twin.amend(JobFilter(queue="q"), Move(queue="default"))
        assert await lease_ids(twin, limit=20) == ["x0", "y0", "x1", "y1"]

    @needs("keys", "fairness")
    async def test_a_replaced_job_changes_its_tenant(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([a_job("a", tenant="x", key="k"), *of("x", 2)])
        await twin.enqueue([a_job("b", tenant="y", key="k", key_policy="replace")])
        flow = await twin.flow()
        assert [(view.tenant, view.waiting) for view in flow.tenants] == [("x", 2), ("y", 1)]
        assert await lease_ids(twin, limit=20) == ["x0", "a", "x1"]

    @needs("inspect", "priority", "fairness")
    async def test_heads_that_are_taken_away(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 3), *of("y", 3)])
        await twin.amend(JobFilter(ids=("x0",)), Cancel())
        await twin.amend(JobFilter(ids=("y0",)), Delete())
        await twin.amend(JobFilter(ids=("y2",)), Edit(priority=1))
        assert await lease_ids(twin, limit=20) == ["y2", "x1", "x2", "y1"]

    @needs("dependencies", "fairness")
    async def test_children_among_tenants(self, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([a_job("p", tenant="x"), *of("y", 2, after=("p",)), *of("x", 2)])
        await end(twin, await lease_one(twin))
        assert await lease_ids(twin, limit=20) == ["y0", "y1", "x0", "x1"]

    @needs("fairness")
    async def test_a_dropped_queue_forgets_the_turns(self, twin: Twin) -> None:
        await twin.declare(a_queue("q", fairness="shares"))
        await twin.enqueue([*of("x", 3, queue="q")])
        await lease_ids(twin, limit=20, queues=("q",))
        await twin.drop("q")
        await twin.declare(a_queue("q", fairness="shares"))
        await twin.enqueue([*of("x", 2, queue="q"), *of("y", 2, queue="q")])
        assert await lease_ids(twin, limit=20, queues=("q",)) == ["x0", "y0", "x1", "y1"]

    @needs("fairness")
    async def test_several_queues_in_one_call(self, twin: Twin) -> None:
        await shared(twin)
        await twin.declare(a_queue("q"))
        await twin.enqueue([*of("x", 2), *of("y", 1), *jobs("ab", queue="q")])
        assert await lease_ids(twin, limit=20, queues=("q", "default")) == [
            "a",
            "b",
            "x0",
            "y0",
            "x1",
        ]

    async def test_settings_out_of_bounds(self, twin: Twin) -> None:
        for settings in BAD_SETTINGS:
            with case(settings):
                with pytest.raises(UsageError) as caught:
                    await shared(twin, **settings)
                assert caught.value.code == "invalid_queue"


@needs("fairness")
class NoisyTenantContract:
    """Noisy tenants go last; views of tenants."""

    async def test_many_leases_make_a_tenant_noisy(self, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue([*of("x", 60), *of("y", 3), *jobs("ab")])
        assert await lease_ids(twin, limit=29) == [f"x{n}" for n in range(29)]
        # Judged at the start of each call: 29 are not yet too many.
        assert await lease_ids(twin, limit=2) == ["x29", "x30"]
        assert await lease_ids(twin, limit=7) == ["y0", "y1", "y2", "a", "b", "x31", "x32"]

    async def test_a_noisy_tenant_alone_goes_on(self, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue(of("x", 80))
        assert len(await lease_ids(twin, limit=40)) == 40
        assert len(await lease_ids(twin, limit=100)) == 40

    async def test_a_tenth_of_the_leases_is_no_noise(self, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue([job for n in range(10) for job in of(f"t{n}-", 30)])
        await lease_ids(twin, limit=300)
        views = (await twin.flow()).tenants
        assert [view.noisy for view in views] == [False] * 10

    @needs("inspect")
    async def test_long_runs_make_a_tenant_noisy(self, harness: Harness, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue([*of("x", 5), *of("y", 5)])
        x = await lease_one(twin)
        harness.clock.advance(900)
        await end(twin, x)
        # No other tenant has run yet: a new tenant need not wait for that.
        assert await lease_ids(twin, limit=1) == ["y0"]
        y = await lease_one(twin, queues=(), ids=("y1",))
        harness.clock.advance(50)
        await end(twin, y)
        views = {view.tenant: view for view in (await twin.flow()).tenants}
        assert (views["x"].noisy, views["y"].noisy) == (True, False)
        assert round(views["x"].share, 2) == 0.95
        assert await lease_ids(twin, limit=20) == ["y2", "y3", "y4", "x1", "x2", "x3", "x4"]

    @needs("inspect")
    async def test_old_processing_time_counts_less(self, harness: Harness, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue([*of("x", 3), *of("y", 3)])
        x = await lease_one(twin, lease_ms=1_000_000)
        harness.clock.advance(1_000)
        await end(twin, x)
        y = await lease_one(twin, queues=(), ids=("y0",), lease_ms=1_000_000)
        harness.clock.advance(60_000)
        await end(twin, y)
        views = {view.tenant: view for view in (await twin.flow()).tenants}
        # After a minute 1,000 ms count as 500.
        assert views["x"].share == round(500 / 60_500, 6)
        harness.clock.advance(3_600_000)
        assert [view.share for view in (await twin.flow()).tenants] == [0.0, 0.0]

    @needs("priority")
    async def test_priority_comes_before_noise(self, twin: Twin) -> None:
        await shared(twin, fairness="noisy")
        await twin.enqueue([*of("x", 30), *of("y", 2)])
        await lease_ids(twin, limit=30)
        await twin.enqueue([a_job("x77", tenant="x", priority=1), a_job("x78", tenant="x")])
        assert await lease_ids(twin, limit=20) == ["x77", "y0", "y1", "x78"]

    @needs("inspect")
    async def test_every_end_of_a_lease_counts_once(self, harness: Harness, twin: Twin) -> None:
        await shared(twin)
        await twin.enqueue([*of("x", 2), *of("y", 4)])
        x, y = await twin.lease(from_default(2, lease_ms=100))
        harness.clock.advance(100)
        await reap(twin)
        assert (await twin.require("x0")).attempt == 1
        # Late: that lease is over, and its time has been counted.
        await end(twin, x, y)
        y1 = await lease_one(twin, queues=(), ids=("y1",))
        harness.clock.advance(100)
        await settle(twin, y1, Retry())
        y2 = await lease_one(twin, queues=(), ids=("y2",))
        harness.clock.advance(100)
        await twin.amend(JobFilter(ids=("y2",)), Delete(force=True))
        assert await settle(twin, y2, Complete()) == "lost"
        (x_view, y_view) = (await twin.flow()).tenants
        assert round(x_view.share, 2) == 0.25
        assert round(y_view.share, 2) == 0.75

    async def test_the_time_of_an_unfair_queue_is_not_counted(
        self, harness: Harness, twin: Twin
    ) -> None:
        await twin.enqueue([*of("x", 3), *of("y", 1)])
        x0, x1 = await twin.lease(from_default(2))
        harness.clock.advance(100)
        await end(twin, x0)
        await shared(twin)
        flow = await twin.flow()
        assert [(view.tenant, view.leased, view.share) for view in flow.tenants] == [
            ("x", 1, 0.0),
            ("y", 0, 0.0),
        ]
        await end(twin, x1)
        assert (await twin.flow()).tenants[0].share == 1.0

    @needs("inspect", "dependencies")
    async def test_views_of_tenants(self, harness: Harness, twin: Twin) -> None:
        await shared(twin, weights={"x": 5})
        await twin.enqueue([*of("x", 3), *of("y", 1, delay_ms=90), *jobs("a")])
        harness.clock.advance(7)
        await twin.enqueue(of("z", 1, after=("y0",)))
        await lease_one(twin, queues=(), ids=("x0",))
        views = {
            "": TenantView(
                tenant="", weight=1, waiting=1, leased=0, share=0.0, oldest_age_ms=7, noisy=False
            ),
            "x": TenantView(
                tenant="x", weight=5, waiting=2, leased=1, share=0.0, oldest_age_ms=7, noisy=False
            ),
            "y": TenantView(
                tenant="y", weight=1, waiting=1, leased=0, share=0.0, oldest_age_ms=None,
                noisy=False,
            ),
            "z": TenantView(
                tenant="z", weight=1, waiting=1, leased=0, share=0.0, oldest_age_ms=None,
                noisy=False,
            ),
        }  # fmt: skip
        assert await twin.flow() == Flow(tenants=tuple(views.values()))
        assert await twin.flow(limit=2) == Flow(tenants=(views[""], views["x"]))
        assert await twin.waits("x1") == Waits(tenant=views["x"])
        assert await twin.waits("a") == Waits(tenant=views[""])
        assert await twin.waits("z0") == Waits(parents=("y0",), parent_count=1, tenant=views["z"])
        await twin.declare(a_queue())
        assert await twin.flow() == Flow()
        assert await twin.waits("x1") == Waits()
