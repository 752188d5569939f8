"""History for charts: counters of each minute, hour or day, and the depths of queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.errors import UnknownQueue, UsageError
from holdfast.notation.durations import show_at
from holdfast.notation.filters import instant
from holdfast.notation.job import QueueName
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.live.metrics import snapshot_reader
from holdfast.server.rest.shapes import Instant
from holdfast.telemetry.meter import Histogram
from holdfast.telemetry.snapshots import (
    STEPS,
    Depths,
    Point,
    QueueFilter,
    SnapshotSlice,
    Step,
    chart_points,
    read_snapshots,
    take_snapshot,
)

POINTS_MAX = 1_500
_DEFAULT_SPAN_MS = {"minute": bounds.HOUR_MS, "hour": 2 * bounds.DAY_MS, "day": 60 * bounds.DAY_MS}


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`from` and `to` are times such as 2026-01-31T08:00Z, or durations ago such as 1h."""

    queue: QueueName | None = None
    step: Step = "minute"
    since: Instant | None = msgspec.field(default=None, name="from")
    before: Instant | None = msgspec.field(default=None, name="to")


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, as exact as the buckets of the histogram."""

    p50: float
    p95: float
    p99: float
    mean: float


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` cover the `seconds` from `at` on; the depths are those at their end. `arrivals` also
    has jobs of programs that report no counts, which are known by the growth of the queue."""

    at: str
    seconds: float
    counts: dict[str, int]
    arrivals: int
    wait: Quantiles | None
    run: Quantiles | None
    ready: int
    delayed: int
    blocked: int
    leased: int
    dead: int
    oldest_age: float | None


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a chart, oldest first."""

    step: Step
    queue: str | None
    points: tuple[HistoryPoint, ...]


@operation("GET", "/v1/history", needs=Scope.OBSERVE)
async def show_history(call: ApiCall, query: HistoryQuery) -> HistoryView:
    """Show the history of one queue or of all. The last point ends now."""
    now = wall_ms()
    before, since = instant("to", query.before), instant("from", query.since)
    to = now if before is None else min(before, now)
    start = to - _DEFAULT_SPAN_MS[query.step] if since is None else min(since, to)
    if (to - start) // STEPS[query.step] > POINTS_MAX:
        raise UsageError(f"more than {POINTS_MAX} points: choose a shorter time or a longer step")
    now_snapshot = await snapshot_reader(call.app).for_caller(call.caller)
    known = {view.queue.name for view in now_snapshot.views}
    if query.queue is not None and query.queue not in known:
        # The snapshot may be older than the queue.
        found_now = await call.engine.queues(names=[query.queue], counts=False)
        if not found_now:
            raise UnknownQueue(f"unknown queue {query.queue}: see GET /v1/queues")

    def wanted(name: str) -> bool:
        visible = not call.caller.prefix or call.caller.owns(name)
        return visible and query.queue in (None, name)

    found = [each async for each in stored_slices(call.app.engine, query.step, (start, to), wanted)]
    if to >= now:
        found.append(take_snapshot(now_snapshot.fleet, now_snapshot.views, now).of(wanted))
    return HistoryView(
        step=query.step,
        queue=query.queue,
        points=await asyncio.to_thread(_views, found),
    )


def stored_slices(
    engine: Engine, step: Step, within: tuple[int, int], wanted: QueueFilter
) -> AsyncIterator[SnapshotSlice]:
    """Stored snapshots of the wanted queues, from the one at which the first point begins."""
    return read_snapshots(engine, step, within, lambda each: each.of(wanted))


def _views(found: list[SnapshotSlice]) -> tuple[HistoryPoint, ...]:
    return tuple(_view(each) for each in chart_points(found))


def _view(point: Point) -> HistoryPoint:
    depths: Depths = point.depths
    age_ms = depths.oldest_age_ms
    return HistoryPoint(
        at=show_at(point.at),
        seconds=point.length_ms / 1000,
        counts=point.counts,
        arrivals=point.arrivals,
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
    p50, p95, p99 = (found.quantile(share) or 0 for share in (0.5, 0.95, 0.99))
    return Quantiles(
        p50=_seconds(p50),
        p95=_seconds(p95),
        p99=_seconds(p99),
        mean=_seconds(found.total / count),
    )


def _seconds(ms: float) -> float:
    return round(ms / 1000, 4)


OPERATIONS: tuple[Operation, ...] = (show_history,)
