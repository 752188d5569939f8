"""Schedules that code declares: stored at every start, changed by the program that started last."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.model import JobFilter, NewJob, Record
from holdfast.engines.base import Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.ops.schedules import Schedules
from holdfast.ops.schedules.declared import (
    PROGRAMS,
    DeclaredSchedules,
    ScheduleSync,
    describe_sync,
    save_schedules,
)
from holdfast.ops.ticks import Schedule
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Scheduler
from tests.server.samples import caller

MINUTE = 60_000
EARLY, LATE = 1_000, 2_000


class RacingEngine(MemoryEngine):
    """Counts what is written, and calls `before_save` once, before the first schedule is saved."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.written: list[str] = []
        self.before_save: Any = None

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        if self.before_save is not None and records[0].kind == "schedule":
            act, self.before_save = self.before_save, None
            await act()
        self.written += [f"{record.kind} {record.key}" for record in records]
        return await super().save(records)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> RacingEngine:
    engine = RacingEngine(clock)
    await engine.open()
    return engine


def schedule(name: str = "s", **fields: Any) -> Schedule:
    given = {"every_ms": MINUTE, "job": NewJob(id=f"schedule:{name}", task="t"), **fields}
    return Schedule(name=name, **given)


def declared(*schedules: Schedule, program: str = "shop", keep: bool = False) -> DeclaredSchedules:
    return DeclaredSchedules(program=program, schedules=schedules, keep=keep)


async def publish(
    engine: MemoryEngine, clock: ManualClock, given: DeclaredSchedules, started_at: int = EARLY
) -> ScheduleSync:
    return await save_schedules(engine, given, started_at, clock.wall_ms)


async def stored(engine: MemoryEngine, clock: ManualClock) -> dict[str, Schedule]:
    return {each.name: each for each in await Schedules(engine, clock.wall_ms).all()}


async def test_a_declared_schedule_is_stored_with_its_program(
    engine: RacingEngine, clock: ManualClock
) -> None:
    job = NewJob(id="schedule:s", task="t", queue="new")
    sync = await publish(engine, clock, declared(schedule(job=job)))
    assert sync == ScheduleSync(added=("s",))
    found = (await stored(engine, clock))["s"]
    assert (found.program, found.passed_at) == ("shop", clock.wall_ms())
    assert "new" in {view.queue.name for view in await engine.queues()}, "its ticks need it"


async def test_a_program_without_schedules_writes_nothing(
    engine: RacingEngine, clock: ManualClock
) -> None:
    assert await publish(engine, clock, declared()) == ScheduleSync()
    assert engine.written == []


async def test_many_workers_that_start_write_a_schedule_once(
    engine: RacingEngine, clock: ManualClock
) -> None:
    starts = [EARLY + number for number in (5, 3, 9, 1, 7, 2, 8, 4, 6, 0)]
    syncs = await asyncio.gather(
        *(publish(engine, clock, declared(schedule()), started_at) for started_at in starts)
    )
    assert [each for each in syncs if each.added] == [ScheduleSync(added=("s",))]
    assert engine.written.count("schedule s") == 1
    program = await PROGRAMS.read(engine, "shop")
    assert program is not None
    assert program.value is not None
    assert program.value.started_at == EARLY + 9


async def test_a_restart_neither_loses_nor_doubles_a_tick(
    engine: RacingEngine, clock: ManualClock
) -> None:
    await publish(engine, clock, declared(schedule()))
    scheduler = Scheduler(engine, clock.wall_ms)
    for start in range(4):
        clock.advance(MINUTE)
        # A tick is due when the worker starts.
        sync = await publish(engine, clock, declared(schedule()), EARLY + start + 1)
        assert sync == ScheduleSync()
        await scheduler.once()
    assert len((await engine.find(JobFilter(), limit=100)).jobs) == 4


async def test_a_changed_rule_starts_from_now_and_stays_paused(
    engine: RacingEngine, clock: ManualClock
) -> None:
    await publish(engine, clock, declared(schedule()))
    await Schedules(engine, clock.wall_ms).pause("s")
    clock.advance(10 * MINUTE)
    sync = await publish(engine, clock, declared(schedule(every_ms=5 * MINUTE)), LATE)
    assert sync == ScheduleSync(changed=("s",))
    found = (await stored(engine, clock))["s"]
    assert (found.every_ms, found.paused) == (5 * MINUTE, True)
    assert found.passed_at == clock.wall_ms()


async def test_another_job_keeps_the_ticks(engine: RacingEngine, clock: ManualClock) -> None:
    await publish(engine, clock, declared(schedule()))
    before = (await stored(engine, clock))["s"]
    clock.advance(3 * MINUTE)
    other = schedule(job=NewJob(id="schedule:s", task="other"))
    assert (await publish(engine, clock, declared(other), LATE)).changed == ("s",)
    after = (await stored(engine, clock))["s"]
    assert (after.job.task, after.passed_at) == ("other", before.passed_at)


async def test_what_a_person_edited_is_restored(engine: RacingEngine, clock: ManualClock) -> None:
    await publish(engine, clock, declared(schedule()))
    await Schedules(engine, clock.wall_ms).edit("s", missed="skip")
    assert (await publish(engine, clock, declared(schedule()), LATE)).changed == ("s",)
    assert (await stored(engine, clock))["s"].missed == "once"


async def test_only_schedules_of_the_same_program_are_removed(
    engine: RacingEngine, clock: ManualClock
) -> None:
    await Schedules(engine, clock.wall_ms).add(schedule("by-hand"))
    await publish(engine, clock, declared(schedule("theirs"), program="other"))
    await publish(engine, clock, declared(schedule("a"), schedule("b")))
    assert (await publish(engine, clock, declared(schedule("a")), LATE)).removed == ("b",)
    assert set(await stored(engine, clock)) == {"a", "by-hand", "theirs"}
    assert (await publish(engine, clock, declared(), LATE + 1)).removed == ("a",)
    assert set(await stored(engine, clock)) == {"by-hand", "theirs"}


async def test_removal_can_be_switched_off(engine: RacingEngine, clock: ManualClock) -> None:
    await publish(engine, clock, declared(schedule("a"), schedule("b")))
    assert await publish(engine, clock, declared(schedule("a"), keep=True), LATE) == ScheduleSync()
    assert set(await stored(engine, clock)) == {"a", "b"}


@pytest.mark.parametrize("owner", [None, "other"])
async def test_a_name_that_someone_else_has_is_refused(
    engine: RacingEngine, clock: ManualClock, owner: str | None
) -> None:
    if owner is None:
        await Schedules(engine, clock.wall_ms).add(schedule(every_ms=7 * MINUTE))
    else:
        await publish(engine, clock, declared(schedule(every_ms=7 * MINUTE), program=owner))
    sync = await publish(engine, clock, declared(schedule()))
    assert sync == ScheduleSync(refused=("s",))
    found = (await stored(engine, clock))["s"]
    assert (found.every_ms, found.program) == (7 * MINUTE, owner)
    [(level, text)] = describe_sync(sync, "shop")
    assert level == logging.WARNING
    assert text.startswith("the code of shop cannot store schedule s: a person or another program")


async def test_a_program_that_started_earlier_changes_nothing(
    engine: RacingEngine, clock: ManualClock
) -> None:
    await publish(engine, clock, declared(schedule("a"), schedule("b")))
    await publish(engine, clock, declared(schedule("a", every_ms=2 * MINUTE)), LATE)
    before = await stored(engine, clock)
    # A worker of the old version is slow to import its code.
    old = declared(schedule("a"), schedule("b"))
    assert await publish(engine, clock, old, EARLY + 1) == ScheduleSync(superseded=True)
    assert await stored(engine, clock) == before
    # A worker of the old version starts again: the last start counts.
    assert (await publish(engine, clock, old, LATE + 1)).added == ("b",)


@pytest.mark.parametrize("old", ["changes", "adds", "removes"])
async def test_a_program_that_is_overtaken_takes_its_changes_back(
    engine: RacingEngine, clock: ManualClock, old: str
) -> None:
    new = declared(schedule("a"), schedule("b"))
    await publish(engine, clock, new)
    late = {
        "changes": declared(schedule("a", every_ms=9 * MINUTE), schedule("b")),
        "adds": declared(schedule("a"), schedule("b"), schedule("c")),
        "removes": declared(schedule("a")),
    }[old]
    before = await stored(engine, clock)

    async def overtake() -> None:
        # It finds everything as it declares it, and writes no schedule.
        assert await publish(engine, clock, new, LATE) == ScheduleSync()

    engine.before_save = overtake
    assert await publish(engine, clock, late, EARLY + 1) == ScheduleSync(superseded=True)
    assert await stored(engine, clock) == before


async def test_a_start_noted_by_a_wrong_clock_does_not_count(
    engine: RacingEngine, clock: ManualClock
) -> None:
    future = clock.wall_ms() + 24 * 60 * MINUTE
    await publish(engine, clock, declared(schedule()), future)
    changed = declared(schedule(every_ms=2 * MINUTE))
    assert (await publish(engine, clock, changed, clock.wall_ms())).changed == ("s",)


async def test_an_unreadable_schedule_is_left_alone(
    engine: RacingEngine, clock: ManualClock
) -> None:
    await engine.save([Record(kind="schedule", key="s", value=b"{", version=0)])
    assert (await publish(engine, clock, declared(schedule()))).refused == ("s",)


async def test_a_person_cannot_claim_a_program(engine: RacingEngine, clock: ManualClock) -> None:
    await Schedules(engine, clock.wall_ms).add(replace(schedule(), program="shop"))
    assert (await stored(engine, clock))["s"].program is None


async def test_only_operators_may_publish(engine: RacingEngine, clock: ManualClock) -> None:
    consumer = AuthorizedEngine(engine, caller("consume", "produce", "observe"))
    with pytest.raises(Forbidden, match='"operate"'):
        await save_schedules(consumer, declared(schedule()), EARLY, clock.wall_ms)
    assert await stored(engine, clock) == {}
    operator = AuthorizedEngine(engine, caller("operate"))
    sync = await save_schedules(operator, declared(schedule()), EARLY, clock.wall_ms)
    assert sync.added == ("s",)
