"""The fleet's counts as Prometheus reads them: the same from every server of a namespace.

Read from the store, so that workers attached directly to the database are seen too; and at most
every other second, so that asking often cannot hurt. The names of queues are bounded, and there
are no others that users choose.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Annotated
from weakref import WeakKeyDictionary

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from holdfast.alerts import RULES
from holdfast.app import Holdfast
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.seeing import Sight, seen_of
from holdfast.telemetry.totals import COUNTERS, OTHER, Histogram, label_of

TEXT = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead", "cancelled")


@operation("GET", "/metrics", needs=Scope.OPERATE)
async def show_metrics(call: Call) -> Annotated[bytes, TEXT]:
    """The counts of this namespace in the text format of Prometheus."""
    sight = await seen_of(call.app).for_caller(call.caller)
    known = _WRITTEN.get(call.app)
    if known is not None and known[0] is sight:
        writing = known[1]
    else:
        # A hundred queues make ten thousand lines, while which others shall be answered.
        writing = asyncio.ensure_future(asyncio.to_thread(exposed, sight))
        if not call.caller.prefix:
            _WRITTEN[call.app] = (sight, writing)
    return await asyncio.shield(writing)


_WRITTEN: WeakKeyDictionary[Holdfast, tuple[Sight, asyncio.Future[bytes]]] = WeakKeyDictionary()
"""For all who ask until something else is seen."""


def exposed(sight: Sight) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(sight)))
    return generate_latest(registry)


def families(sight: Sight) -> list[Metric]:
    """Every metric, with its help."""
    totals = sight.fleet.totals
    return [
        *_depths(sight),
        GaugeMetricFamily(
            "holdfast_processes",
            "Processes that count what they do: workers, servers, upkeep.",
            value=sight.fleet.processes,
        ),
        _alerts(sight),
        *_counters(sight),
        _by_queue("holdfast_wait", "Time from due to leased.", sight, "waits"),
        _by_queue("holdfast_run", "Time from leased to settled.", sight, "runs"),
        _histograms(
            "holdfast_loop_lag_seconds",
            "How late the event loops of processes came, by what they are.",
            ("role",),
            (((role,), each) for role, each in totals.lags.items()),
        ),
        _histograms(
            "holdfast_commit_batch_jobs",
            "Jobs in one call of the engine, and so in one transaction, by verb.",
            ("verb",),
            (((verb,), each) for verb, each in totals.batches.items()),
            unit_ms=False,
        ),
        _histograms(
            "holdfast_request_seconds",
            "Requests to the servers, by operation and class of status.",
            ("operation", "status"),
            (
                ((name, status), each)
                for name, by_status in totals.requests.items()
                for status, each in by_status.items()
            ),
        ),
    ]


def _depths(sight: Sight) -> list[Metric]:
    """A queue beyond the bound is part of the others."""
    jobs = GaugeMetricFamily(
        "holdfast_jobs",
        "Jobs by queue and state; of many it is at least so many.",
        labels=("queue", "state"),
    )
    oldest = GaugeMetricFamily(
        "holdfast_oldest_age_seconds",
        "How long the longest-due ready job of a queue has been due.",
        labels=("queue",),
    )
    paused = GaugeMetricFamily(
        "holdfast_queue_paused", "1 while nothing is leased from the queue.", labels=("queue",)
    )
    counts: dict[str, dict[str, int]] = {}
    ages: dict[str, int] = {}
    # The names that the counters have come first.
    names = dict.fromkeys(sight.fleet.totals.queues)
    for view in sight.views:
        label = label_of(view.queue.name, names)
        names[label] = None
        found = counts.setdefault(label, dict.fromkeys(_STATES, 0))
        for state in _STATES:
            found[state] += getattr(view, state)
        ages[label] = max(ages.get(label, 0), view.oldest_age_ms or 0)
        if label != OTHER:
            paused.add_metric((label,), int(view.queue.paused))
    for label, states in counts.items():
        oldest.add_metric((label,), ages[label] / 1000)
        for state, count in states.items():
            jobs.add_metric((label, state), count)
    return [jobs, oldest, paused]


def _alerts(sight: Sight) -> Metric:
    family = GaugeMetricFamily(
        "holdfast_alerts", "Alerts that are raised, by rule.", labels=("rule", "severity")
    )
    counts = Counter(alert.rule for alert in sight.alerts)
    for rule in RULES.values():
        family.add_metric((rule.name, rule.severity), counts[rule.name])
    return family


def _counters(sight: Sight) -> list[Metric]:
    found: list[Metric] = []
    for name, says in COUNTERS.items():
        family = CounterMetricFamily(f"holdfast_{name}", says, labels=("queue",))
        for queue, totals in sorted(sight.fleet.totals.queues.items()):
            family.add_metric((queue,), totals.counts.get(name, 0))
        found.append(family)
    return found


def _by_queue(name: str, says: str, sight: Sight, part: str) -> Metric:
    queues = sorted(sight.fleet.totals.queues.items())
    some = (((queue,), getattr(totals, part)) for queue, totals in queues)
    return _histograms(f"{name}_seconds", says, ("queue",), some)


def _histograms(
    name: str,
    says: str,
    labels: tuple[str, ...],
    some: Iterable[tuple[tuple[str, ...], Histogram]],
    *,
    unit_ms: bool = True,
) -> Metric:
    family = HistogramMetricFamily(name, says, labels=labels)
    unit = 1000 if unit_ms else 1
    for values, each in some:
        below, buckets = 0, []
        for bound, count in zip(each.bounds, each.counts, strict=False):
            below += count
            buckets.append((f"{bound / unit:g}", below))
        family.add_metric(values, [*buckets, ("+Inf", each.count)], each.total / unit)
    return family


class _Once(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


OPERATIONS: tuple[Operation, ...] = (show_metrics,)
