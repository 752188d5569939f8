"""The metrics of SQS queues under their names in CloudWatch's namespace AWS/SQS. Pure.

Where CloudWatch has a sum for each minute, these are counters that only grow: a reader takes the
difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.core.fairness import TenantView
from holdfast.core.model import QueueView
from holdfast.ops.sqs import FIFO_SUFFIX
from holdfast.server.sqs.queues import visible_count
from holdfast.telemetry.meter import SQS_COUNTERS, Counts

COUNTED: Final = {
    "number_of_messages_sent": "sqs_sent",
    "sent_message_size": "sqs_sent_bytes",
    "number_of_messages_received": "sqs_received",
    "number_of_empty_receives": "sqs_empty_receives",
    "number_of_messages_deleted": "sqs_deleted",
    "number_of_deduplicated_sent_messages": "sqs_deduplicated",
}
"""The metrics that are counters, and their names in the meter."""

GAUGES: Final = {
    "approximate_age_of_oldest_message": "Age in seconds of the oldest visible message of an SQS"
    " queue, since it became visible.",
    "approximate_number_of_messages_visible": "Messages of an SQS queue that can be received.",
    "approximate_number_of_messages_not_visible": "Messages of an SQS queue that are in flight.",
    "approximate_number_of_messages_delayed": "Messages of an SQS queue that are delayed.",
}
"""The metrics that are read from the queue."""


class SqsMetrics(Struct, frozen=True, kw_only=True, rename="pascal", omit_defaults=True):
    """The metrics of one queue by their CloudWatch names. Counters start with the first request of
    an SQS client. Only fair queues have the metrics of noisy and quiet groups, over their first
    1,000 groups."""

    queue_name: str
    approximate_age_of_oldest_message: float
    approximate_number_of_messages_visible: int
    approximate_number_of_messages_not_visible: int
    approximate_number_of_messages_delayed: int
    number_of_messages_sent: int
    sent_message_size: int
    number_of_messages_received: int
    number_of_empty_receives: int
    number_of_messages_deleted: int
    number_of_deduplicated_sent_messages: int | None = None
    approximate_number_of_noisy_groups: int | None = None
    approximate_number_of_messages_visible_in_quiet_groups: int | None = None
    approximate_number_of_messages_not_visible_in_quiet_groups: int | None = None
    approximate_age_of_oldest_message_in_quiet_groups: float | None = None


def metrics_of(
    view: QueueView,
    counts: Mapping[str, int],
    *,
    holds_dead_letters: bool,
    groups: Sequence[TenantView] = (),
) -> SqsMetrics:
    """The metrics of a queue, from its counts in the store and in the meter. `groups` are the
    tenants of a fair queue."""
    name = view.queue.name
    sums = {metric: counts.get(counter, 0) for metric, counter in COUNTED.items()}
    if not name.endswith(FIFO_SUFFIX):
        del sums["number_of_deduplicated_sent_messages"]
    gauges = gauges_of(view, holds_dead_letters=holds_dead_letters)
    return SqsMetrics(queue_name=name, **sums, **gauges, **_quiet(groups))


def gauges_of(view: QueueView, *, holds_dead_letters: bool) -> dict[str, Any]:
    """The metrics that are read from the queue."""
    values = (
        (view.oldest_age_ms or 0) / 1000,
        visible_count(view, holds_dead_letters=holds_dead_letters),
        view.leased - view.overdue,
        view.delayed,
    )
    return dict(zip(GAUGES, values, strict=True))


def families(views: Iterable[QueueView], totals: Mapping[str, Counts]) -> list[Metric]:
    """The metrics for Prometheus, of the queues that SQS clients have used."""
    used = {
        queue: each.counts
        for queue, each in sorted(totals.items())
        if any(counter in each.counts for counter in SQS_COUNTERS)
    }
    found: list[Metric] = []
    for metric, counter in COUNTED.items():
        sums = CounterMetricFamily(_prometheus(metric), SQS_COUNTERS[counter], labels=("queue",))
        for queue, counts in used.items():
            sums.add_metric((queue,), counts.get(counter, 0))
        found.append(sums)
    gauges = {
        metric: GaugeMetricFamily(_prometheus(metric), text, labels=("queue",))
        for metric, text in GAUGES.items()
    }
    views = list(views)
    dead_queues = {view.queue.dead_queue for view in views}
    for view in views:
        name = view.queue.name
        if name in used:
            values = gauges_of(view, holds_dead_letters=name in dead_queues)
            for metric, value in values.items():
                gauges[metric].add_metric((name,), value)
    return [*found, *gauges.values()]


def _prometheus(metric: str) -> str:
    """The name of a metric for Prometheus, with its unit."""
    units = {"sent_message_size": "_bytes", "approximate_age_of_oldest_message": "_seconds"}
    return f"holdfast_sqs_{metric}{units.get(metric, '')}"


def _quiet(groups: Sequence[TenantView]) -> dict[str, Any]:
    if not groups:
        return {}
    quiet = [group for group in groups if not group.noisy]
    oldest_ms = max((group.oldest_age_ms or 0 for group in quiet), default=0)
    return {
        "approximate_number_of_noisy_groups": len(groups) - len(quiet),
        "approximate_number_of_messages_visible_in_quiet_groups": sum(
            group.waiting for group in quiet
        ),
        "approximate_number_of_messages_not_visible_in_quiet_groups": sum(
            group.leased for group in quiet
        ),
        "approximate_age_of_oldest_message_in_quiet_groups": oldest_ms / 1000,
    }
