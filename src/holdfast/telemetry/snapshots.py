"""Snapshots of the fleet's counts for each minute, hour and day; charts are their differences.

The first process in a minute takes that minute's snapshot, and no other writes it again. Counts
only grow, so a missing snapshot makes one point of a chart longer, and nothing is lost or counted
twice. A snapshot also holds the depths of the queues.
"""

from __future__ import annotations

import asyncio
import random
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar

import msgspec

from holdfast.core import bounds
from holdfast.core.bounds import Count, Instant
from holdfast.core.model import QueueView, Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import ConfigError
from holdfast.ops.records import LogKind, pages, remove_records, scan
from holdfast.ops.settings import read_settings
from holdfast.telemetry.accounts import FleetReader, FleetTotals, counts_restarted
from holdfast.telemetry.event_log import EVENTS_KIND
from holdfast.telemetry.meter import OTHER, QUEUES_MAX, Histogram, QueueTotals, histogram

Step = Literal["minute", "hour", "day"]

STEPS: Final[dict[Step, int]] = {
    "minute": bounds.MINUTE_MS,
    "hour": bounds.HOUR_MS,
    "day": bounds.DAY_MS,
}

KINDS: Final[dict[Step, str]] = {"minute": "minutes", "hour": "hours", "day": "days"}

QueueFilter = Callable[[str], bool]
"""True for the queues of a chart."""
_ENDINGS: Final = ("completed", "dead", "forwarded", "cancelled")
"""The counters of jobs that left a queue. Expired jobs are among the dead ones."""
Part = TypeVar("Part")

CHARTS_MAX: Final = QUEUES_MAX
"""Queues with a chart of their own: the busiest. A day has 1,440 snapshots."""

_PLAIN_MAX = 32 * 1024
_UNPACKED_MAX = 4 * 1024 * 1024
"""A snapshot of more bytes than the first is stored compressed, to about a third; one of more than
the second is not read."""

_PAGE = 20
_READ_PAGE = 50
_SPREAD_MS = 1_000
_EVENTS_MAX = 2_000
_SETTINGS: Final[dict[Step, str]] = {
    "minute": "history-minutes",
    "hour": "history-hours",
    "day": "history-days",
}
_KEY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d\Z")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The retention of snapshots and events, and the maximum number of records of events."""

    minute_ms: int = bounds.DAY_MS
    hour_ms: int = 14 * bounds.DAY_MS
    day_ms: int = 400 * bounds.DAY_MS
    events_ms: int = bounds.DAY_MS
    events_max: int = _EVENTS_MAX

    def of(self, step: Step) -> int:
        """The retention of snapshots of this step."""
        return {"minute": self.minute_ms, "hour": self.hour_ms, "day": self.day_ms}[step]


class Roller:
    """A service of upkeep: takes a snapshot each minute, hour and day, and removes old ones.
    Without `retention` the stored settings apply."""

    name = "roller"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        retention: Retention | None = None,
        sleep_ms_max: int = 2 * bounds.MINUTE_MS,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._wall_ms = wall_ms
        self._retention = retention
        self._reader = FleetReader(engine, age_s_max=0)
        self._taken: dict[Step, str] = {}

    async def once(self) -> int | None:
        """Take missing snapshots; the process that took one removes old ones. Returns the time to
        the next minute."""
        now = self._wall_ms()
        missing = await self._missing(now)
        if missing and await self._take(missing):
            retention = self._retention or await _stored_retention(self._engine)
            for step in STEPS:
                await self._trim(step, now, retention.of(step))
            await self._trim_events(retention.events_ms, retention.events_max)
        next_ms = step_start("minute", now) + bounds.MINUTE_MS - self._wall_ms()
        # Spread, so that most processes find the snapshot taken.
        return max(1, next_ms) + random.randrange(_SPREAD_MS)

    async def _missing(self, now: int) -> dict[Step, str]:
        """The keys of snapshots that were not taken yet, by step."""
        missing: dict[Step, str] = {}
        for step in STEPS:
            key = snapshot_key(step, now)
            if self._taken.get(step) == key:
                continue
            found = await self._engine.load(KINDS[step], after=key[:-1], limit=10)
            if any(record.key == key for record in found):
                self._taken[step] = key
            else:
                missing[step] = key
        return missing

    async def _take(self, missing: dict[Step, str]) -> bool:
        """True if this process was the first to take one."""
        views = await self._engine.queues()
        fleet = await self._reader.fleet()
        snapshot = _storable(fleet, views, self._wall_ms())
        # A stale one was taken by another process at the same moment.
        answers = await self._engine.save(
            [SNAPSHOTS[step].record(key, snapshot) for step, key in missing.items()]
        )
        self._taken |= missing
        return Saved.SAVED in answers

    async def _trim(self, step: Step, now: int, retention_ms: int) -> None:
        """Remove snapshots that are old by their key and by the store's clock, since this
        machine's clock may be far ahead."""
        oldest = snapshot_key(step, max(0, now - retention_ms))
        spared_ms = retention_ms - STEPS[step]
        while True:
            found = await self._engine.load(KINDS[step], limit=_PAGE)
            old = [
                record
                for record in found
                if (record.key < oldest and record.age_ms >= spared_ms)
                or not _KEY.match(record.key)
            ]
            await remove_records(self._engine, old)
            if len(old) < _PAGE:
                return

    async def _trim_events(self, retention_ms: int, most: int) -> None:
        """Remove old events by the store's clock: their keys come from many clocks."""
        found = [record async for record in scan(self._engine, EVENTS_KIND)]
        found.sort(key=lambda record: -record.age_ms)
        over = len(found) - most
        old = [
            record for at, record in enumerate(found) if at < over or record.age_ms > retention_ms
        ]
        await remove_records(self._engine, old)


async def _stored_retention(engine: Engine) -> Retention:
    """The retention in the stored settings; a setting that cannot be read is ignored."""
    settings = await read_settings(engine)
    given: dict[str, int] = {}
    for step, name in _SETTINGS.items():
        with suppress(ConfigError):
            value = settings.value(name)
            if value is not None:
                given[f"{step}_ms"] = int(value)
    return Retention(**given)


class Depths(msgspec.Struct, frozen=True, omit_defaults=True):
    """The counts of a queue at one instant."""

    ready: Count = 0
    delayed: Count = 0
    blocked: Count = 0
    leased: Count = 0
    dead: Count = 0
    oldest_age_ms: Count | None = None

    def plus(self, other: Depths) -> Depths:
        """The depths of both together."""
        ages = [age for age in (self.oldest_age_ms, other.oldest_age_ms) if age is not None]
        return Depths(
            self.ready + other.ready,
            self.delayed + other.delayed,
            self.blocked + other.blocked,
            self.leased + other.leased,
            self.dead + other.dead,
            max(ages, default=None),
        )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts and depths of all queues at `at`. Counts are decoded only for the queues that are
    read, since most charts are of one; those that cannot be read are left out."""

    at: Instant
    epoch: str = ""
    totals: dict[str, msgspec.Raw] = {}
    depths: dict[str, Depths] = {}

    def of(self, wanted: QueueFilter) -> SnapshotSlice:
        """The wanted queues together."""
        totals, depths = QueueTotals(), Depths()
        for name, raw in self.totals.items():
            if wanted(name):
                with suppress(msgspec.MsgspecError):
                    totals.absorb(msgspec.json.decode(raw, type=QueueTotals))
        for name, each in self.depths.items():
            if wanted(name):
                depths = depths.plus(each)
        return SnapshotSlice(self.at, self.epoch, totals, depths)


class _SnapshotKind(LogKind[Snapshot]):
    """A large snapshot is stored compressed."""

    def encode_value(self, value: Snapshot) -> bytes:
        data = super().encode_value(value)
        return zlib.compress(data, 1) if len(data) > _PLAIN_MAX else data

    def decode_value(self, data: bytes) -> Snapshot:
        return super().decode_value(_unpacked(data))


def _unpacked(data: bytes) -> bytes:
    """JSON as it was before it was compressed. Raises ValueError."""
    if data.startswith(b"{"):
        return data
    try:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(data, _UNPACKED_MAX)
    except zlib.error as error:
        raise ValueError(f"it is neither JSON nor compressed: {error}") from None
    if not unpacker.eof:
        raise ValueError(f"it is cut, or has more than {_UNPACKED_MAX} bytes")
    return unpacked


SNAPSHOTS: Final = {
    step: _SnapshotKind(kind, Snapshot, label="snapshot") for step, kind in KINDS.items()
}
"""By step; the key is that of `snapshot_key`."""


class SnapshotSlice(msgspec.Struct, frozen=True):
    """The part of a snapshot about some queues, together."""

    at: int
    epoch: str
    totals: QueueTotals
    depths: Depths


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The counts from `at` on for `length_ms`, and the depths at the end. `arrivals` also has jobs
    of programs that count nothing, which are known by the growth of the queues."""

    at: int
    length_ms: int
    counts: dict[str, int]
    arrivals: int
    waits: Histogram
    runs: Histogram
    depths: Depths


async def read_snapshots(
    engine: Engine, step: Step, within: tuple[int, int], part: Callable[[Snapshot], Part]
) -> AsyncIterator[Part]:
    """The wanted part of each stored snapshot, oldest first. They are large if there are many
    queues: decoded a few at a time, in a thread."""

    def decode(records: list[Record]) -> list[Part]:
        found = (SNAPSHOTS[step].decode(record) for record in records)
        return [part(each) for each in found if each is not None]

    first, last = (snapshot_key(step, at) for at in within)
    # The key without its last character sorts before the first wanted one.
    async for page in pages(engine, KINDS[step], first[:-1], size=_READ_PAGE):
        within_span = [record for record in page if first <= record.key <= last]
        for each in await asyncio.to_thread(decode, within_span):
            yield each
        if page and page[-1].key > last:
            return


def _storable(fleet: FleetTotals, views: Sequence[QueueView], at: int) -> Snapshot:
    """The snapshot with as many queues as fit in a record."""
    most = CHARTS_MAX
    snapshot = take_snapshot(fleet, views, at)
    while most > 1 and len(SNAPSHOTS["minute"].encode_value(snapshot)) > bounds.RECORD_MAX:
        most = most * 3 // 4
        snapshot = take_snapshot(fleet, views, at, most)
    return snapshot


def take_snapshot(
    fleet: FleetTotals, views: Iterable[QueueView], at: int, most: int = CHARTS_MAX
) -> Snapshot:
    """The snapshot of these counts and queues, of which `most` have a name of their own."""
    totals = fleet.totals.busiest(most)
    names = {*totals.queues}
    depths: dict[str, Depths] = {}
    for view in views:
        name = view.queue.name
        # A queue without counts has a chart of its own while there is room.
        label = name if name in names or len(names) < most else OTHER
        names.add(label)
        depths[label] = depths.get(label, Depths()).plus(depths_of(view))
    return Snapshot(
        at=at,
        epoch=fleet.epoch,
        totals={
            name: msgspec.Raw(msgspec.json.encode(each)) for name, each in totals.queues.items()
        },
        depths=depths,
    )


def depths_of(view: QueueView) -> Depths:
    """The depths of one queue."""
    return Depths(
        view.ready, view.delayed, view.blocked, view.leased, view.dead, view.oldest_age_ms
    )


def snapshot_key(step: Step, at: int) -> str:
    """The key of the minute, hour or day that contains the instant; keys sort by time."""
    return datetime.fromtimestamp(step_start(step, at) / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def step_start(step: Step, at: int) -> int:
    """The start of the minute, hour or day that contains the instant."""
    return at - at % STEPS[step]


def chart_points(slices: Iterable[SnapshotSlice]) -> list[Point]:
    """The differences between successive snapshots. A count that dropped was incomplete, because a
    part of the store was unreachable: it adds nothing until it is higher than before."""
    found: list[Point] = []
    highest, epoch, at, unfinished_before = QueueTotals(), "", -1, 0
    for each in slices:
        if counts_restarted(epoch, each.epoch):
            highest = QueueTotals()
        grown = _highest(highest, each.totals)
        if at >= 0:
            gain = grown.plus(highest, -1)
            growth = unfinished(each.depths) - unfinished_before
            found.append(
                Point(
                    at=at,
                    length_ms=max(0, each.at - at),
                    counts={name: count for name, count in gain.counts.items() if count},
                    arrivals=max(gain.counts.get("enqueued", 0), endings(gain.counts) + growth),
                    waits=gain.waits,
                    runs=gain.runs,
                    depths=each.depths,
                )
            )
        # A snapshot that was taken while a part of the store was unreachable has no epoch.
        highest, epoch, at = grown, each.epoch or epoch, each.at
        unfinished_before = unfinished(each.depths)
    return found


def endings(counts: dict[str, int]) -> int:
    """The number of jobs that left their queue."""
    return sum(counts.get(each, 0) for each in _ENDINGS)


def unfinished(depths: Depths) -> int:
    """The number of jobs that have not left their queue."""
    return depths.ready + depths.delayed + depths.blocked + depths.leased


def _highest(one: QueueTotals, two: QueueTotals) -> QueueTotals:
    names = one.counts | two.counts
    counts = {name: max(one.counts.get(name, 0), two.counts.get(name, 0)) for name in names}
    return QueueTotals(counts, _higher(one.waits, two.waits), _higher(one.runs, two.runs))


def _higher(one: Histogram, two: Histogram) -> Histogram:
    if one.scale != two.scale:
        return histogram(two.scale)
    counts = [max(a, b) for a, b in zip(one.counts, two.counts, strict=True)]
    return Histogram(one.scale, counts, max(one.total, two.total))
