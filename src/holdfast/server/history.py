"""What the charts show: what was counted in each minute, hour or day, and how the queues stood."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.durations import show_at
from holdfast.engines.base import Engine
from holdfast.errors import UnknownQueue, UsageError
from holdfast.filters import instant
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.seeing import seen_of
from holdfast.server.shapes import Instant, QueueName
from holdfast.telemetry.snapshots import (
    KINDS,
    STEPS,
    Depths,
    Point,
    Standing,
    Step,
    Wanted,
    key_of,
    points,
    read_snapshot,
    snapshot,
)
from holdfast.telemetry.totals import Histogram
from holdfast.upkeep import wall_ms

POINTS_MAX = 1_500
_DEFAULT = {"minute": limits.HOUR_MS, "hour": 2 * limits.DAY_MS, "day": 60 * limits.DAY_MS}
_PAGE = 50


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`from` and `to` are instants (2026-01-31T08:00Z), or so long ago (1h)."""

    queue: QueueName | None = None
    step: Step = "minute"
    since: Instant | None = msgspec.field(default=None, name="from")
    before: Instant | None = msgspec.field(default=None, name="to")


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, about: as exact as the buckets of the histogram."""

    p50: float
    p95: float
    p99: float
    mean: float


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` are of the `seconds` from `at` on; the rest is how it stood at their end."""

    at: str
    seconds: float
    counts: dict[str, int]
    wait: Quantiles | None
    run: Quantiles | None
    ready: int
    delayed: int
    blocked: int
    leased: int
    dead: int
    oldest_age: float | None


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    step: Step
    queue: str | None
    points: tuple[HistoryPoint, ...]


@operation("GET", "/v1/history", needs=Scope.OPERATE)
async def show_history(call: Call, query: HistoryQuery) -> HistoryView:
    """What was counted over time, of one queue or of all; the last point goes up to now."""
    now = wall_ms()
    before, since = instant("to", query.before), instant("from", query.since)
    to = now if before is None else min(before, now)
    start = to - _DEFAULT[query.step] if since is None else min(since, to)
    if (to - start) // STEPS[query.step] > POINTS_MAX:
        raise UsageError(
            f"that is more than {POINTS_MAX} points: ask for less time, or a longer step"
        )
    seen = seen_of(call.app)
    sight = await seen.for_caller(call.caller)
    if query.queue is not None and query.queue not in {view.queue.name for view in sight.views}:
        raise UnknownQueue(f"queue {query.queue} does not exist: declare it first")

    def wanted(name: str) -> bool:
        theirs = not call.caller.prefix or call.caller.owns(name)
        return theirs and query.queue in (None, name)

    found = [each async for each in _standings(call.app.engine, query.step, (start, to), wanted)]
    if to >= now:
        found.append(snapshot(sight.fleet, sight.views, now).of(wanted))
    return HistoryView(
        step=query.step,
        queue=query.queue,
        points=await asyncio.to_thread(_views, found),
    )


async def _standings(
    engine: Engine, step: Step, within: tuple[int, int], wanted: Wanted
) -> AsyncIterator[Standing]:
    """From the one that the first point begins at. Of many queues they are large, and are read a
    few at a time, beside the loop."""
    first, last = (key_of(step, at) for at in within)
    # Everything that sorts after this is of that step or of later ones.
    after = first[:-1]
    while True:
        page = await engine.load(KINDS[step], after=after, limit=_PAGE)
        some = [record for record in page if first <= record.key <= last]
        for standing in await asyncio.to_thread(_read, some, wanted):
            yield standing
        if len(page) < _PAGE or page[-1].key > last:
            return
        after = page[-1].key


def _read(some: list[Record], wanted: Wanted) -> list[Standing]:
    found = (read_snapshot(record) for record in some)
    return [each.of(wanted) for each in found if each is not None]


def _views(found: list[Standing]) -> tuple[HistoryPoint, ...]:
    return tuple(_view(each) for each in points(found))


def _view(point: Point) -> HistoryPoint:
    depths: Depths = point.depths
    age_ms = depths.oldest_age_ms
    return HistoryPoint(
        at=show_at(point.at),
        seconds=point.length_ms / 1000,
        counts=point.counts,
        wait=_quantiles(point.waits),
        run=_quantiles(point.runs),
        ready=depths.ready,
        delayed=depths.delayed,
        blocked=depths.blocked,
        leased=depths.leased,
        dead=depths.dead,
        oldest_age=None if age_ms is None else age_ms / 1000,
    )


def _quantiles(found: Histogram) -> Quantiles | None:
    count = found.count
    if not count:
        return None
    half, most, nearly = (found.quantile(share) or 0 for share in (0.5, 0.95, 0.99))
    return Quantiles(
        p50=_seconds(half),
        p95=_seconds(most),
        p99=_seconds(nearly),
        mean=_seconds(found.total / count),
    )


def _seconds(ms: float) -> float:
    return round(ms / 1000, 4)


OPERATIONS: tuple[Operation, ...] = (show_history,)
