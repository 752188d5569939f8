"""Clocks that are wrong: one machine's harms neither the charts nor the events of others."""

from holdfast.core import limits
from holdfast.core.model import Queue
from holdfast.core.pauses import Pause
from holdfast.engines.base import Engine
from holdfast.queues import pause_queue, resume_queue
from holdfast.telemetry.notable import KIND, Kind, Notable, at_of, event_key, events_of, record_of
from holdfast.telemetry.rolling import Retention, Roller
from holdfast.telemetry.snapshots import KINDS
from holdfast.telemetry.watching import Watcher
from holdfast.testing.clock import ManualClock

YEAR_MS = 365 * limits.DAY_MS


async def test_a_clock_a_year_ahead_takes_no_history_away(
    engine: Engine, clock: ManualClock
) -> None:
    roller = Roller(engine, clock.wall_ms)
    died = Notable(kind=Kind.JOB_DIED, id="a")
    await engine.save([record_of(event_key(clock.wall_ms(), "p", 0), [died])])
    for _ in range(3):
        await roller.once()
        clock.advance(limits.MINUTE_MS)
    before = {kind: await keys(engine, kind) for kind in (*KINDS.values(), KIND)}
    await Roller(engine, lambda: clock.wall_ms() + 2 * YEAR_MS).once()
    for kind, known in before.items():
        assert known <= await keys(engine, kind), kind


async def test_events_of_a_clock_ahead_do_not_push_out_those_of_others(
    engine: Engine, clock: ManualClock
) -> None:
    for number in range(3):
        key = event_key(clock.wall_ms() + YEAR_MS, "wrong", number)
        await engine.save([record_of(key, [Notable(kind=Kind.JOB_DIED, id="old")])])
    clock.advance(limits.MINUTE_MS)
    right = event_key(clock.wall_ms(), "right", 0)
    await engine.save([record_of(right, [Notable(kind=Kind.JOB_DIED, id="new")])])
    await Roller(engine, clock.wall_ms, retention=Retention(events_max=1)).once()
    assert await keys(engine, KIND) == {right}


async def test_a_clock_that_was_far_ahead_once_is_not_followed_for_ever(
    engine: Engine, clock: ManualClock
) -> None:
    await Watcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="a"))
    await Watcher(engine, lambda: clock.wall_ms() + YEAR_MS).once()
    await engine.declare(Queue(name="b"))
    clock.advance(limits.SECOND_MS)
    await Watcher(engine, clock.wall_ms).once()
    found = await engine.load(KIND, limit=10)
    at = {event.queue: at_of(record.key) for record in found for event in events_of(record)}
    assert at["b"] == clock.wall_ms()


async def test_a_pause_that_is_over_before_anybody_looks_is_told(
    engine: Engine, clock: ManualClock
) -> None:
    watcher = Watcher(engine, clock.wall_ms)
    for _ in range(2):
        await watcher.once()
        clock.advance(limits.SECOND_MS)
        await pause_queue(engine, "default", Pause(by="ann", at=clock.wall_ms()))
        await resume_queue(engine, "default")
    for _ in range(3):
        await watcher.once()
    await pause_queue(engine, "default", Pause(by="ann", at=clock.wall_ms() + 1))
    await watcher.once()
    await resume_queue(engine, "default")
    await watcher.once()
    found = await engine.load(KIND, limit=10)
    told = [event.kind for record in found for event in events_of(record)]
    assert told == [Kind.QUEUE_PAUSED, Kind.QUEUE_RESUMED] * 3


async def keys(engine: Engine, kind: str) -> set[str]:
    return {record.key for record in await engine.load(kind, limit=100)}
