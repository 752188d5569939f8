"""What changes in the store is told once, whoever did it, also when the teller is killed."""

import asyncio
import random

import msgspec

from holdfast.core import breaker, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import JobFilter, Queue, Record
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.telemetry.meter import Meter
from holdfast.telemetry.notable import KIND, Kind, Notable, events_of
from holdfast.telemetry.partitions import Partitions
from holdfast.telemetry.watching import STATE_KIND, Watched, Watcher, changes
from holdfast.testing.clock import ManualClock
from holdfast.upkeep.redrive import RedrivePlan, RedriveRecord, RedriveState
from holdfast.upkeep.redrives import encode as encode_redrive
from tests.killed import Killed
from tests.telemetry.doubles import FaultyEngine


async def told(engine: Engine) -> list[Notable]:
    return [each for record in await engine.load(KIND, limit=1_000) for each in events_of(record)]


async def put(engine: Engine, kind: str, key: str, value: msgspec.Struct) -> None:
    """In place of what is there."""
    found = [each for each in await engine.load(kind, limit=100) if each.key == key]
    version = found[0].version if found else 0
    await engine.save(
        [Record(kind=kind, key=key, value=msgspec.json.encode(value), version=version)]
    )


def worker(name: str, **changed: object) -> WorkerRecord:
    facts: dict[str, object] = {"id": f"{name}-1", "host": "h", "pid": 1, "started_at": 0}
    return msgspec.convert({"name": name, **facts, **changed}, WorkerRecord)


async def test_queues(engine: Engine, clock: ManualClock) -> None:
    watcher = Watcher(engine, clock.wall_ms)
    await watcher.once()
    await engine.declare(Queue(name="mail", paused=True))
    await engine.declare(Queue(name="default", paused=True))
    await watcher.once()
    clock.advance(10)
    await engine.declare(Queue(name="default"))
    await engine.drop("mail")
    await Watcher(engine, clock.wall_ms).once()
    await watcher.once()
    assert [(each.kind, each.queue) for each in await told(engine)] == [
        (Kind.QUEUE_PAUSED, "default"),
        (Kind.QUEUE_MADE, "mail"),
        (Kind.QUEUE_PAUSED, "mail"),
        (Kind.QUEUE_RESUMED, "default"),
        (Kind.QUEUE_DROPPED, "mail"),
    ]


async def test_what_was_there_before_anybody_watched_is_no_news(
    engine: Engine, clock: ManualClock
) -> None:
    await engine.declare(Queue(name="mail", paused=True))
    await put(engine, workers.KIND, "w", worker("w"))
    await Watcher(engine, clock.wall_ms).once()
    assert not await told(engine)


async def test_workers(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    watcher = Watcher(engine, clock.wall_ms)

    async def next_told() -> list[tuple[str, str, str]]:
        before = len(await told(engine))
        clock.advance(5)
        await watcher.once()
        return [(each.kind, each.name, each.reason) for each in (await told(engine))[before:]]

    assert await next_told() == []
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_told() == [(Kind.WORKER_CAME, "w", "")]
    await put(engine, workers.KIND, "w", worker("w", consecutive_failures=4))
    assert await next_told() == [(Kind.WORKER_UNWELL, "w", "degraded")]
    await put(engine, workers.KIND, "w", worker("w", consecutive_failures=20))
    assert await next_told() == [(Kind.WORKER_UNWELL, "w", "unhealthy")]
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_told() == [(Kind.WORKER_WELL, "w", "")]
    clock.advance(61_000)
    assert await next_told() == [(Kind.WORKER_WENT, "w", "silent")]
    await put(engine, workers.KIND, "w", worker("w"))
    assert await next_told() == [(Kind.WORKER_CAME, "w", "")]
    await put(engine, workers.KIND, "w", worker("w", id="w-2"))
    assert await next_told() == [(Kind.WORKER_WENT, "w", ""), (Kind.WORKER_CAME, "w", "")]
    [record] = await engine.load(workers.KIND, limit=10)
    await engine.save([msgspec.structs.replace(record, value=None)])
    assert await next_told() == [(Kind.WORKER_WENT, "w", "")]
    assert await next_told() == []


async def test_breakers_and_redrives(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    watcher = Watcher(engine, clock.wall_ms)
    await watcher.once()
    opened = BreakerRecord(state=BreakerState.OPEN, last="Boom")
    await put(engine, breaker.KIND, "task:pay", opened)
    redrive = RedriveRecord(id="r1", plan=RedrivePlan(wanted=JobFilter()), total=1)
    await engine.save([encode_redrive(redrive)])
    await watcher.once()
    clock.advance(5)
    trying = BreakerRecord(state=BreakerState.HALF_OPEN, last="Boom")
    await put(engine, breaker.KIND, "task:pay", trying)
    await watcher.once()
    clock.advance(5)
    await put(engine, breaker.KIND, "task:pay", BreakerRecord())
    ended = msgspec.structs.replace(redrive, state=RedriveState.STOPPED)
    await engine.save([encode_redrive(ended, 1)])
    await watcher.once()
    assert [(each.kind, each.name or each.id, each.reason) for each in await told(engine)] == [
        (Kind.BREAKER_OPENED, "task:pay", ""),
        (Kind.REDRIVE_STARTED, "r1", ""),
        (Kind.BREAKER_CLOSED, "task:pay", ""),
        (Kind.REDRIVE_ENDED, "r1", "stopped"),
    ]


async def test_killed_at_any_write_and_beside_others_each_change_is_told_once(
    clock: ManualClock,
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}: put it into random.Random below")
    dice = random.Random(seed)
    for _ in range(30):
        engine = FaultyEngine(clock)
        await engine.open()
        await Watcher(engine, clock.wall_ms).once()
        changed = []
        for number in range(20):
            await engine.declare(Queue(name=f"q{number}"))
            changed.append(f"q{number}")
            where = engine.after if dice.random() < 0.5 else engine.before
            where += [Killed() if dice.random() < 0.5 else None for _ in range(4)]
            looks = [asyncio.create_task(Watcher(engine, clock.wall_ms).once()) for _ in range(2)]
            await asyncio.gather(*looks, return_exceptions=True)
            engine.before.clear()
            engine.after.clear()
            clock.advance(dice.choice([0, 5, 1_000]))
        await Watcher(engine, clock.wall_ms).once()
        assert sorted(each.queue for each in await told(engine)) == sorted(changed), seed


async def test_events_stay_in_order_when_a_clock_is_behind(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await Watcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="a"))
    await Watcher(engine, clock.wall_ms).once()
    await engine.declare(Queue(name="b"))
    await Watcher(engine, lambda: clock.wall_ms() - 60_000).once()
    assert [each.queue for each in await told(engine)] == ["a", "b"]


async def test_what_another_version_wrote_begins_anew(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await engine.save([Record(kind=STATE_KIND, key="now", value=b"[]")])
    await Watcher(engine, clock.wall_ms).once()
    assert not await told(engine)
    await engine.declare(Queue(name="a"))
    await Watcher(engine, clock.wall_ms).once()
    assert [each.queue for each in await told(engine)] == ["a"]


def test_nothing_changed_is_nothing_told() -> None:
    same = Watched(queues={"a": True}, workers={"w": ("1", "healthy")})
    assert not changes(same, same)


def test_partitions_are_told_as_this_process_sees_them() -> None:
    class View(msgspec.Struct):
        name: str
        out_ms: int | None
        text: str = ""

    class Store:
        views = (View("a", None), View("b", None))

        def partitions(self) -> tuple[View, ...]:
            return self.views

    store, meter = Store(), Meter(lambda: 0)
    watched = Partitions(store)
    watched.look(meter)
    store.views = (View("a", None), View("b", 5, "gone"))
    watched.look(meter)
    watched.look(meter)
    store.views = (View("a", None), View("b", None))
    watched.look(meter)
    assert [(each.kind, each.name, each.text) for each in meter.notables.take(1)] == [
        (Kind.PARTITION_OUT, "b", "gone"),
        (Kind.PARTITION_BACK, "b", ""),
    ]
    Partitions(object()).look(meter)
    assert not meter.notables.take(1)
