"""The recent activity of queues, from the counters of all processes: for stores that cannot search
their jobs, and where a search of every queue would cost too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.scaling import Activity
from holdfast.engines.base import Engine
from holdfast.engines.extras import ArrivalRates, extra
from holdfast.errors import Forbidden, Unsupported
from holdfast.telemetry.accounts import FleetReader, FleetTotals
from holdfast.telemetry.meter import QueueTotals
from holdfast.telemetry.snapshots import (
    Snapshot,
    SnapshotSlice,
    chart_points,
    endings,
    read_snapshots,
    take_snapshot,
    unfinished,
)

WINDOW_MS: Final = 10 * bounds.MINUTE_MS
"""Older jobs say little about the current load."""


class ActivityReader:
    """Reads the activity of queues. `store` is the engine without its wrappers: one that knows how
    many jobs arrive is asked for it."""

    def __init__(self, engine: Engine, store: object) -> None:
        self._engine = engine
        self._rates = extra(store, ArrivalRates)
        self._fleet = FleetReader(engine)

    async def read(self, names: Collection[str], *, now: int) -> dict[str, Activity]:
        """The activity of these queues in the last ten minutes. `now` is a wall clock."""
        stored: list[Snapshot] = []
        fleet = FleetTotals()
        try:
            fleet = await self._fleet.fleet()
            within = (now - WINDOW_MS, now)
            stored = [each async for each in read_snapshots(self._engine, "minute", within, _same)]
        except (Forbidden, Unsupported):
            # The token may not read counters, or the store has no records.
            pass
        found = await asyncio.to_thread(activity_of, names, stored, fleet, now)
        rates = {} if self._rates is None else await self._rates.arrivals(names)
        return {
            name: replace(each, arrivals=rates.get(name, each.arrivals))
            for name, each in found.items()
        }


def activity_of(
    names: Collection[str], stored: Sequence[Snapshot], fleet: FleetTotals, now: int
) -> dict[str, Activity]:
    """The activity of queues from stored snapshots, oldest first, and the present counts."""
    present = take_snapshot(fleet, (), now)
    return {
        name: _activity([each.of(name.__eq__) for each in (*stored, present)], fleet, name)
        for name in names
    }


def _activity(slices: Sequence[SnapshotSlice], fleet: FleetTotals, name: str) -> Activity:
    recent = QueueTotals()
    span_ms = 0
    for point in chart_points(slices):
        recent.absorb(QueueTotals(point.counts, point.waits, point.runs))
        span_ms += point.length_ms
    if not recent.runs.count:
        # Nothing ended lately: earlier jobs show how long one takes.
        recent.runs = fleet.totals.queues.get(name, QueueTotals()).runs
    counts, runs = recent.counts, recent.runs
    ended = counts.get("completed", 0) + counts.get("dead", 0)
    came = max(counts.get("enqueued", 0), endings(counts) + _growth(slices[:-1]))
    return Activity(
        arrivals=came * 1000 / max(span_ms, bounds.MINUTE_MS) if span_ms else 0.0,
        run_ms=runs.total / runs.count if runs.count else None,
        attempts=max(1.0, counts.get("leased", 0) / ended) if ended else 1.0,
        ended=ended,
        failed=counts.get("dead", 0),
    )


def _growth(slices: Sequence[SnapshotSlice]) -> int:
    """By how much the queue grew: jobs of programs that count nothing are known only by it."""
    return unfinished(slices[-1].depths) - unfinished(slices[0].depths) if slices else 0


def _same(snapshot: Snapshot) -> Snapshot:
    return snapshot
