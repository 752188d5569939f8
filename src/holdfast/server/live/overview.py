"""The overview of a namespace: what needs attention, and every queue with its counts, rates, waits
and workers. It is read in a fixed number of calls, however many queues there are.

Numbers that are not known are null, never 0.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import __version__
from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.explain import ABSENT_MS
from holdfast.core.model import QueueView
from holdfast.core.workers import Health, worker_queue
from holdfast.engines.base import Engine
from holdfast.engines.extras import Partitioned, PartitionView, extra
from holdfast.notation.durations import show_at
from holdfast.ops.alerts import StoredAlert
from holdfast.ops.breakers import StoredBreaker, read_breakers
from holdfast.ops.gates import Gates, GateView
from holdfast.ops.queues import COUNTS, PAUSES, Pause, queue_counts, worth_showing
from holdfast.ops.workers import Workers, WorkerView
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Caller
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.live.attention import Attention, AttentionFacts, attention
from holdfast.server.live.metrics import USUAL, Freshness, snapshot_reader
from holdfast.telemetry.recent import QueueRecent, RecentReader, recent

_AGE_S_MAX = 0.2
_DIGITS = 2
"""Significant digits of rates and waits, so that a change below is none."""
_AGE_STEPS_S: Final = ((60, 5), (3_600, 60), (math.inf, 600))
"""Ages below the first are rounded down to a multiple of the second."""


class CountTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of all queues by state; those named in `estimated` are lower bounds."""

    ready: int
    delayed: int
    blocked: int
    leased: int
    overdue: int
    done: int
    dead: int
    estimated: tuple[str, ...]


class QueueOverview(CountTotals, frozen=True, kw_only=True):
    """A queue. `oldest_age` is in seconds and rounded down, the more the older. Rates are jobs per
    second in and out, over a minute or two; waits are seconds, of the last five minutes.
    `utilisation` is the busy share of the `slots` of its `workers`, which may serve other queues
    too. `sparkline` has the jobs that left the queue in each of the last 15 minutes, oldest
    first. Null is unknown, or for `oldest_age` and waits that there is none."""

    oldest_age: float | None
    paused: bool
    paused_reason: str | UnsetType = UNSET
    accepting: bool
    rate_in: float | None
    rate_out: float | None
    wait_p50: float | None
    wait_p95: float | None
    utilisation: float | None
    workers: int | None
    slots: int | None
    sparkline: tuple[int | None, ...]


class WorkersOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that send heartbeats, those that are unhealthy, and the slots of the former. Null
    if the store keeps no records of workers."""

    alive: int | None
    unhealthy: int | None
    slots: int | None
    busy: int | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace as of `as_of`. `attention` lists problems, the most severe first. Queues are by
    name; a worker's own queue is left out while it is open and empty."""

    as_of: str
    attention: list[Attention]
    totals: CountTotals
    queues: dict[str, QueueOverview]
    workers: WorkersOverview


@operation("GET", "/v1/overview", needs=Scope.OBSERVE)
async def show_overview(call: ApiCall) -> Overview:
    """Show what needs attention, and all queues with counts, rates, waiting times, workers and the
    jobs that ended in each of the last 15 minutes."""
    reader = overview_reader(call.app)
    return overview(await reader.read(call.engine, call.caller, wanted=Freshness(_AGE_S_MAX)))


OPERATIONS: tuple[Operation, ...] = (show_overview,)


class OverviewFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts behind an overview, as one caller may see them. `workers` is None if the store has
    no records; `serving` are those that send heartbeats, by queue. If counting the jobs takes long,
    `count_s`, the counts may be older than demanded: then they are `behind`. If they were read
    before and are still right, they are `reused`."""

    as_of: int
    count_s: float = 0.0
    behind: bool = False
    reused: bool = False
    views: Sequence[QueueView]
    recent: Mapping[str, QueueRecent]
    workers: Sequence[WorkerView] | None
    pauses: Mapping[str, Pause]
    serving: Mapping[str, Sequence[WorkerView]]
    attention: AttentionFacts


class OverviewReader:
    """Reads the facts of one namespace. Queues, counters and alerts are those of its
    `SnapshotReader`."""

    def __init__(self, app: Holdfast) -> None:
        # `_READERS` is keyed by the application: a strong reference would keep both alive.
        self._app = weakref.ref(app)
        self._recent = RecentReader()

    def has_counts(self, age_s_max: float) -> bool:
        """True if the counts of the queues are at most this old; otherwise they are read in the
        background."""
        app = self._app()
        return app is None or snapshot_reader(app).has_counts(age_s_max)

    async def read(
        self,
        engine: Engine,
        caller: Caller,
        *,
        wanted: Freshness = USUAL,
        views: Sequence[QueueView] | None = None,
    ) -> OverviewFacts:
        """The facts that a caller may see; `engine` is restricted to them. With `views`, only the
        facts about these queues are read."""
        app = self._app()
        assert app is not None
        snapshots = snapshot_reader(app)
        now, is_whole = wall_ms(), views is None
        as_of, count_s, behind, reused = now, 0.0, False, False
        if views is None:
            every = await snapshots.views(wanted)
            as_of, count_s = snapshots.as_of, snapshots.count_s
            behind, reused = snapshots.is_behind, snapshots.is_reused
            now = now if behind else as_of
            views = [each for each in every if caller.owns(each.queue.name)]
        found = {view.queue.name: QueueRecent() for view in views}
        workers: list[WorkerView] | None = None
        pauses: dict[str, Pause] = {}
        breakers: dict[str, StoredBreaker] = {}
        gates: list[GateView] = []
        if engine.traits.records:
            found = await self._read_recent(app, views, now)
            workers = await Workers(engine).all()
            if is_whole:
                breakers = await read_breakers(engine)
                gates = await Gates(engine).views()
            if any(view.queue.paused for view in views):
                pauses = await PAUSES.values(engine)
        return OverviewFacts(
            as_of=as_of,
            count_s=count_s,
            behind=behind,
            reused=reused,
            views=views,
            recent=found,
            workers=workers,
            pauses=pauses,
            serving=_serving(workers or ()),
            attention=AttentionFacts(
                views=views,
                pauses=pauses,
                recent=found,
                alerts=_own_alerts(snapshots.alerts, caller),
                workers=workers or (),
                breakers=breakers,
                gates=gates,
                # A partition has jobs of every queue, but its name is not for everyone.
                partitions=() if caller.prefix else _partitions(app),
                version=__version__,
                operates=caller.may(Scope.OPERATE),
            ),
        )

    async def _read_recent(
        self, app: Holdfast, views: Sequence[QueueView], now: int
    ) -> dict[str, QueueRecent]:
        """The recent past of the queues, from the counters of all processes."""
        history = await self._recent.history(app.engine, now)
        fleet = await snapshot_reader(app).fleet()
        jobs = {view.queue.name: _jobs(view) for view in views if not _is_inexact(view)}
        return recent([view.queue.name for view in views], history, fleet, jobs, now)


_READERS: weakref.WeakKeyDictionary[Holdfast, OverviewReader] = weakref.WeakKeyDictionary()


def overview_reader(app: Holdfast) -> OverviewReader:
    """The reader of an application."""
    found = _READERS.get(app)
    if found is None:
        found = _READERS[app] = OverviewReader(app)
    return found


def _own_alerts(alerts: Sequence[StoredAlert], caller: Caller) -> list[StoredAlert]:
    return [
        each
        for each in alerts
        if not caller.prefix or (each[0].queue and caller.owns(each[0].queue))
    ]


def overview(facts: OverviewFacts) -> Overview:
    """The overview as people read it."""
    shown = [view for view in facts.views if worth_showing(queue_counts(view))]
    return Overview(
        as_of=show_at(facts.as_of),
        attention=attention(facts.attention),
        totals=_totals(facts.views),
        queues={view.queue.name: queue_overview(view, facts) for view in shown},
        workers=_workers(facts.workers),
    )


def queue_overview(view: QueueView, facts: OverviewFacts) -> QueueOverview:
    """The entry of one queue."""
    name = view.queue.name
    found = facts.recent.get(name, QueueRecent())
    workers = facts.serving.get(name, ())
    slots = sum(each.record.capacity for each in workers)
    busy = sum(min(each.record.running, each.record.capacity) for each in workers)
    known = facts.workers is not None
    pause = facts.pauses.get(name, Pause())
    return QueueOverview(
        **{count: getattr(view, count) for count in COUNTS},
        estimated=tuple(sorted(view.estimated)),
        oldest_age=None if view.oldest_age_ms is None else shown_age(view.oldest_age_ms),
        paused=view.queue.paused,
        paused_reason=pause.text if view.queue.paused and pause.text else UNSET,
        accepting=view.queue.accepting,
        rate_in=_rounded(found.rate_in),
        rate_out=_rounded(found.rate_out),
        wait_p50=_seconds(found.wait_p50_ms),
        wait_p95=_seconds(found.wait_p95_ms),
        utilisation=round(busy / slots, 2) if slots else None,
        workers=len(workers) if known else None,
        slots=slots if known else None,
        sparkline=found.ended,
    )


def alive(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """The workers that send heartbeats."""
    return [each for each in workers if each.age_ms <= ABSENT_MS]


def _serving(workers: Sequence[WorkerView]) -> dict[str, list[WorkerView]]:
    found: dict[str, list[WorkerView]] = {}
    for each in alive(workers):
        for queue in {*each.record.queues, worker_queue(each.name)}:
            found.setdefault(queue, []).append(each)
    return found


def shown_age(age_ms: int) -> float:
    """An age in seconds, rounded down."""
    age_s = age_ms / 1000
    step = next(step for below, step in _AGE_STEPS_S if age_s < below)
    return float(age_s // step * step)


def _totals(views: Sequence[QueueView]) -> CountTotals:
    return CountTotals(
        **{count: sum(getattr(view, count) for view in views) for count in COUNTS},
        estimated=tuple(sorted(frozenset[str]().union(*(view.estimated for view in views)))),
    )


def _workers(found: Sequence[WorkerView] | None) -> WorkersOverview:
    if found is None:
        return WorkersOverview(alive=None, unhealthy=None, slots=None, busy=None)
    present = alive(found)
    return WorkersOverview(
        alive=len(present),
        unhealthy=sum(each.health is Health.UNHEALTHY for each in found),
        slots=sum(each.record.capacity for each in present),
        busy=sum(min(each.record.running, each.record.capacity) for each in present),
    )


def _jobs(view: QueueView) -> int:
    return view.ready + view.delayed + view.blocked + view.leased


def _is_inexact(view: QueueView) -> bool:
    return any(name in view.estimated for name in ("ready", "delayed", "blocked", "leased"))


def _partitions(app: Holdfast) -> list[PartitionView]:
    partitioned = extra(app.engine, Partitioned)
    return [] if partitioned is None else partitioned.partitions()


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else _rounded(ms / bounds.SECOND_MS)


def _rounded(value: float | None) -> float | None:
    if value is None or value == 0 or not math.isfinite(value):
        return value
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
