"""CloudWatch's GetMetricData and GetMetricStatistics for the namespace AWS/SQS.

The values come from the snapshots that upkeep stores each minute, hour and day, so every server
gives the same ones, and a minute is known once it is over. Other metrics, and queues that do not
exist, have no values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core import bounds
from holdfast.errors import Forbidden
from holdfast.server.access.caller import Scope, missing_scope
from holdfast.server.live.history import stored_slices
from holdfast.server.sqs import errors
from holdfast.server.sqs.call import SqsCall
from holdfast.server.sqs.catalog import KnownQueue
from holdfast.server.sqs.cloudwatch_shapes import (
    Datapoint,
    Dimension,
    GetMetricDataRequest,
    GetMetricDataResult,
    GetMetricStatisticsRequest,
    GetMetricStatisticsResult,
    MetricDataQuery,
    MetricDataResult,
)
from holdfast.server.sqs.errors import SqsError
from holdfast.server.sqs.shapes import Answer
from holdfast.telemetry.snapshots import STEPS, Point, Step, chart_points

NAMESPACE: Final = "AWS/SQS"
QUERIES_MAX: Final = 100
DATAPOINTS_MAX: Final = 1_440

_FIELDS: Final = {
    "SampleCount": "sample_count",
    "Average": "average",
    "Sum": "sum",
    "Minimum": "minimum",
    "Maximum": "maximum",
}
"""The statistics, and their fields."""
_SUMS: Final = {
    "NumberOfMessagesSent": "sqs_sent",
    "NumberOfMessagesReceived": "sqs_received",
    "NumberOfEmptyReceives": "sqs_empty_receives",
    "NumberOfMessagesDeleted": "sqs_deleted",
    "NumberOfDeduplicatedSentMessages": "sqs_deduplicated",
}
_AGE: Final = "ApproximateAgeOfOldestMessage"
_SIZE: Final = "SentMessageSize"
_UNITS: Final = {
    **dict.fromkeys(_SUMS, "Count"),
    "ApproximateNumberOfMessagesVisible": "Count",
    "ApproximateNumberOfMessagesNotVisible": "Count",
    "ApproximateNumberOfMessagesDelayed": "Count",
    _AGE: "Seconds",
    _SIZE: "Bytes",
}
"""The metrics, and their units."""


async def get_metric_statistics(
    call: SqsCall, request: GetMetricStatisticsRequest
) -> GetMetricStatisticsResult:
    """The statistics of one metric, oldest first."""
    if request.extended_statistics:
        raise _unsupported_statistic()
    if not request.statistics:
        raise errors.missing_parameter("Statistics")
    for statistic in request.statistics:
        _check_statistic(statistic)
    reader = _Reader(call, request.start_time, request.end_time)
    found = await reader.read(
        request.namespace, request.metric_name, request.dimensions, request.period, request.unit
    )
    unit = _UNITS.get(request.metric_name, "None")
    wanted = {_FIELDS[statistic] for statistic in request.statistics}
    return GetMetricStatisticsResult(
        label=request.metric_name,
        datapoints=tuple(
            Datapoint(
                timestamp=at,
                unit=unit,
                **{field: getattr(sample, field) for field in wanted},
            )
            for at, sample in found
        ),
    )


async def get_metric_data(call: SqsCall, request: GetMetricDataRequest) -> GetMetricDataResult:
    """The values of several metrics, in one answer."""
    queries = request.metric_data_queries
    if not queries:
        raise errors.missing_parameter("MetricDataQueries")
    if len(queries) > QUERIES_MAX:
        raise errors.invalid_parameter(f"A request can have at most {QUERIES_MAX} queries.")
    ascending = request.scan_by == "TimestampAscending"
    if not ascending and request.scan_by not in (None, "TimestampDescending"):
        raise errors.invalid_parameter("ScanBy must be TimestampAscending or TimestampDescending.")
    reader = _Reader(call, request.start_time, request.end_time)
    results = [await _result(reader, query, ascending=ascending) for query in queries]
    return GetMetricDataResult(
        metric_data_results=tuple(
            result
            for result, query in zip(results, queries, strict=True)
            if query.return_data is not False
        )
    )


CLOUDWATCH_HANDLERS: Final[dict[str, Callable[[SqsCall, Any], Awaitable[Answer]]]] = {
    "GetMetricData": get_metric_data,
    "GetMetricStatistics": get_metric_statistics,
}


async def _result(reader: _Reader, query: MetricDataQuery, *, ascending: bool) -> MetricDataResult:
    wanted = query.metric_stat
    if wanted is None or query.expression is not None:
        raise errors.invalid_parameter(
            "Metric math is not supported: give each query a MetricStat."
        )
    _check_statistic(wanted.stat)
    metric = wanted.metric
    name = metric.metric_name or ""
    found = await reader.read(
        metric.namespace or "", name, metric.dimensions, wanted.period, wanted.unit
    )
    if not ascending:
        found.reverse()
    return MetricDataResult(
        id=query.id,
        label=query.label or name,
        timestamps=tuple(at for at, _ in found),
        values=tuple(getattr(sample, _FIELDS[wanted.stat]) for _, sample in found),
        status_code="Complete",
    )


class Sample(NamedTuple):
    """The statistics of a metric in one period."""

    sample_count: float
    sum: float
    minimum: float
    maximum: float

    @property
    def average(self) -> float:
        """The mean of the values."""
        return self.sum / self.sample_count if self.sample_count else 0.0

    def plus(self, other: Sample) -> Sample:
        """The statistics of both periods together."""
        return Sample(
            self.sample_count + other.sample_count,
            self.sum + other.sum,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
        )


class _Reader:
    """Reads metrics for one request; the points of a queue are read once for all its queries."""

    def __init__(self, call: SqsCall, start_s: float, end_s: float) -> None:
        if not call.caller.may(Scope.OBSERVE):
            raise Forbidden(missing_scope(Scope.OBSERVE))
        if start_s >= end_s:
            raise errors.invalid_parameter(
                "The parameter StartTime must be less than the parameter EndTime."
            )
        self._call = call
        self._start, self._end = (round(each * bounds.SECOND_MS) for each in (start_s, end_s))
        self._points: dict[tuple[str, Step], list[Point]] = {}

    async def read(
        self,
        namespace: str,
        metric: str,
        dimensions: Sequence[Dimension],
        period_s: int,
        unit: str | None,
    ) -> list[tuple[float, Sample]]:
        """The periods with values, by the seconds at which they begin, oldest first."""
        self._check_period(period_s)
        names = [each.value for each in dimensions if each.name == "QueueName"]
        if namespace != NAMESPACE or unit not in (None, _UNITS.get(metric)):
            return []
        if metric not in _UNITS or len(names) != 1 or len(dimensions) != 1:
            return []
        try:
            known = await self._call.queue_named(names[0])
        except SqsError:
            return []
        period_ms = period_s * bounds.SECOND_MS
        periods: dict[int, Sample] = {}
        for point in await self._points_of(known.queue, _step_of(period_ms)):
            sample = sample_of(metric, point, known)
            if sample is not None:
                begin = point.at - point.at % period_ms
                before = periods.get(begin)
                periods[begin] = sample if before is None else before.plus(sample)
        return [(begin / bounds.SECOND_MS, sample) for begin, sample in sorted(periods.items())]

    def _check_period(self, period_s: int) -> None:
        if period_s < 60 or period_s % 60:
            raise errors.invalid_parameter("The parameter Period must be a multiple of 60.")
        count = (self._end - self._start) // (period_s * bounds.SECOND_MS)
        if count > DATAPOINTS_MAX:
            raise errors.invalid_parameter(
                f"You have requested up to {count} datapoints, which exceeds the limit of"
                f" {DATAPOINTS_MAX}."
            )

    async def _points_of(self, queue: str, step: Step) -> list[Point]:
        known = self._points.get((queue, step))
        if known is None:
            # The first point begins with the snapshot before it.
            within = (self._start - STEPS[step], self._end + STEPS[step])
            slices = stored_slices(
                self._call.store, step, (max(0, within[0]), within[1]), queue.__eq__
            )
            points = chart_points([each async for each in slices])
            known = [each for each in points if self._start <= each.at < self._end]
            self._points[queue, step] = known
        return known


def sample_of(metric: str, point: Point, known: KnownQueue) -> Sample | None:
    """The sample of a metric at one point; None if there is none."""
    if metric == _SIZE:
        count, size = point.counts.get("sqs_sent", 0), point.counts.get("sqs_sent_bytes", 0)
        return Sample(count, size, size / count, size / count) if count else None
    counter, depths = _SUMS.get(metric), point.depths
    if counter is not None:
        value: float = point.counts.get(counter, 0)
    elif metric == _AGE:
        value = (depths.oldest_age_ms or 0) / bounds.SECOND_MS
    elif metric == "ApproximateNumberOfMessagesVisible":
        dead = depths.dead if known.shows_dead_letters else 0
        value = depths.ready + depths.blocked + dead
    elif metric == "ApproximateNumberOfMessagesNotVisible":
        value = depths.leased
    else:
        value = depths.delayed
    return Sample(1, value, value, value)


def _step_of(period_ms: int) -> Step:
    """The longest step of snapshots that a period is made of: longer ones are kept longer."""
    fitting: list[Step] = [step for step, ms in STEPS.items() if period_ms % ms == 0]
    return fitting[-1]


def _check_statistic(statistic: str) -> None:
    if statistic not in _FIELDS:
        raise _unsupported_statistic()


def _unsupported_statistic() -> SqsError:
    return errors.invalid_parameter(f"Only these statistics are supported: {', '.join(_FIELDS)}.")
