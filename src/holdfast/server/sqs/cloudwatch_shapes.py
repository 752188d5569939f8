"""The requests and answers of CloudWatch's GetMetricData and GetMetricStatistics, in AWS JSON.

Times are seconds since 1970, as that protocol writes them.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from holdfast.server.sqs.shapes import Action, Answer, Integer, Request, member_name

TARGET: Final = "GraniteServiceVersion20100801"
"""The service in the header `X-Amz-Target`."""

Time: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]


class _CloudWatchShape(Struct, frozen=True, kw_only=True, rename=member_name):
    """A part of a request or an answer, with the member names of CloudWatch."""


class Dimension(_CloudWatchShape, frozen=True, kw_only=True):
    """A part of a metric's identity: the metrics of a queue have the dimension `QueueName`."""

    name: str
    value: str


class GetMetricStatisticsRequest(Request, frozen=True, kw_only=True):
    """GetMetricStatistics."""

    namespace: str
    metric_name: str
    dimensions: tuple[Dimension, ...] = ()
    start_time: Time
    end_time: Time
    period: Integer
    statistics: tuple[str, ...] = ()
    extended_statistics: tuple[str, ...] = ()
    unit: str | None = None


class Datapoint(Answer, frozen=True, kw_only=True):
    """The statistics of one period."""

    timestamp: float
    unit: str
    sample_count: float | None = None
    average: float | None = None
    sum: float | None = None
    minimum: float | None = None
    maximum: float | None = None


class GetMetricStatisticsResult(Answer, frozen=True, kw_only=True):
    """GetMetricStatistics."""

    label: str
    datapoints: tuple[Datapoint, ...]


class MetricName(_CloudWatchShape, frozen=True, kw_only=True):
    """A metric of a queue."""

    namespace: str | None = None
    metric_name: str | None = None
    dimensions: tuple[Dimension, ...] = ()


class MetricStat(_CloudWatchShape, frozen=True, kw_only=True):
    """A metric, and the statistic to return."""

    metric: MetricName
    period: Integer
    stat: str
    unit: str | None = None


class MetricDataQuery(_CloudWatchShape, frozen=True, kw_only=True):
    """One metric of a request. Metric math is an `expression` instead."""

    id: str
    metric_stat: MetricStat | None = None
    expression: str | None = None
    label: str | None = None
    return_data: bool | None = None


class GetMetricDataRequest(Request, frozen=True, kw_only=True):
    """GetMetricData."""

    metric_data_queries: tuple[MetricDataQuery, ...]
    start_time: Time
    end_time: Time
    scan_by: str | None = None


class MetricDataResult(Answer, frozen=True, kw_only=True):
    """The values of one query."""

    id: str
    label: str
    timestamps: tuple[float, ...]
    values: tuple[float, ...]
    status_code: str


class GetMetricDataResult(Answer, frozen=True, kw_only=True):
    """GetMetricData."""

    metric_data_results: tuple[MetricDataResult, ...]


CLOUDWATCH_ACTIONS: Final[dict[str, Action]] = {
    action.name: action
    for action in (
        Action("GetMetricData", GetMetricDataRequest, GetMetricDataResult),
        Action("GetMetricStatistics", GetMetricStatisticsRequest, GetMetricStatisticsResult),
    )
}
