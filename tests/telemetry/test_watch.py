"""Changes in the store become events once, also when the writer is killed."""

import asyncio
import random

import msgspec

from holdfast.core import breaker, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import JobFilter, Queue, Record
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.redrives import REDRIVES, RedrivePlan, RedriveRecord, RedriveState
from holdfast.telemetry.event_log import EVENTS_KIND, FeedEvent, FeedEventKind, decode_events
from holdfast.telemetry.meter import Meter, PartitionWatch
from holdfast.telemetry.watch import WATCH_KIND, StoreWatcher, WatchState, detect_changes
from holdfast.testing.clock import ManualClock
from tests.killed import Killed
from tests.telemetry.faulty_saves import FaultyEngine


async def read_events(engine: Engine) -> list[FeedEvent]:
    return [
        each
        for record in await engine.load(EVENTS_KIND, limit=1_000)
        for each in decode_events(record)
    ]


async def put(engine: Engine, kind: str, key: str, value: msgspec.Struct) -> None:
    """Write a record, replacing the present one."""
    found = [each for each in await engine.load(kind, limit=100) if each.key == key]
    version = found[0].version if found else 0
    await engine.save(
        [Record(kind=kind, key=key, value=msgspec.json.encode(value), version=version)]
    )


def worker(name: str, **changed: object) -> WorkerRecord:
    facts: dict[str, object] = {"id": f"{name}-1", "host": "h", "pid": 1, "started_at": 0}
    return msgspec.convert({"name": name, **facts, **changed}, WorkerRecord)


async def test_queues(engine: Engine, clock: ManualClock) -> None:
    watcher = StoreWatcher(engine, clock.wall_ms)
    await watcher.once()
    await engine.declare(Queue(name="mail", paused=True))
    await engine.declare(Queue(name="default", paused=True))
    await watcher.once()
    clock.advance(10)
    await engine.declare(Queue(name="default"))
    await engine.drop("mail")
    await StoreWatcher(engine, clock.wall_ms).once()
    await watcher.once()
    assert [(each.kind, each.queue) for each in await read_events(engine)] == [
        (FeedEventKind.QUEUE_PAUSED, "default"),
        (FeedEventKind.QUEUE_MADE, "mail"),
        (FeedEventKind.QUEUE_PAUSED, "mail"),
        (FeedEventKind.QUEUE_RESUMED, "default"),
        (FeedEventKind.QUEUE_DROPPED, "mail"),
    ]


async def test_the_first_look_reports_nothing(engine: Engine, clock: ManualClock) -> None:
    await engine.declare(Queue(name="mail", paused=True))
    await put(engine, workers.KIND, "w", worker("w"))
    await StoreWatcher(engine, clock.wall_ms).once()
    assert not await read_events(engine)


async def test_workers(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    watcher = StoreWatcher(engine, clock.wall_ms)

    async def next_events() -> list[tuple[str, str, str]]:
        before = len(await read_events(engine))
        clock.advance(5)
        await watcher.once()
        return [
            (each.kind, each.name, each.reason) for each in (await read_events(engine))[before:]
        ]

    assert await next_events() == []
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_events() == [(FeedEventKind.WORKER_CAME, "w", "")]
    await put(engine, workers.KIND, "w", worker("w", consecutive_failures=4))
    assert await next_events() == [(FeedEventKind.WORKER_UNWELL, "w", "degraded")]
    await put(engine, workers.KIND, "w", worker("w", consecutive_failures=20))
    assert await next_events() == [(FeedEventKind.WORKER_UNWELL, "w", "unhealthy")]
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_events() == [(FeedEventKind.WORKER_WELL, "w", "")]
    clock.advance(61_000)
    assert await next_events() == [(FeedEventKind.WORKER_WENT, "w", "silent")]
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_events() == [(FeedEventKind.WORKER_CAME, "w", "")]
    await put(engine, workers.KIND, "w", worker("w", id="w-2"))
    assert await next_events() == [
        (FeedEventKind.WORKER_WENT, "w", ""),
        (FeedEventKind.WORKER_CAME, "w", ""),
    ]
    [record] = await engine.load(workers.KIND, limit=10)
    await engine.save([msgspec.structs.replace(record, value=None)])
    assert await next_events() == [(FeedEventKind.WORKER_WENT, "w", "")]
    assert await next_events() == []


async def test_breakers_and_redrives(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    watcher = StoreWatcher(engine, clock.wall_ms)
    await watcher.once()
    opened = BreakerRecord(state=BreakerState.OPEN, last="Boom")
    await put(engine, breaker.KIND, "task:pay", opened)
    redrive = RedriveRecord(id="r1", plan=RedrivePlan(wanted=JobFilter()), total=1)
    await engine.save([REDRIVES.record(redrive.id, redrive)])
    await watcher.once()
    clock.advance(5)
    trying = BreakerRecord(state=BreakerState.HALF_OPEN, last="Boom")
    await put(engine, breaker.KIND, "task:pay", trying)
    await watcher.once()
    clock.advance(5)
    await put(engine, breaker.KIND, "task:pay", BreakerRecord())
    ended = msgspec.structs.replace(redrive, state=RedriveState.STOPPED)
    await engine.save([REDRIVES.record(ended.id, ended, 1)])
    await watcher.once()
    assert [
        (each.kind, each.name or each.id, each.reason) for each in await read_events(engine)
    ] == [
        (FeedEventKind.BREAKER_OPENED, "task:pay", ""),
        (FeedEventKind.REDRIVE_STARTED, "r1", ""),
        (FeedEventKind.BREAKER_CLOSED, "task:pay", ""),
        (FeedEventKind.REDRIVE_ENDED, "r1", "stopped"),
    ]


async def test_killed_at_any_write_each_change_is_reported_once(
    clock: ManualClock,
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}: put it into random.Random below")
    dice = random.Random(seed)
    for _ in range(30):
        engine = FaultyEngine(clock)
        await engine.open()
        await StoreWatcher(engine, clock.wall_ms).once()
        changed = []
        for number in range(20):
            await engine.declare(Queue(name=f"q{number}"))
            changed.append(f"q{number}")
            where = engine.after if dice.random() < 0.5 else engine.before
            where += [Killed() if dice.random() < 0.5 else None for _ in range(4)]
            looks = [
                asyncio.create_task(StoreWatcher(engine, clock.wall_ms).once()) for _ in range(2)
            ]
            await asyncio.gather(*looks, return_exceptions=True)
            engine.before.clear()
            engine.after.clear()
            clock.advance(dice.choice([0, 5, 1_000]))
        await StoreWatcher(engine, clock.wall_ms).once()
        assert sorted(each.queue for each in await read_events(engine)) == sorted(changed), seed


async def test_events_stay_in_order_when_a_clock_is_behind(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await StoreWatcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="a"))
    await StoreWatcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="b"))
    await StoreWatcher(engine, lambda: clock.wall_ms() - 60_000).once()
    assert [each.queue for each in await read_events(engine)] == ["a", "b"]


async def test_an_unreadable_look_starts_afresh(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await engine.save([Record(kind=WATCH_KIND, key="now", value=b"[]")])
    await StoreWatcher(engine, clock.wall_ms).once()
    assert not await read_events(engine)
    await engine.declare(Queue(name="a"))
    await StoreWatcher(engine, clock.wall_ms).once()
    assert [each.queue for each in await read_events(engine)] == ["a"]


def test_no_change_writes_no_event() -> None:
    same = WatchState(queues={"a": True}, workers={"w": ("1", "healthy")})
    assert not detect_changes(same, same)


def test_partitions_are_reported_as_this_process_sees_them() -> None:
    class View(msgspec.Struct):
        name: str
        out_ms: int | None
        text: str = ""

    class Store:
        views = (View("a", None), View("b", None))

        def partitions(self) -> tuple[View, ...]:
            return self.views

    store, meter = Store(), Meter(lambda: 0)
    watched = PartitionWatch(store)
    watched.check(meter)
    store.views = (View("a", None), View("b", 5, "gone"))
    watched.check(meter)
    watched.check(meter)
    store.views = (View("a", None), View("b", None))
    watched.check(meter)
    assert [(each.kind, each.name, each.text) for each in meter.events.take(1)] == [
        (FeedEventKind.PARTITION_OUT, "b", "gone"),
        (FeedEventKind.PARTITION_BACK, "b", ""),
    ]
    PartitionWatch(object()).check(meter)
    assert not meter.events.take(1)
