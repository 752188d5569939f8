"""Snapshots and charts: nothing is lost, counted twice or kept for ever."""

import asyncio
import random
import zlib

import msgspec
import pytest

from holdfast.core import bounds
from holdfast.core.model import NewJob, Record
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.ops import settings
from holdfast.telemetry.accounts import FleetTotals
from holdfast.telemetry.event_log import EVENTS_KIND as EVENTS
from holdfast.telemetry.event_log import FeedEvent, FeedEventKind, append_events, event_key
from holdfast.telemetry.meter import COUNTERS, OTHER, Histogram, QueueTotals, Totals, histogram
from holdfast.telemetry.snapshots import (
    KINDS,
    SNAPSHOTS,
    STEPS,
    Depths,
    Point,
    QueueFilter,
    Retention,
    Roller,
    Snapshot,
    SnapshotSlice,
    Step,
    chart_points,
    snapshot_key,
)
from holdfast.testing.clock import ManualClock
from tests.killed import Killed
from tests.telemetry.faulty_saves import FaultyEngine
from tests.telemetry.test_accounts import Process

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


async def snapshots(engine: Engine, step: Step = "minute") -> list[Snapshot]:
    found = [
        SNAPSHOTS[step].decode(record) for record in await engine.load(KINDS[step], limit=1_000)
    ]
    return [each for each in found if each is not None]


async def chart(engine: Engine, step: Step = "minute", queue: str = "default") -> list[Point]:
    return charted(await snapshots(engine, step), lambda name: name == queue)


def charted(found: list[Snapshot], wanted: QueueFilter) -> list[Point]:
    return chart_points(each.of(wanted) for each in found)


def enqueued(found: list[Point]) -> list[int]:
    return [point.counts.get("enqueued", 0) for point in found]


async def test_each_minute_hour_and_day_has_one_snapshot(
    engine: Engine, clock: ManualClock
) -> None:
    clock.advance(DAY - clock.wall_ms() % DAY)
    process, rollers = Process(engine, clock), [Roller(engine, clock.wall_ms) for _ in range(2)]
    for minute in range(62):
        for roller in rollers:
            await roller.once()
        process.count(minute)
        await process.flush()
        clock.advance(MINUTE)
    assert enqueued(await chart(engine)) == list(range(61))
    assert all(point.length_ms == MINUTE for point in await chart(engine))
    assert enqueued(await chart(engine, "hour")) == [sum(range(60))]
    assert len(await snapshots(engine, "day")) == 1


async def test_snapshots_hold_the_depths_of_queues(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    process, roller = Process(engine, clock), Roller(engine, clock.wall_ms)
    process.count()
    await process.flush()
    await roller.once()
    await engine.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t", delay_ms=HOUR)])
    clock.advance(MINUTE)
    await roller.once()
    [point] = await chart(engine)
    assert (point.depths.ready, point.depths.delayed) == (1, 1)
    assert point.depths.oldest_age_ms == MINUTE


async def test_the_roller_wakes_at_the_next_minute(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    clock.advance(MINUTE - clock.wall_ms() % MINUTE + 20_000)
    next_ms = await Roller(engine, clock.wall_ms).once()
    assert next_ms is not None
    assert 40_000 <= next_ms < 41_000


@pytest.mark.parametrize("gap", [1, 7, 200])
async def test_time_without_upkeep_makes_a_longer_point_of_the_chart(
    gap: int, clock: ManualClock
) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    process, roller = Process(engine, clock), Roller(engine, clock.wall_ms)
    await roller.once()
    for _ in range(gap):
        process.count()
        clock.advance(MINUTE)
    await process.flush()
    await roller.once()
    [point] = await chart(engine)
    assert (enqueued([point]), point.length_ms) == ([gap], gap * MINUTE)


async def test_killed_at_any_write_and_beside_others_the_chart_is_right(
    clock: ManualClock,
) -> None:
    """Up to 41 hours pass, which is more than minutes are kept by default."""
    retention = Retention(minute_ms=2 * DAY)

    async def roll() -> None:
        await Roller(engine, clock.wall_ms, retention=retention).once()

    seed = random.randrange(10**6)
    print(f"seed {seed}: put it into random.Random below")
    dice = random.Random(seed)
    for _ in range(20):
        engine = FaultyEngine(clock)
        await engine.open()
        process = Process(engine, clock)
        await roll()
        total = 0
        for _ in range(40):
            count = dice.randrange(5)
            process.count(count)
            await process.flush()
            total += count
            clock.advance(dice.choice([1_000, MINUTE, HOUR]))
            where = engine.after if dice.random() < 0.5 else engine.before
            where += [Killed() if dice.random() < 0.5 else None for _ in range(6)]
            ends = await asyncio.gather(roll(), roll(), return_exceptions=True)
            assert all(end is None or isinstance(end, Killed) for end in ends), ends
            engine.before.clear()
            engine.after.clear()
        clock.advance(HOUR)
        await roll()
        for step in STEPS:
            if step != "day":
                assert sum(enqueued(await chart(engine, step))) == total, (seed, step)


async def test_retention(clock: ManualClock) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    retention = Retention(
        minute_ms=3 * MINUTE, hour_ms=4 * HOUR, day_ms=2 * DAY, events_ms=HOUR, events_max=5
    )
    roller = Roller(engine, clock.wall_ms, retention=retention)
    for _ in range(3 * 24 * 4):
        await roller.once()
        await append_events(engine, clock.wall_ms(), "t", FeedEvent(kind=FeedEventKind.QUEUE_MADE))
        clock.advance(15 * MINUTE)
    assert len(await snapshots(engine, "minute")) == 1
    assert len(await snapshots(engine, "hour")) == 5
    assert len(await snapshots(engine, "day")) == 3
    assert len(await engine.load(EVENTS, limit=100)) <= 6
    await append_events(engine, clock.wall_ms(), "u", *[FeedEvent(kind=FeedEventKind.QUEUE_MADE)])
    for number in range(20):
        key = event_key(clock.wall_ms(), "t", number)
        await engine.save([Record(kind=EVENTS, key=key, value=b"[]")])
    clock.advance(MINUTE)
    await roller.once()
    assert len(await engine.load(EVENTS, limit=100)) == 5


async def test_retention_is_a_setting(clock: ManualClock) -> None:
    """A setting that cannot be read, as of a later version, is ignored."""
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await settings.save_setting(engine, "history-minutes", "30m")
    await engine.save([Record(kind=settings.SETTING_KIND, key="history-hours", value=b"a while")])
    roller = Roller(engine, clock.wall_ms)
    for _ in range(48 * 4):
        await roller.once()
        clock.advance(15 * MINUTE)
    assert len(await snapshots(engine, "minute")) == 3
    assert len(await snapshots(engine, "hour")) == 48


def test_arrivals_include_jobs_that_nobody_counted() -> None:
    def at(minute: int, counts: dict[str, int], **depths: int) -> SnapshotSlice:
        return SnapshotSlice(minute, "", QueueTotals(counts), Depths(**depths))

    [first, second, third] = chart_points(
        [
            at(0, {}, ready=10),
            at(1, {"completed": 5, "dead": 1, "expired": 1}, ready=8, leased=4),
            at(2, {"completed": 5, "dead": 1, "expired": 1, "enqueued": 7}, ready=8, leased=4),
            at(3, {"completed": 6, "dead": 1, "expired": 1, "enqueued": 7}, ready=8, leased=3),
        ]
    )
    assert [first.arrivals, second.arrivals, third.arrivals] == [8, 7, 0]


def test_incomplete_counts_add_nothing_and_nothing_twice() -> None:
    """A part of the store is unreachable for a while: its processes are missing from the sum."""
    found = [taken(at, count) for at, count in enumerate([100, 110, 60, 70, 130, 135])]
    assert enqueued(charted(found, everything)) == [10, 0, 0, 20, 5]


def test_restarted_counts_count_from_zero() -> None:
    found = [taken(0, 100), taken(1, 110), taken(2, 7, "new"), taken(3, 9, "new")]
    assert enqueued(charted(found, everything)) == [10, 7, 2]


def test_an_unknown_epoch_is_no_restart() -> None:
    """Before the first bookkeeper ran, and while the record of the epoch is unreachable."""
    found = [taken(0, 5, ""), taken(1, 8, "one"), taken(2, 9, ""), taken(3, 12, "one")]
    assert enqueued(charted(found, everything)) == [3, 1, 3]
    assert enqueued(charted([*found, taken(4, 2, ""), taken(5, 4, "two")], everything))[-1] == 4


def test_keys_sort_by_time() -> None:
    instants = [0, 59_999, MINUTE, HOUR, DAY, 40 * DAY, 1_800_000_000_000]
    for step in STEPS:
        keys = [snapshot_key(step, at) for at in instants]
        assert keys == sorted(keys)
    assert snapshot_key("hour", 1_800_000_000_000) == "2027-01-15T08:00"


def test_unreadable_snapshots_are_left_out() -> None:
    assert (
        SNAPSHOTS["minute"].decode(Record(kind="minutes", key="x", value=b'{"at": "soon"}')) is None
    )


def taken(at: int, count: int, epoch: str = "old") -> Snapshot:
    totals = msgspec.Raw(msgspec.json.encode(QueueTotals({"enqueued": count})))
    return Snapshot(at=at, epoch=epoch, totals={"default": totals})


def everything(name: str) -> bool:
    return True


def crowded(queues: int, big: int, name: str = "queue") -> FleetTotals:
    draw = random.Random(queues)

    def some() -> Histogram:
        found = histogram("time")
        found.counts = [draw.randrange(big) for _ in found.counts]
        return found

    names = [f"{name}{number:04}" for number in range(queues)]
    return FleetTotals(
        epoch="e",
        totals=Totals(
            queues={
                each: QueueTotals(
                    {counter: draw.randrange(big) for counter in COUNTERS}, some(), some()
                )
                for each in names
            }
        ),
    )


async def rolled(fleet: FleetTotals, clock: ManualClock) -> tuple[Record, Snapshot]:
    """The snapshot that upkeep stores of these counts."""
    engine = MemoryEngine(clock=clock)
    await engine.open()
    roller = Roller(engine, clock.wall_ms)

    async def totals() -> FleetTotals:
        return fleet

    roller._reader.fleet = totals  # type: ignore[method-assign]
    await roller.once()
    [record] = await engine.load(KINDS["minute"], limit=10)
    [snapshot] = await snapshots(engine)
    return record, snapshot


async def test_500_queues_have_charts_of_their_own(clock: ManualClock) -> None:
    fleet = crowded(500, 10**6)
    record, snapshot = await rolled(fleet, clock)
    assert set(snapshot.totals) == set(fleet.totals.queues)
    name = "queue0499"
    assert snapshot.of(name.__eq__).totals == fleet.totals.queues[name]
    # 1,440 of them are kept.
    assert len(record.value or b"") < 128 * 1024


async def test_a_small_snapshot_is_plain_json(clock: ManualClock) -> None:
    record, _ = await rolled(crowded(20, 10), clock)
    assert (record.value or b"").startswith(b"{")


async def test_a_snapshot_that_is_too_large_has_fewer_queues(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "RECORD_MAX", 64 * 1024)
    fleet = crowded(500, 10**9)
    record, snapshot = await rolled(fleet, clock)
    assert len(record.value or b"") <= 64 * 1024
    assert 100 < len(snapshot.totals) < 500
    assert OTHER in snapshot.totals
    enqueued = sum(each.counts["enqueued"] for each in fleet.totals.queues.values())
    assert snapshot.of(lambda _: True).totals.counts["enqueued"] == enqueued


@pytest.mark.parametrize(
    "value",
    [
        zlib.compress(b" " * (5 * 1024 * 1024)),
        zlib.compress(b'{"at": 1}')[:-3],
        b"\x78\x9c",
        b"",
    ],
)
def test_a_hostile_snapshot_is_not_read(value: bytes) -> None:
    record = Record(kind=KINDS["minute"], key="2026-01-31T08:00", value=value)
    assert SNAPSHOTS["minute"].decode(record) is None
