"""A wrong clock on one machine harms neither charts nor events of others."""

from holdfast.core import bounds
from holdfast.core.model import Queue
from holdfast.engines.base import Engine
from holdfast.ops.queues import Pause, pause_queue, resume_queue
from holdfast.telemetry.event_log import (
    EVENTS_KIND,
    FeedEvent,
    FeedEventKind,
    decode_events,
    event_key,
    event_record,
    key_instant,
)
from holdfast.telemetry.snapshots import KINDS, Retention, Roller
from holdfast.telemetry.watch import StoreWatcher
from holdfast.testing.clock import ManualClock

YEAR_MS = 365 * bounds.DAY_MS


async def test_a_clock_a_year_ahead_removes_no_history(engine: Engine, clock: ManualClock) -> None:
    roller = Roller(engine, clock.wall_ms)
    died = FeedEvent(kind=FeedEventKind.JOB_DIED, id="a")
    await engine.save([event_record(event_key(clock.wall_ms(), "p", 0), [died])])
    for _ in range(3):
        await roller.once()
        clock.advance(bounds.MINUTE_MS)
    before = {kind: await keys(engine, kind) for kind in (*KINDS.values(), EVENTS_KIND)}
    await Roller(engine, lambda: clock.wall_ms() + 2 * YEAR_MS).once()
    for kind, known in before.items():
        assert known <= await keys(engine, kind), kind


async def test_events_of_a_clock_ahead_do_not_displace_others(
    engine: Engine, clock: ManualClock
) -> None:
    for number in range(3):
        key = event_key(clock.wall_ms() + YEAR_MS, "wrong", number)
        await engine.save([event_record(key, [FeedEvent(kind=FeedEventKind.JOB_DIED, id="old")])])
    clock.advance(bounds.MINUTE_MS)
    right = event_key(clock.wall_ms(), "right", 0)
    await engine.save([event_record(right, [FeedEvent(kind=FeedEventKind.JOB_DIED, id="new")])])
    await Roller(engine, clock.wall_ms, retention=Retention(events_max=1)).once()
    assert await keys(engine, EVENTS_KIND) == {right}


async def test_a_clock_that_was_far_ahead_once_is_not_followed_for_ever(
    engine: Engine, clock: ManualClock
) -> None:
    await StoreWatcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="a"))
    await StoreWatcher(engine, lambda: clock.wall_ms() + YEAR_MS).once()
    await engine.declare(Queue(name="b"))
    clock.advance(bounds.SECOND_MS)
    await StoreWatcher(engine, clock.wall_ms).once()
    found = await engine.load(EVENTS_KIND, limit=10)
    at = {
        event.queue: key_instant(record.key) for record in found for event in decode_events(record)
    }
    assert at["b"] == clock.wall_ms()


async def test_a_short_pause_is_reported(engine: Engine, clock: ManualClock) -> None:
    watcher = StoreWatcher(engine, clock.wall_ms)
    for _ in range(2):
        await watcher.once()
        clock.advance(bounds.SECOND_MS)
        await pause_queue(engine, "default", Pause(by="ann", at=clock.wall_ms()))
        await resume_queue(engine, "default")
    for _ in range(3):
        await watcher.once()
    await pause_queue(engine, "default", Pause(by="ann", at=clock.wall_ms() + 1))
    await watcher.once()
    await resume_queue(engine, "default")
    await watcher.once()
    found = await engine.load(EVENTS_KIND, limit=10)
    kinds = [event.kind for record in found for event in decode_events(record)]
    assert kinds == [FeedEventKind.QUEUE_PAUSED, FeedEventKind.QUEUE_RESUMED] * 3


async def keys(engine: Engine, kind: str) -> set[str]:
    return {record.key for record in await engine.load(kind, limit=100)}
