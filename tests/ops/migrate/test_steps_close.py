"""Closing the source of a move, and refusals, which change nothing."""

import asyncio

import pytest

from holdfast.core.model import JobFilter, NewJob, Queue, State
from holdfast.core.verdict import Complete, Delete, Settlement
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.ops.jobs.acts import ActPlan, Acts
from holdfast.ops.redrives import RedrivePlan, Redrives
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from tests.ops.migrate import sample_jobs
from tests.ops.migrate.sample_jobs import take
from tests.ops.migrate.stores import Stores, nothing, queues


async def test_drain_waits_for_leased_jobs(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t"), NewJob(id="waits", task="t")])
    [lease] = await take(stores.old, "runs")
    migration = stores.migration()
    await migration.begin()
    left = await migration.drain(wait_ms=0, tell=nothing)
    assert [job.id for job in left] == ["runs"]
    assert await take(stores.old, "waits") == []

    ending: list[asyncio.Future[object]] = []

    def end_it(leased: int) -> None:
        assert leased == 1
        # Follow-up jobs pass a closed queue.
        verdict = Complete(b"1", (NewJob(id="next", task="t"),))
        settlement = Settlement(lease=lease, verdict=verdict)
        ending.append(asyncio.ensure_future(stores.old.settle([settlement])))

    assert await migration.drain(wait_ms=60_000, tell=end_it) == []
    await asyncio.gather(*ending)
    await migration.copy(nothing)
    assert (await migration.compare(nothing)).is_verified
    runs = await stores.new.get("runs")
    assert runs is not None
    assert (runs.state, runs.result) == (State.DONE, b"1")
    assert await stores.new.get("next") is not None


async def test_drain_ends_overdue_leases_without_upkeep(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t")])
    await take(stores.old, "runs")
    stores.clock.advance(60_000)
    assert (await stores.move()).is_verified
    moved = await stores.new.get("runs")
    assert moved is not None
    assert (moved.state, moved.attempt, len(moved.events)) == (State.WAITING, 1, 1)


async def test_a_job_leased_in_spite_of_it_stops_the_move(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id="runs", task="t")])
    migration = stores.migration()
    await migration.begin()
    await migration.drain(wait_ms=0, tell=nothing)
    await stores.old.declare(Queue(name="default"))
    await take(stores.old, "runs")
    with pytest.raises(EngineUnavailable, match="runs was leased during the move"):
        await migration.copy(nothing)


async def test_a_target_that_is_not_empty_is_refused(stores: Stores) -> None:
    await stores.new.enqueue([NewJob(id="other", task="t")])
    with pytest.raises(UsageError, match="already has jobs"):
        await stores.migration().begin()
    await stores.new.amend(JobFilter(), Delete(), limit=10)
    schedules = Schedules(stores.new, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))
    with pytest.raises(UsageError, match="already has schedules"):
        await stores.migration().begin()
    # The refusals changed nothing.
    assert await queues(stores.old) == {"default": Queue(name="default")}


async def test_a_running_redrive_refuses_the_move(stores: Stores) -> None:
    redrives = Redrives(stores.old, stores.clock.wall_ms)
    await redrives.start(RedrivePlan(wanted=JobFilter(states=(State.DEAD,))))
    with pytest.raises(UsageError, match="is running in the source"):
        await stores.migration().begin()


async def test_a_running_act_refuses_the_move(stores: Stores) -> None:
    acts = Acts(stores.old, stores.clock.wall_ms)
    act = await acts.count(ActPlan(act="cancel"), "ann")
    await acts.run(act.id, "ann")
    with pytest.raises(UsageError, match=f"act {act.id} is running in the source"):
        await stores.migration().begin()


async def test_two_runs_of_one_move_notice_each_other(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    one, other = stores.migration(), stores.migration()
    await one.begin()
    await other.begin()
    await one.drain(wait_ms=0, tell=nothing)
    await one.copy(nothing)
    with pytest.raises(EngineUnavailable, match="another process"):
        await other.copy(nothing)
    assert (await one.compare(nothing)).is_verified


async def test_a_queue_declared_meanwhile_is_closed_too(stores: Stores) -> None:
    migration = stores.migration()
    await migration.begin()
    await stores.old.declare(Queue(name="worker.late"))
    await stores.old.enqueue([NewJob(id="late", task="t", queue="worker.late")])
    assert await migration.drain(wait_ms=0, tell=nothing) == []
    assert (await queues(stores.old))["worker.late"].paused
    await migration.copy(nothing)
    assert (await migration.compare(nothing)).is_verified
    assert (await queues(stores.new))["worker.late"] == Queue(name="worker.late")
