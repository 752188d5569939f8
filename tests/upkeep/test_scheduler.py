"""The scheduler: one job per tick, with several schedulers, crashes and clock changes."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Receipt,
    Record,
    State,
    Status,
)
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.base import Engine, Traits
from holdfast.engines.registry import open_engine
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import ConfigError, EngineUnavailable, Exists, InvalidJob, OutcomeUnknown
from holdfast.events import Ticked
from holdfast.notation.durations import show_at
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Pruner, Scheduler
from holdfast.upkeep.scheduler import TAKEOVER_MS
from tests.upkeep.faulty_engine import FaultyEngine, RecordingListener

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def minutely(name: str = "s", **fields: Any) -> Schedule:
    job = NewJob(id="-", task="report", payload=b"1", headers={"h": "1"})
    return Schedule(**{"name": name, "job": job, "every_ms": MINUTE, **fields})


async def ids(engine: Engine) -> list[str]:
    page = await engine.find(JobFilter(), limit=1000)
    return sorted(job.id for job in page.jobs)


async def test_a_tick_becomes_a_job_with_its_origin_in_the_headers(
    engine: Engine, clock: ManualClock
) -> None:
    await Schedules(engine, clock.wall_ms).add(minutely())
    listener = RecordingListener()
    scheduler = Scheduler(engine, clock.wall_ms, tell=listener)
    start = clock.wall_ms()
    assert start % MINUTE == 0
    assert await scheduler.once() == MINUTE, "nothing is due; the next tick sets the timer"
    clock.advance(MINUTE)
    assert await scheduler.once() == MINUTE
    text = show_at(start + MINUTE)
    job = await engine.get(f"schedule:s:{text}")
    assert job is not None
    assert (job.task, job.payload, job.key) == ("report", b"1", f"schedule/s/{text}")
    assert job.headers == {"h": "1", "schedule": "s", "tick": text}
    assert listener.events == [Ticked(schedule="s", tick_at=start + MINUTE, status="new")]
    kept = await Schedules(engine, clock.wall_ms).get("s")
    assert kept is not None
    assert (kept.last_tick, kept.passed_at) == (start + MINUTE, start + MINUTE)


async def test_any_number_of_schedulers_enqueue_one_job_per_tick(
    engine: Engine, clock: ManualClock
) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    for n in range(5):
        await schedules.add(minutely(f"s{n}"))
    schedulers = [Scheduler(engine, clock.wall_ms) for _ in range(4)]
    for _ in range(10):
        clock.advance(MINUTE)
        await asyncio.gather(*(scheduler.once() for scheduler in schedulers))
    assert len(await ids(engine)) == 50


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_schedulers_with_engines_of_their_own(
    url: str, engine: Engine, clock: ManualClock
) -> None:
    others = [open_engine(url, clock=clock) for _ in range(3)]
    try:
        for other in others:
            await other.open()
        await Schedules(engine, clock.wall_ms).add(minutely())
        schedulers = [Scheduler(other, clock.wall_ms) for other in others]
        for _ in range(20):
            clock.advance(MINUTE)
            await asyncio.gather(*(scheduler.once() for scheduler in schedulers))
    finally:
        for other in others:
            await other.close()
    assert len(await ids(engine)) == 20


@pytest.mark.parametrize("where", ["before enqueue", "after enqueue", "before save"])
async def test_a_crash_between_two_steps_fires_exactly_once(clock: ManualClock, where: str) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await Schedules(engine, clock.wall_ms).add(minutely())
    clock.advance(MINUTE)
    faults = engine.after if where.startswith("after") else engine.before
    verb = where.split()[1]
    faults[verb] = [OutcomeUnknown("gone") if where.startswith("after") else EngineUnavailable("")]
    with pytest.raises((OutcomeUnknown, EngineUnavailable)):
        await Scheduler(engine, clock.wall_ms).once()
    await Scheduler(engine, clock.wall_ms).once()
    assert len(await ids(engine)) == 1
    await Scheduler(engine, clock.wall_ms).once()
    assert len(await ids(engine)) == 1


async def test_a_lost_record_does_not_fire_again_after_the_job_is_pruned(
    clock: ManualClock,
) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await engine.declare(Queue(name="default", retention_ms=0))
    await Schedules(engine, clock.wall_ms).add(minutely(every_ms=30 * DAY, missed="once"))
    clock.advance(30 * DAY)
    engine.before["save"] = [EngineUnavailable("down")]
    with pytest.raises(EngineUnavailable):
        await Scheduler(engine, clock.wall_ms).once()
    [lease] = await engine.lease(LeaseRequest(queues=("default",)))
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    await Pruner(engine).once()
    assert await ids(engine) == []
    clock.advance(6 * DAY)
    await Pruner(engine).once()
    await Scheduler(engine, clock.wall_ms).once()
    assert await ids(engine) == [], "the key outlives the job"


@pytest.mark.parametrize("seed", range(4))
async def test_a_clock_set_back_fires_nothing_twice(
    engine: Engine, clock: ManualClock, seed: int
) -> None:
    await engine.declare(Queue(name="default", retention_ms=0))
    await Schedules(engine, clock.wall_ms).add(minutely(every_ms=HOUR))
    scheduler = Scheduler(engine, clock.wall_ms)
    fired: list[str] = []
    dice = random.Random(seed)
    for step in range(150):
        clock.advance(dice.randrange(2 * HOUR))
        if step % 10 == 9:
            clock.jump(-dice.randrange(9 * HOUR))
        if step in (69, 99):
            clock.jump(-30 * HOUR)
        await scheduler.once()
        leases = await engine.lease(LeaseRequest(queues=("default",), limit=100))
        fired += [lease.id for lease in leases]
        await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
        await Pruner(engine).once()
    assert len(fired) > 20
    assert len(set(fired)) == len(fired)


async def test_a_clock_that_was_far_ahead_does_not_stop_a_schedule_for_ever(
    engine: Engine, clock: ManualClock
) -> None:
    await Schedules(engine, clock.wall_ms).add(minutely())
    scheduler = Scheduler(engine, clock.wall_ms)
    clock.jump(10 * 365 * DAY)
    await scheduler.once()
    clock.jump(-10 * 365 * DAY)
    assert await scheduler.once() == 0
    clock.advance(MINUTE)
    await scheduler.once()
    assert len(await ids(engine)) == 2


async def test_a_clock_some_hours_ahead_does_not_silence_a_schedule(
    engine: Engine, clock: ManualClock
) -> None:
    await Schedules(engine, clock.wall_ms).add(minutely())
    scheduler = Scheduler(engine, clock.wall_ms)
    clock.jump(3 * HOUR)
    await scheduler.once()
    clock.jump(-3 * HOUR)
    await scheduler.once()
    for _ in range(3):
        clock.advance(MINUTE)
        await scheduler.once()
    assert len(await ids(engine)) == 4


@pytest.mark.parametrize(("missed", "want"), [("skip", 0), ("once", 1), ("all", 3)])
async def test_ticks_missed_while_no_scheduler_ran(
    engine: Engine, clock: ManualClock, missed: Any, want: int
) -> None:
    await Schedules(engine, clock.wall_ms).add(minutely(every_ms=HOUR, missed=missed, missed_max=3))
    clock.advance(10 * HOUR + 30 * MINUTE)
    scheduler = Scheduler(engine, clock.wall_ms)
    assert await scheduler.once() == 30 * MINUTE
    assert len(await ids(engine)) == want
    clock.advance(30 * MINUTE)
    await scheduler.once()
    assert len(await ids(engine)) == want + 1


async def test_a_full_queue_is_tried_again(engine: Engine, clock: ManualClock) -> None:
    await engine.declare(Queue(name="default", accepting=False))
    await Schedules(engine, clock.wall_ms).add(minutely(every_ms=HOUR, missed="all"))
    listener = RecordingListener()
    scheduler = Scheduler(engine, clock.wall_ms, tell=listener)
    clock.advance(2 * HOUR)
    await scheduler.once()
    assert [each.status for each in listener.events if isinstance(each, Ticked)] == ["refused"]
    assert await ids(engine) == []
    await engine.declare(Queue(name="default"))
    await scheduler.once()
    assert len(await ids(engine)) == 2


async def test_one_bad_schedule_does_not_hold_up_the_others(
    engine: Engine, clock: ManualClock
) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    await schedules.add(minutely("good"))
    lost = minutely("lost", job=NewJob(id="-", task="t", queue="nowhere"))
    await schedules.add(lost)
    broken = Record(kind="schedule", key="broken", value=b"{not json")
    await engine.save([broken, replace(broken, key="empty", value=b"")])
    clock.advance(MINUTE)
    await Scheduler(engine, clock.wall_ms).once()
    assert [id_.split(":")[1] for id_ in await ids(engine)] == ["good"]
    with pytest.raises(ConfigError, match="broken cannot be read"):
        await schedules.get("broken")
    assert await schedules.remove("broken")


async def test_more_schedules_than_one_batch_holds(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    schedules = Schedules(engine, clock.wall_ms)
    for n in range(1_100):
        await schedules.add(minutely(f"s{n}"))
    assert len(await schedules.all()) == 1_100
    clock.advance(MINUTE)
    await Scheduler(engine, clock.wall_ms).once()
    tally = await engine.tally(JobFilter(), "task", limit=10)
    assert [each.count for each in tally] == [1_100]
    kept = await schedules.get("s1099")
    assert kept is not None
    assert kept.last_tick is not None


async def test_editing_at_run_time(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    scheduler = Scheduler(engine, clock.wall_ms)
    await schedules.add(minutely())
    with pytest.raises(Exists, match="exists already"):
        await schedules.add(minutely())
    await schedules.edit("s", every_ms=HOUR, job=NewJob(id="-", task="other"))
    clock.advance(MINUTE)
    await scheduler.once()
    assert await ids(engine) == []
    clock.advance(59 * MINUTE)
    await scheduler.once()
    [id_] = await ids(engine)
    job = await engine.get(id_)
    assert job is not None
    assert job.task == "other"
    for wrong, says in (
        ({"every_ms": "often"}, "int"),
        ({"cron": "@daily"}, "either"),
        ({"colour": 1}, "colour"),
        ({"passed_at": 0}, "passed_at"),
    ):
        with pytest.raises(ConfigError, match=says):
            await schedules.edit("s", **wrong)
    assert await schedules.remove("s")
    assert not await schedules.remove("s")
    with pytest.raises(ConfigError, match="does not exist"):
        await schedules.edit("s", every_ms=HOUR)


async def test_an_edited_rule_starts_from_now(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    await schedules.add(minutely(every_ms=30 * DAY, missed="all"))
    clock.advance(DAY)
    await schedules.edit("s", every_ms=HOUR)
    await Scheduler(engine, clock.wall_ms).once()
    assert await ids(engine) == []


async def test_a_pause_is_not_made_up_for(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    scheduler = Scheduler(engine, clock.wall_ms)
    await schedules.add(minutely(missed="all"))
    await schedules.pause("s")
    clock.advance(HOUR)
    assert await scheduler.once() is None
    await schedules.resume("s")
    assert await scheduler.once() == MINUTE
    assert await ids(engine) == []
    clock.advance(MINUTE)
    await scheduler.once()
    assert len(await ids(engine)) == 1


async def test_run_now_adds_one_job_besides_the_ticks(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    await schedules.add(minutely())
    for want in (Status.NEW, Status.DUPLICATE):
        assert (await schedules.run_now("s", "by-hand")).status is want
    job = await engine.get("by-hand")
    assert job is not None
    assert (job.task, job.state) == ("report", State.WAITING)
    assert job.headers == {"h": "1", "schedule": "s"}
    with pytest.raises(ConfigError, match="does not exist"):
        await schedules.run_now("nothing", "by-hand")


async def test_an_edit_and_a_tick_do_not_overwrite_each_other(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    schedules = Schedules(engine, clock.wall_ms)
    await schedules.add(minutely())
    clock.advance(MINUTE)
    real = engine.save
    raced = False

    async def racing(records: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            await Scheduler(engine, clock.wall_ms).once()
        return await real(records)

    engine.save = racing  # type: ignore[method-assign]
    edited = await schedules.edit("s", missed="all")
    assert edited.missed == "all"
    kept = await schedules.get("s")
    assert kept is not None
    assert (kept.missed, kept.last_tick) == ("all", clock.wall_ms())


async def test_a_tick_that_would_be_refused_is_refused_at_once(
    engine: Engine, clock: ManualClock
) -> None:
    headers = {f"h{number}": "" for number in range(bounds.PAIRS_MAX - 1)}
    job = NewJob(id="-", task="t", headers=headers)
    with pytest.raises(InvalidJob, match="65 headers"):
        await Schedules(engine, clock.wall_ms).add(minutely(job=job))


async def test_similar_names_are_distinct(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    names = ["a", "aa", "ab", "b", "A", "-", "ab.c"]
    for name in names:
        await schedules.add(minutely(name))
    for name in names:
        found = await schedules.get(name)
        assert found is not None
        assert found.name == name
    assert await schedules.get("ac") is None
    assert [each.name for each in await schedules.all()] == sorted(names)


async def test_preview(engine: Engine, clock: ManualClock) -> None:
    schedules = Schedules(engine, clock.wall_ms)
    daily = Schedule(name="s", job=NewJob(id="-", task="t"), cron="@daily", zone="Europe/Berlin")
    shown = [show_at(tick) for tick in schedules.preview(daily, 3, after=1_774_600_000_000)]
    assert shown == ["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]


class KeylessEngine(Wrapper):
    """An engine without keys that forgets the ids of its jobs, as a message queue does."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.sent: list[str] = []
        self.fails = False

    @property
    def traits(self) -> Traits:
        return replace(self._engine.traits, keys=False)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        if self.fails:
            raise EngineUnavailable("gone")
        assert all(job.key is None for job in jobs)
        self.sent += [job.headers["tick"] for job in jobs]
        return [Receipt(id=job.id, status=Status.NEW) for job in jobs]


async def test_without_keys_a_tick_is_claimed_sent_and_recorded(
    engine: Engine, clock: ManualClock
) -> None:
    queue = KeylessEngine(engine)
    schedules = Schedules(queue, clock.wall_ms)
    await schedules.add(minutely())
    first, second = (Scheduler(queue, clock.wall_ms) for _ in range(2))
    for _ in range(2):
        clock.advance(MINUTE)
        await asyncio.gather(first.once(), second.once())
    await first.once()
    kept = await schedules.get("s")
    assert kept is not None
    assert (len(queue.sent), len(set(queue.sent))) == (2, 2)
    assert (kept.passed_at, kept.last_tick, kept.enqueueing) == (clock.wall_ms(),) * 2 + (None,)
    with pytest.raises(ConfigError, match="cannot be set: enqueueing"):
        await schedules.edit("s", enqueueing=1)


async def test_without_keys_a_tick_of_a_killed_scheduler_is_sent_by_another(
    engine: Engine, clock: ManualClock
) -> None:
    queue = KeylessEngine(engine)
    schedules = Schedules(queue, clock.wall_ms)
    await schedules.add(minutely(every_ms=HOUR))
    clock.advance(HOUR)
    queue.fails = True
    with pytest.raises(EngineUnavailable):
        await Scheduler(queue, clock.wall_ms).once()
    queue.fails = False
    other = Scheduler(queue, clock.wall_ms)
    assert await other.once() == TAKEOVER_MS, "it may still be sending"
    assert queue.sent == []
    clock.advance(TAKEOVER_MS)
    await other.once()
    kept = await schedules.get("s")
    assert kept is not None
    assert (len(queue.sent), kept.enqueueing) == (1, None)
