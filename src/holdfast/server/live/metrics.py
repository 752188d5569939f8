"""Metrics in the Prometheus text format: the same on every server of a namespace. They come from a
snapshot of queues, alerts and counters that all readers of a namespace share. It is read from the
store, which includes workers attached directly to it, and at most every two seconds, so that
frequent scrapes cost nothing. `SnapshotReader.for_caller` is the one place that removes what a
caller may not see. The number of queue names is bounded, and users choose no other label.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Final, NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast.alerts.rules import RULES
from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.dead_messages import OUTCOMES
from holdfast.core.fairness import TenantView
from holdfast.core.model import QueueView
from holdfast.engines.broker import BrokerStatus
from holdfast.errors import NotFound
from holdfast.notation.job import QueueName
from holdfast.ops.alerts import Alert, StoredAlert, read_alerts
from holdfast.ops.broker_status import read_broker_status
from holdfast.ops.gates import COUNTS
from holdfast.ops.queues import find_queue
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Caller
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.sqs import metrics as sqs_metrics
from holdfast.server.sqs.metrics import SqsMetrics
from holdfast.telemetry.accounts import FleetReader, FleetTotals
from holdfast.telemetry.meter import (
    COUNTERS,
    DEAD_MESSAGES,
    OTHER,
    QUEUES_MAX,
    Histogram,
    Totals,
    queue_label,
)

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")
_SNAPSHOT_AGE_S_MAX = 2.0
_BROKER_AGE_S_MAX = 5.0
_SLOW_S = 0.1
_COUNT_REST = 12
_COUNT_REST_S_MAX = 15.0
"""If counting all jobs takes longer than the first, it is done in the background, with pauses this
many times as long, up to the last."""
BEHIND_S_MAX = 20.0
"""Counts that are older than this are waited for."""


@operation("GET", "/metrics", needs=Scope.OBSERVE)
async def show_metrics(call: ApiCall) -> Annotated[bytes, TEXT]:
    """Show the metrics of the namespace in the Prometheus text format."""
    snapshot = await snapshot_reader(call.app).for_caller(call.caller)
    known = _RENDERED.get(call.app)
    if known is not None and known[0] is snapshot:
        rendering = known[1]
    else:
        # A hundred queues make ten thousand lines: render in a thread.
        rendering = asyncio.ensure_future(asyncio.to_thread(render, snapshot))
        if not call.caller.prefix:
            _RENDERED[call.app] = (snapshot, rendering)
    return await asyncio.shield(rendering)


@operation("GET", "/v1/queues/{queue}/sqs", needs=Scope.OBSERVE)
async def show_sqs_metrics(call: ApiCall, queue: QueueName) -> SqsMetrics:
    """Show the metrics of a queue by the names of CloudWatch."""
    view = await find_queue(call.engine, queue, counts=True)
    if view is None:
        raise NotFound(f"unknown queue {queue[:80]!r}: see GET /v1/queues")
    snapshots = snapshot_reader(call.app)
    totals = (await snapshots.fleet()).totals.queues.get(queue)
    groups: tuple[TenantView, ...] = ()
    if view.queue.fairness != "off":
        groups = (await call.engine.flow(queue, limit=bounds.PAGE_MAX)).tenants
    return sqs_metrics.metrics_of(
        view,
        {} if totals is None else totals.counts,
        holds_dead_letters=any(each.queue.dead_queue == queue for each in await snapshots.views()),
        groups=groups,
    )


OPERATIONS: tuple[Operation, ...] = (show_metrics, show_sqs_metrics)

_RENDERED: WeakKeyDictionary[Holdfast, tuple[NamespaceSnapshot, asyncio.Future[bytes]]] = (
    WeakKeyDictionary()
)
"""The text of the last snapshot, shared by all scrapes until a new one is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSnapshot:
    """Queues, counters, raised alerts and the broker, as one caller may see them."""

    views: list[QueueView]
    fleet: FleetTotals
    alerts: tuple[Alert, ...] = ()
    broker: BrokerStatus | None = None


class Freshness(NamedTuple):
    """The age that queues may have, by default two seconds. The caller knows that counts up to
    `right_s_max` old are still right. If counting takes long, the counts may be up to
    `behind_s_max` old until new ones are known."""

    age_s_max: float | None = None
    right_s_max: float = 0.0
    behind_s_max: float = BEHIND_S_MAX


USUAL: Final = Freshness()


class SnapshotReader:
    """Reads the snapshots of one namespace, at most every two seconds. In a store with so many jobs
    that it takes long to count them, only readers that come first, or rarely, wait for that."""

    def __init__(self, app: Holdfast, *, age_s_max: float = _SNAPSHOT_AGE_S_MAX) -> None:
        # `_READERS` is keyed by the application: a strong reference to it here would keep both
        # alive.
        self._app = weakref.ref(app)
        self.age_s_max = age_s_max
        self.slow_s = _SLOW_S
        """Counting takes long if it takes more than this."""
        self._fleet_reader: FleetReader | None = None
        self.alerts: tuple[StoredAlert, ...] = ()
        """The raised alerts, as of the last read of the queues."""
        self.as_of: int = 0
        """The time of the last counts, by this machine's clock."""
        self.count_s: float = 0.0
        """How long counting takes: the shorter of the last two times, since one may be delayed."""
        self.is_behind: bool = False
        """True if the counts that `views` has just returned are older than demanded."""
        self.is_reused: bool = False
        """True if `views` has just returned counts that were read before, and are still right."""
        self._views: list[QueueView] = []
        self._broker: BrokerStatus | None = None
        self._broker_at = float("-inf")
        self._shared = NamespaceSnapshot(views=[], fleet=FleetTotals())
        self._counted_at = float("-inf")
        self._last_count_s = 0.0
        self._counting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def for_caller(self, caller: Caller) -> NamespaceSnapshot:
        """The snapshot that a caller may see. With a prefix it has only those queues, and no
        totals. Callers without a prefix share one object until the next read.
        """
        views, fleet = await self.views(), await self.fleet()
        if not caller.prefix:
            if self._shared.views is not views or self._shared.fleet is not fleet:
                self._shared = NamespaceSnapshot(
                    views=views,
                    fleet=fleet,
                    alerts=tuple(alert for alert, _ in self.alerts),
                    broker=await self.broker(),
                )
            return self._shared
        own = {name: each for name, each in fleet.totals.queues.items() if caller.owns(name)}
        return NamespaceSnapshot(
            views=[view for view in views if caller.owns(view.queue.name)],
            fleet=replace(fleet, totals=Totals(queues=own), processes=0),
            alerts=tuple(
                alert for alert, _ in self.alerts if alert.queue and caller.owns(alert.queue)
            ),
        )

    async def fleet(self) -> FleetTotals:
        """The counters of all processes."""
        app = self._app()
        if app is None:
            return FleetTotals()
        if self._fleet_reader is None:
            self._fleet_reader = FleetReader(app.engine, age_s_max=self.age_s_max)
        return await self._fleet_reader.fleet()

    async def broker(self) -> BrokerStatus | None:
        """The state of the broker, a few seconds old; None if there is none."""
        app = self._app()
        if app is not None and monotonic() - self._broker_at >= max(
            self.age_s_max, _BROKER_AGE_S_MAX
        ):
            self._broker = await read_broker_status(app.engine)
            self._broker_at = monotonic()
        return self._broker

    async def views(self, wanted: Freshness = USUAL) -> list[QueueView]:
        """The queues with their counts. Concurrent callers share one read. If counting takes long,
        the settings are as new as wanted, and the counts follow: see `is_behind`."""
        async with self._lock:
            app, is_slow = self._app(), self.count_s > self.slow_s
            most = self.age_s_max if wanted.age_s_max is None else wanted.age_s_max
            most = most if is_slow else min(most, self.age_s_max)
            age_s = monotonic() - self._counted_at
            is_old = app is not None and age_s >= most
            self.is_reused = age_s < wanted.right_s_max
            is_late = is_slow and age_s < wanted.behind_s_max
            self.is_behind = is_old and is_late and not self.is_reused
            if app is None or not is_old:
                return self._views
            if self.is_reused:
                self.as_of = wall_ms()
                await self._read_settings(app)
            elif not self.is_behind:
                await self._count(app)
            else:
                self._count_later(app)
                await self._read_settings(app)
            alerts = await read_alerts(app.engine) if app.engine.traits.records else []
            self.alerts = tuple(each for each in alerts if each[0].is_raised)
            return self._views

    def has_counts(self, age_s_max: float) -> bool:
        """True if the counts are at most this old; otherwise they are read in the background."""
        app = self._app()
        if app is not None and monotonic() - self._counted_at >= age_s_max:
            self._count_later(app)
            return False
        return True

    async def _count(self, app: Holdfast) -> None:
        as_of, started_at = wall_ms(), monotonic()
        views = await app.engine.queues()
        took_s = monotonic() - started_at
        self.count_s, self._last_count_s = min(took_s, self._last_count_s), took_s
        if started_at > self._counted_at:
            self._views, self.as_of, self._counted_at = views, as_of, started_at

    def _count_later(self, app: Holdfast) -> None:
        if self._counting is not None and not self._counting.done():
            return
        rest_s = min(_COUNT_REST * self.count_s, _COUNT_REST_S_MAX)
        if monotonic() >= self._counted_at + self.count_s + rest_s:
            self._counting = asyncio.create_task(self._count(app))
            # A store that does not answer is reported by the read of the settings.
            self._counting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _read_settings(self, app: Holdfast) -> None:
        """Read the settings of all queues. Only new ones are counted."""
        settings = [view.queue for view in await app.engine.queues(counts=False)]
        old = {view.queue.name for view in self._views}
        new = [queue.name for queue in settings if queue.name not in old]
        counted = await app.engine.queues(names=new) if new else []
        # After the last pause: others may have been counted meanwhile.
        known = {view.queue.name: view for view in (*counted, *self._views)}
        self._views = [
            replace(known[queue.name], queue=queue) for queue in settings if queue.name in known
        ]


_READERS: weakref.WeakKeyDictionary[Holdfast, SnapshotReader] = weakref.WeakKeyDictionary()


def snapshot_reader(app: Holdfast) -> SnapshotReader:
    """The reader of an application."""
    found = _READERS.get(app)
    if found is None:
        found = _READERS[app] = SnapshotReader(app)
    return found


def render(snapshot: NamespaceSnapshot) -> bytes:
    """A snapshot in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StaticCollector(families(snapshot)))
    return generate_latest(registry)


def families(snapshot: NamespaceSnapshot) -> list[Metric]:
    """Every metric, with its help text."""
    totals = snapshot.fleet.totals
    return [
        *_depths(snapshot),
        GaugeMetricFamily(
            "holdfast_processes",
            "Processes that report counters: workers, servers, upkeep.",
            value=snapshot.fleet.processes,
        ),
        _alerts(snapshot),
        *_of_the_broker(snapshot),
        *_counters(snapshot),
        *sqs_metrics.families(snapshot.views, totals.queues),
        _dead_messages(snapshot),
        *_gates(totals),
        _by_queue("holdfast_wait", "Time from due to leased.", snapshot, "waits"),
        _by_queue("holdfast_run", "Time from leased to settled.", snapshot, "runs"),
        _histograms(
            "holdfast_dead_message_delay_seconds",
            "Time from the expiry of a job to its end by the dead-letter handler.",
            (),
            (((), each) for each in totals.handlings.values()),
        ),
        _histograms(
            "holdfast_loop_lag_seconds",
            "Lag of the event loops of processes, by role.",
            ("role",),
            (((role,), each) for role, each in totals.lags.items()),
        ),
        _histograms(
            "holdfast_commit_batch_jobs",
            "Jobs in one engine call, and so in one transaction, by verb.",
            ("verb",),
            (((verb,), each) for verb, each in totals.batches.items()),
            unit_ms=False,
        ),
        _histograms(
            "holdfast_request_seconds",
            "Duration of requests to servers, by operation and status class.",
            ("operation", "status"),
            (
                ((name, status), each)
                for name, by_status in totals.requests.items()
                for status, each in by_status.items()
            ),
        ),
    ]


def _depths(snapshot: NamespaceSnapshot) -> list[Metric]:
    """The depths of queues, and how many are summed up as one, beyond the bound on names."""
    jobs = GaugeMetricFamily(
        "holdfast_jobs",
        "Jobs by queue and state; large counts are lower bounds.",
        labels=("queue", "state"),
    )
    oldest = GaugeMetricFamily(
        "holdfast_oldest_age_seconds",
        "Age of the oldest ready job of a queue, since it was due; no sample if it is unknown.",
        labels=("queue",),
    )
    kept = GaugeMetricFamily(
        "holdfast_deleted_after_seconds",
        "Age at which the store deletes a job of the queue without a dead letter.",
        labels=("queue",),
    )
    leased_max = GaugeMetricFamily(
        "holdfast_leased_max",
        "Leases of the queue beyond which the store grants none.",
        labels=("queue",),
    )
    paused = GaugeMetricFamily(
        "holdfast_queue_paused", "1 while the queue is paused.", labels=("queue",)
    )
    counts: dict[str, dict[str, int]] = {}
    ages: dict[str, int] = {}
    unknown: set[str] = set()
    # Names that have counters come first, then the deepest queues.
    names = dict.fromkeys(snapshot.fleet.totals.queues)
    summed = 0
    for view in sorted(snapshot.views, key=_depth, reverse=True):
        label = queue_label(view.queue.name, names)
        names[label] = None
        summed += label == OTHER
        found = counts.setdefault(label, dict.fromkeys(_STATES, 0))
        for state in _STATES:
            found[state] += getattr(view, state)
        ages[label] = max(ages.get(label, 0), view.oldest_age_ms or 0)
        if view.is_age_unknown:
            unknown.add(label)
        if label != OTHER:
            paused.add_metric((label,), int(view.queue.paused))
            if view.deleted_after_ms is not None:
                kept.add_metric((label,), view.deleted_after_ms / 1000)
            if view.leased_max is not None:
                leased_max.add_metric((label,), view.leased_max)
    for label, states in counts.items():
        if ages[label] or label not in unknown:
            oldest.add_metric((label,), ages[label] / 1000)
        for state, count in states.items():
            jobs.add_metric((label, state), count)
    summary = GaugeMetricFamily(
        "holdfast_queues_summed",
        f'Queues beyond the {QUEUES_MAX} busiest, which are summed up as queue="{OTHER}".',
        value=summed,
    )
    return [jobs, oldest, kept, leased_max, paused, summary]


def _depth(view: QueueView) -> int:
    return sum(getattr(view, state) for state in _STATES)


def _alerts(snapshot: NamespaceSnapshot) -> Metric:
    family = GaugeMetricFamily(
        "holdfast_alerts", "Raised alerts, by rule.", labels=("rule", "severity")
    )
    counts = Counter(alert.rule for alert in snapshot.alerts)
    for rule in RULES.values():
        family.add_metric((rule.name, rule.severity), counts[rule.name])
    return family


def _of_the_broker(snapshot: NamespaceSnapshot) -> list[Metric]:
    """Without a sample if there is no broker, or if it cannot be reached."""
    found = snapshot.broker
    reachable = GaugeMetricFamily("holdfast_broker_up", "1 if the broker can be reached, else 0.")
    waiting = GaugeMetricFamily(
        "holdfast_broker_dead_messages",
        "Dead messages that wait at the broker for the dead-letter handler.",
    )
    if found is not None:
        reachable.add_metric((), int(not found.error))
    if found is not None and found.dead_messages is not None:
        waiting.add_metric((), found.dead_messages)
    return [reachable, waiting]


def _dead_messages(snapshot: NamespaceSnapshot) -> Metric:
    family = CounterMetricFamily(
        "holdfast_dead_messages",
        f"Dead messages of the broker that were handled, by outcome: {', '.join(OUTCOMES)}.",
        labels=("queue", "outcome"),
    )
    for queue, totals in sorted(snapshot.fleet.totals.queues.items()):
        for outcome, counter in DEAD_MESSAGES.items():
            if counter in totals.counts:
                family.add_metric((queue, outcome), totals.counts[counter])
    return family


def _counters(snapshot: NamespaceSnapshot) -> list[Metric]:
    found: list[Metric] = []
    for name, help_text in COUNTERS.items():
        family = CounterMetricFamily(f"holdfast_{name}", help_text, labels=("queue",))
        for queue, totals in sorted(snapshot.fleet.totals.queues.items()):
            family.add_metric((queue,), totals.counts.get(name, 0))
        found.append(family)
    return found


def _gates(totals: Totals) -> list[Metric]:
    found: list[Metric] = []
    for name, help_text in COUNTS.items():
        family = CounterMetricFamily(f"holdfast_gate_{name}", help_text, labels=("gate",))
        for gate, counts in sorted(totals.gates.items()):
            if name in counts.counts:
                family.add_metric((gate,), counts.counts[name])
        found.append(family)
    return found


def _by_queue(name: str, help_text: str, snapshot: NamespaceSnapshot, part: str) -> Metric:
    queues = sorted(snapshot.fleet.totals.queues.items())
    by_queue = (((queue,), getattr(totals, part)) for queue, totals in queues)
    return _histograms(f"{name}_seconds", help_text, ("queue",), by_queue)


def _histograms(
    name: str,
    help_text: str,
    labels: tuple[str, ...],
    histograms: Iterable[tuple[tuple[str, ...], Histogram]],
    *,
    unit_ms: bool = True,
) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=labels)
    unit = 1000 if unit_ms else 1
    for values, each in histograms:
        below, buckets = 0, []
        for bound, count in zip(each.bounds, each.counts, strict=False):
            below += count
            buckets.append((f"{bound / unit:g}", below))
        family.add_metric(values, [*buckets, ("+Inf", each.count)], each.total / unit)
    return family


class _StaticCollector(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found
