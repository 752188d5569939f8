"""How the fleet's counts stood at the start of each minute, hour and day; charts are differences.

Pure. A snapshot holds counts that only grow, so that one that is missing makes a point of a chart
longer and loses nothing, and none can count anything twice. It also holds how long the queues were
at that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from holdfast.core import limits
from holdfast.core.model import QueueView, Record
from holdfast.telemetry.accounts import Fleet, is_anew
from holdfast.telemetry.totals import Histogram, QueueTotals, histogram, label_of

Step = Literal["minute", "hour", "day"]
STEPS: Final[dict[Step, int]] = {
    "minute": limits.MINUTE_MS,
    "hour": limits.HOUR_MS,
    "day": limits.DAY_MS,
}
KINDS: Final[dict[Step, str]] = {"minute": "minutes", "hour": "hours", "day": "days"}

Wanted = Callable[[str], bool]
"""Whether a queue is asked for."""


class Depths(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a queue stood."""

    ready: int = 0
    delayed: int = 0
    blocked: int = 0
    leased: int = 0
    dead: int = 0
    oldest_age_ms: int | None = None

    def plus(self, other: Depths) -> Depths:
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
    """`at` is when it was taken. The parts are left as they are stored until somebody asks for
    that queue: most charts are of one."""

    at: int
    epoch: str = ""
    totals: dict[str, msgspec.Raw] = {}
    depths: dict[str, Depths] = {}

    def of(self, wanted: Wanted) -> Standing:
        """All wanted queues together."""
        totals, depths = QueueTotals(), Depths()
        for name, raw in self.totals.items():
            if wanted(name):
                totals.absorb(msgspec.json.decode(raw, type=QueueTotals))
        for name, each in self.depths.items():
            if wanted(name):
                depths = depths.plus(each)
        return Standing(self.at, self.epoch, totals, depths)


class Standing(msgspec.Struct, frozen=True):
    """What a snapshot says of some queues."""

    at: int
    epoch: str
    totals: QueueTotals
    depths: Depths


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted from `at` for `length_ms`, and how the queue stood at its end."""

    at: int
    length_ms: int
    counts: dict[str, int]
    waits: Histogram
    runs: Histogram
    depths: Depths


def snapshot(fleet: Fleet, views: Iterable[QueueView], at: int) -> Snapshot:
    depths: dict[str, Depths] = {}
    # The names that the counts have come first.
    names = dict.fromkeys(fleet.totals.queues)
    for view in views:
        name = label_of(view.queue.name, names)
        names[name] = None
        depths[name] = depths.get(name, Depths()).plus(depths_of(view))
    return Snapshot(
        at=at,
        epoch=fleet.epoch,
        totals={
            name: msgspec.Raw(msgspec.json.encode(each))
            for name, each in fleet.totals.queues.items()
        },
        depths=depths,
    )


def depths_of(view: QueueView) -> Depths:
    return Depths(
        view.ready, view.delayed, view.blocked, view.leased, view.dead, view.oldest_age_ms
    )


def key_of(step: Step, at: int) -> str:
    """Of the minute, hour or day that an instant is in; they sort by time."""
    return datetime.fromtimestamp(start_of(step, at) / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def start_of(step: Step, at: int) -> int:
    return at - at % STEPS[step]


def read_snapshot(record: Record) -> Snapshot | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return msgspec.json.decode(record.value or b"", type=Snapshot)
    except msgspec.DecodeError:
        return None


def points(standings: Iterable[Standing]) -> list[Point]:
    """From each to the next. A count that is lower than before was not seen whole, as when a part
    of the store is away: nothing is said of it until it has grown beyond what it was."""
    found: list[Point] = []
    highest, epoch, at = QueueTotals(), "", -1
    for each in standings:
        if is_anew(epoch, each.epoch):
            highest = QueueTotals()
        grown = _highest(highest, each.totals)
        if at >= 0:
            gain = grown.plus(highest, -1)
            found.append(
                Point(
                    at=at,
                    length_ms=max(0, each.at - at),
                    counts={name: count for name, count in gain.counts.items() if count},
                    waits=gain.waits,
                    runs=gain.runs,
                    depths=each.depths,
                )
            )
        # The epoch is not in one that was taken while a part of the store was away.
        highest, epoch, at = grown, each.epoch or epoch, each.at
    return found


def _highest(one: QueueTotals, two: QueueTotals) -> QueueTotals:
    names = one.counts | two.counts
    counts = {name: max(one.counts.get(name, 0), two.counts.get(name, 0)) for name in names}
    return QueueTotals(counts, _higher(one.waits, two.waits), _higher(one.runs, two.runs))


def _higher(one: Histogram, two: Histogram) -> Histogram:
    if one.scale != two.scale:
        return histogram(two.scale)
    counts = [max(a, b) for a, b in zip(one.counts, two.counts, strict=True)]
    return Histogram(one.scale, counts, max(one.total, two.total))
