"""The last quarter of an hour of every queue, from the counters of all processes: rates, waiting
times, deaths and jobs that ended in each minute.

The stored snapshots of the last minutes are read once and kept. A number that is not known, because
no snapshot was taken or the queue had no label of its own, is None and never 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

import msgspec

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.telemetry.accounts import FleetTotals, counts_restarted
from holdfast.telemetry.meter import OTHER, Histogram, QueueTotals
from holdfast.telemetry.snapshots import (
    KINDS,
    SNAPSHOTS,
    Depths,
    Snapshot,
    endings,
    snapshot_key,
    step_start,
)

MINUTES: Final = 15
"""Minutes with a number of their own."""

_RATE_MS = bounds.MINUTE_MS
_RATE_MS_MIN = 5 * bounds.SECOND_MS
_WINDOW_MS = 5 * bounds.MINUTE_MS
"""Waiting times and deaths are those of this window; a rate is that of at least a minute, if so
much is known, and of at most this window."""
_LATE_MINUTES = 3
"""Clocks differ: the snapshot of a minute may be written after that of the next one."""


class RecentTotals(msgspec.Struct, frozen=True):
    """The counts of one queue since it has counters, as far as they are used here."""

    enqueued: int
    leased: int
    left: int
    dead: int
    waits: Histogram

    @property
    def jobs(self) -> int:
        """Grows whenever a job comes, starts or leaves."""
        return self.enqueued + self.leased + self.left


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of all queues at one instant. Those without a label of their own count together,
    as `OTHER`. `jobs` are those that waited or ran."""

    at: int
    epoch: str
    queues: dict[str, RecentTotals]
    jobs: dict[str, int]


class QueueRecent(msgspec.Struct, frozen=True, kw_only=True):
    """The recent past of a queue. Rates are in jobs per second, waits in milliseconds. `dead` jobs
    died within the last minutes, and `dead_before` in those before, over as long a time on
    average. `ended` has the jobs that left the queue in each of the last minutes, oldest first."""

    rate_in: float | None = None
    rate_out: float | None = None
    leased: int | None = None
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None
    dead: int | None = None
    dead_before: float | None = None
    ended: tuple[int | None, ...] = (None,) * MINUTES


class RecentHistory:
    """The stored moments of the last minutes, oldest first, and the series of each queue."""

    def __init__(self, moments: Mapping[int, Moment]) -> None:
        self.moments: tuple[Moment, ...] = tuple(moments[minute] for minute in sorted(moments))
        last = max(moments, default=0)
        self._minutes = [
            moments.get(last - ago * bounds.MINUTE_MS) for ago in range(MINUTES, -1, -1)
        ]
        self._last = last
        self._series: dict[str, tuple[tuple[int | None, ...], tuple[int | None, ...]]] = {}

    def series(self, queue: str, now: int) -> tuple[tuple[int | None, ...], ...]:
        """The jobs that left the queue, and those that died, in each of the last minutes. The
        snapshot of the current minute may be missing: it is taken at any time in it."""
        late = (step_start("minute", now) - self._last) // bounds.MINUTE_MS
        known = self._series.get(queue)
        if known is None:
            pairs = list(pairwise(self._minutes))
            left = tuple(_gain(one, two, queue, _left) for one, two in pairs)
            dead = tuple(_gain(one, two, queue, _dead) for one, two in pairs)
            known = self._series[queue] = (left, dead)
        if late <= 1:
            return known
        missing = (None,) * min(late, MINUTES)
        return tuple((*each, *missing)[-MINUTES:] for each in known)


class RecentReader:
    """Reads the history of the last minutes. A stored snapshot never changes, so that each is read
    and decoded once."""

    def __init__(self) -> None:
        self._known: dict[str, Moment | None] = {}
        self._history = RecentHistory({})
        self._lock = asyncio.Lock()

    async def history(self, engine: Engine, now: int) -> RecentHistory:
        """The history as of `now`, a wall clock: the same object until there is another snapshot.
        One read of the store, and none once the snapshot of the current minute is known."""
        async with self._lock:
            minute = step_start("minute", now)
            starts = [minute - ago * bounds.MINUTE_MS for ago in range(MINUTES + 1, -1, -1)]
            keys = {snapshot_key("minute", start): start for start in starts}
            known = {key: each for key, each in self._known.items() if key in keys}
            if snapshot_key("minute", minute) not in known:
                first = snapshot_key("minute", starts[-_LATE_MINUTES] if known else starts[0])
                # The key without its last character sorts before the first wanted one.
                page = await engine.load(KINDS["minute"], after=first[:-1], limit=2 * len(keys))
                new = [each for each in page if each.key in keys and each.key not in known]
                if new:
                    known |= await asyncio.to_thread(_decoded, new)
            if known != self._known:
                self._known = known
                moments = {keys[key]: each for key, each in known.items() if each is not None}
                self._history = RecentHistory(moments)
            return self._history


def recent(
    names: Collection[str],
    history: RecentHistory,
    fleet: FleetTotals,
    jobs: dict[str, int],
    now: int,
) -> dict[str, QueueRecent]:
    """The recent past of these queues from the history and the present counts. `jobs` are those
    that wait or run now; a queue is missing whose number is not exact."""
    if not fleet.totals.queues and not history.moments:
        # No process counts.
        return {name: QueueRecent() for name in names}
    present = _moment(now, fleet.epoch, fleet.totals.queues, jobs)
    since = [each for each in history.moments if _comparable(each, present)]
    short = _base(since, now, _RATE_MS)
    long = _base(since, now, _WINDOW_MS)
    return {name: _recent_of(name, present, short, long, history) for name in names}


def _recent_of(
    name: str,
    present: Moment,
    short: Moment | None,
    long: Moment | None,
    history: RecentHistory,
) -> QueueRecent:
    ended, deaths = history.series(name, present.at)
    earlier = [each for each in deaths[: -_WINDOW_MS // bounds.MINUTE_MS] if each is not None]
    rate_in, rate_out = _rates(short, present, name)
    waits = _waits(long, present, name)
    return QueueRecent(
        rate_in=rate_in,
        rate_out=rate_out,
        leased=_gain(short, present, name, _leased),
        wait_p50_ms=None if waits is None else waits.quantile(0.5),
        wait_p95_ms=None if waits is None else waits.quantile(0.95),
        dead=_gain(long, present, name, _dead),
        dead_before=(
            sum(earlier) / len(earlier) * (present.at - long.at) / bounds.MINUTE_MS
            if earlier and long is not None
            else None
        ),
        ended=ended,
    )


def _rates(base: Moment | None, present: Moment, name: str) -> tuple[float | None, float | None]:
    """Jobs per second. Programs that enqueue without counting are known by the growth of the
    queue; if that is unknown, so is a rate of 0."""
    if base is None:
        return None, None
    seconds = (present.at - base.at) / 1000
    left = _gain(base, present, name, _left)
    came = _gain(base, present, name, _enqueued)
    if left is None or came is None:
        return None, None
    # A queue that a snapshot does not name did not exist then, unless it has no label.
    before = base.jobs.get(name, None if OTHER in base.jobs else 0)
    now = present.jobs.get(name)
    if before is not None and now is not None:
        came = max(came, left + now - before)
    elif came == 0:
        return None, left / seconds
    return came / seconds, left / seconds


def _waits(base: Moment | None, present: Moment, name: str) -> Histogram | None:
    pair = _pair(base, present, name)
    if pair is None:
        return None
    gained = pair[1].waits.plus(pair[0].waits, -1)
    return gained if gained.count > 0 and min(gained.counts) >= 0 else None


def _gain(
    one: Moment | None, two: Moment | None, name: str, count: Callable[[RecentTotals], int]
) -> int | None:
    """By how much a count grew; None if it is unknown, or dropped because a part of the store was
    unreachable."""
    pair = _pair(one, two, name)
    if pair is None:
        return None
    gain = count(pair[1]) - count(pair[0])
    return gain if gain >= 0 else None


def _pair(
    one: Moment | None, two: Moment | None, name: str
) -> tuple[RecentTotals, RecentTotals] | None:
    """The counts of a queue at two moments; None if they are unknown. A queue that is missing has
    counted nothing, unless it may have counted without a label."""
    if one is None or two is None or not _comparable(one, two):
        return None
    before, after = one.queues.get(name), two.queues.get(name)
    if before is not None:
        return None if after is None else (before, after)
    unnamed = [each.queues.get(OTHER, _NOTHING).jobs for each in (one, two)]
    if unnamed[0] if after is not None else unnamed[0] != unnamed[1]:
        return None
    return _NOTHING, after or _NOTHING


def _enqueued(found: RecentTotals) -> int:
    return found.enqueued


def _left(found: RecentTotals) -> int:
    return found.left


def _dead(found: RecentTotals) -> int:
    return found.dead


def _leased(found: RecentTotals) -> int:
    return found.leased


def _comparable(one: Moment, two: Moment) -> bool:
    return not counts_restarted(one.epoch, two.epoch)


def _base(stored: Sequence[Moment], now: int, span_ms: int) -> Moment | None:
    """The moment to compare the present with: the latest that is `span_ms` old, or else the
    oldest."""
    within = [each for each in stored if _RATE_MS_MIN <= now - each.at <= _WINDOW_MS + _RATE_MS]
    old = [each for each in within if now - each.at >= span_ms]
    return old[-1] if old else within[0] if within else None


def _decoded(records: Sequence[Record]) -> dict[str, Moment | None]:
    found: dict[str, Moment | None] = {}
    for record in records:
        snapshot = SNAPSHOTS["minute"].decode(record)
        found[record.key] = None if snapshot is None else _of_snapshot(snapshot)
    return found


def _of_snapshot(snapshot: Snapshot) -> Moment:
    queues: dict[str, QueueTotals] = {}
    for name, raw in snapshot.totals.items():
        with suppress(msgspec.MsgspecError):
            queues[name] = msgspec.json.decode(raw, type=QueueTotals)
    jobs = {name: jobs_in(each) for name, each in snapshot.depths.items()}
    return _moment(snapshot.at, snapshot.epoch, queues, jobs)


def _moment(at: int, epoch: str, queues: dict[str, QueueTotals], jobs: dict[str, int]) -> Moment:
    return Moment(
        at=at,
        epoch=epoch,
        queues={name: _totals(each) for name, each in queues.items()},
        jobs=jobs,
    )


def _totals(found: QueueTotals) -> RecentTotals:
    counts = found.counts
    return RecentTotals(
        counts.get("enqueued", 0),
        counts.get("leased", 0),
        endings(counts),
        counts.get("dead", 0),
        found.waits,
    )


def jobs_in(depths: Depths) -> int:
    """The jobs that wait or run."""
    return depths.ready + depths.delayed + depths.blocked + depths.leased


_NOTHING = _totals(QueueTotals())
