"""The comparison of source and target: no job starts before it, and it misses no difference."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Queue, Record
from holdfast.core.verdict import Complete, Delete, Edit, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.migrate import steps
from holdfast.ops.migrate.progress import SourceProgress
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.upkeep import Reaper
from tests.ops.migrate import sample_jobs
from tests.ops.migrate.sample_jobs import all_of, mover_of, take
from tests.ops.migrate.stores import Stores, nothing, queues


async def test_no_job_starts_before_the_comparison(stores: Stores) -> None:
    await sample_jobs.fill(stores.old)
    migration = await stores.copied()
    assert all(each.paused and not each.accepting for each in (await queues(stores.new)).values())
    await stores.old.amend(JobFilter(ids=("p1",)), Edit(priority=9), limit=1)
    await stores.old.amend(JobFilter(ids=("later",)), Delete(), limit=1)
    await stores.new.amend(JobFilter(ids=("off",)), Delete(), limit=1)
    moved = await migration.compare(nothing)
    assert not moved.is_verified
    assert moved.comparison is not None
    assert moved.comparison.wrong_count == 3
    assert sorted(moved.comparison.wrong) == [
        "job later is no longer in the source",
        "job off is not in the target",
        "job p1 was changed in the source or the target during the move",
    ]
    assert all(each.paused for each in (await queues(stores.new)).values())


async def test_another_order_is_reported(stores: Stores) -> None:
    await stores.old.enqueue([NewJob(id=id_, task="t") for id_ in "abc"])
    migration = await stores.copied()
    wholes = [each for each in await all_of(mover_of(stores.new)) if each.job.id == "a"]
    await stores.new.amend(JobFilter(ids=("a",)), Delete(), limit=1)
    await mover_of(stores.new).adopt(wholes)
    moved = await migration.compare(nothing)
    assert moved.comparison is not None
    assert not moved.is_verified
    told = {f"job {id_} is at another place in the order" for id_ in "abc"}
    assert set(moved.comparison.wrong) == told
    assert all(each.paused for each in (await queues(stores.new)).values())


async def test_records_are_compared_too(stores: Stores) -> None:
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    await schedules.add(Schedule(name="nightly", every_ms=1000, job=NewJob(id="n", task="t")))

    class Meddled(MemoryEngine):
        """Removes each schedule as soon as it is copied."""

        async def save(self, records: Sequence[Record]) -> list[Saved]:
            answers = await super().save(records)
            gone = [replace(each, value=None, version=1) for each in records]
            await super().save([each for each in gone if each.kind == "schedule"])
            return answers

    stores.new = Meddled(clock=stores.clock)
    await stores.new.open()
    moved = await stores.move()
    assert moved.comparison is not None
    assert moved.comparison.wrong == [
        "the schedule nightly was changed in the target during the move"
    ]
    assert not moved.is_verified


async def test_a_schedule_that_was_removed_before_the_next_run_is_not_moved(
    stores: Stores,
) -> None:
    schedules = Schedules(stores.old, stores.clock.wall_ms)
    for name in ("kept", "gone"):
        await schedules.add(Schedule(name=name, every_ms=1000, job=NewJob(id="n", task="t")))
    await stores.copied()
    await steps.copy_records(stores.old, stores.new, SourceProgress(id="x", to="new"))
    await schedules.remove("gone")
    assert (await stores.move()).is_verified
    there = await Schedules(stores.new, stores.clock.wall_ms).all()
    assert [each.name for each in there] == ["kept"]


@pytest.mark.parametrize("side", ["old", "new"])
async def test_jobs_ended_by_upkeep_are_no_difference(stores: Stores, side: str) -> None:
    ms = 1000
    await stores.old.declare(Queue(name="short", retention_ms=5 * ms))
    await stores.old.enqueue(
        [
            NewJob(id="parent", task="t", expires_ms=10 * ms),
            NewJob(id="child", task="t", after=("parent",)),
            NewJob(id="over", task="t", queue="short"),
            NewJob(id="stays", task="t"),
        ]
    )
    [lease] = await take(stores.old, "over")
    await stores.old.settle([Settlement(lease=lease, verdict=Complete())])
    migration = await stores.copied()
    stores.clock.advance(20 * ms)
    engine = stores.old if side == "old" else stores.new
    await Reaper(engine).once()
    past = await engine.finished(10)
    await engine.amend(JobFilter(ids=tuple(job.id for job in past)), Delete(), limit=10)
    moved = await migration.compare(nothing)
    assert moved.comparison is not None
    assert (moved.is_verified, moved.comparison.ended) == (True, 3)
