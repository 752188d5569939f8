"""CloudWatch: the metrics of SQS queues that no attribute has, and metrics of our own.

CloudWatch is minutes behind and asking it costs money, so a value is read at most once a minute. No
call of the engine fails or waits for long because of it: a value that cannot be read is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from holdfast.core import bounds
from holdfast.core.text import without_credentials
from holdfast.engines.sqs import faults
from holdfast.engines.sqs.threads import ThreadPool
from holdfast.errors import ConfigError
from holdfast.process import LogOnce

FRESH_S: Final = 60.0
"""How long a value is used: CloudWatch has one for each minute."""
WAIT_S: Final = 3.0
"""How long a caller waits for a read; it goes on in the background."""
FAILED_S: Final = 60.0
NAMES_MAX: Final = 1_000
"""Queues of one read: the others have no values."""
QUERIES_MAX: Final = 100
DATA_MAX: Final = 1_000
"""Metrics of one PutMetricData."""
WINDOW: Final = timedelta(minutes=10)
"""A value that is older is unknown: CloudWatch stops for a queue that nobody uses."""

_CONNECT_S: Final = 3
_READ_S: Final = 10
_VALUE_MAX: Final = bounds.COUNT_MAX // bounds.SECOND_MS
_AWS_HOSTS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_NAMESPACE: Final = re.compile(r"(?!AWS/)[A-Za-z0-9._/#:-]{1,255}\Z")
_SECONDS: Final = frozenset({"OldestAge"})

_log = logging.getLogger("holdfast.cloudwatch")


class SqsMetric(NamedTuple):
    """A metric of AWS/SQS, and the statistic that is read: its latest value, or the mean of whole
    minutes."""

    name: str
    statistic: str
    is_mean: bool = False


AGE: Final = SqsMetric("ApproximateAgeOfOldestMessage", "Maximum")
SENT: Final = SqsMetric("NumberOfMessagesSent", "Sum", is_mean=True)


class CloudWatchReader:
    """Reads metrics of SQS queues of one region by their names on SQS. `endpoint` is that of the
    SQS client: an address that is not AWS's serves CloudWatch too."""

    def __init__(
        self, region: str, endpoint: str | None, *, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self._client = _CloudWatchClient(region, _endpoint_of(endpoint))
        self._clock_s = clock_s
        self._known: dict[tuple[SqsMetric, str], tuple[float, float | None]] = {}
        self._reads: dict[SqsMetric, asyncio.Task[None]] = {}
        self._paused_until: dict[SqsMetric, float] = {}
        self._log = LogOnce(_log)

    async def ages_ms(self, names: Collection[str]) -> dict[str, int]:
        """The age of the oldest message by queue, for queues that have messages; one whose age is
        unknown is left out. An age of 0 is unknown: it was measured when the queue was empty."""
        found = await self._values(AGE, names)
        return {name: round(age_s * bounds.SECOND_MS) for name, age_s in found.items() if age_s}

    async def arrivals(self, names: Collection[str]) -> dict[str, float]:
        """Messages sent per second by queue, over the last minutes; those unknown are left out."""
        found = await self._values(SENT, names)
        return {name: sent / 60 for name, sent in found.items()}

    async def close(self) -> None:
        """End the reads. Idempotent."""
        reads = list(self._reads.values())
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        self._client.close()

    async def _values(self, metric: SqsMetric, names: Collection[str]) -> dict[str, float]:
        now = self._clock_s()
        wanted = [name for name in names if self._known.get((metric, name), (0.0, None))[0] <= now]
        task = self._reads.get(metric)
        if wanted and task is None and self._paused_until.get(metric, 0.0) <= now:
            task = asyncio.create_task(self._read(metric, wanted[:NAMES_MAX]))
            self._reads[metric] = task
            task.add_done_callback(lambda _: self._reads.pop(metric, None))
        if wanted and task is not None:
            await asyncio.wait((task,), timeout=WAIT_S)
        found = {name: self._known.get((metric, name), (0.0, None))[1] for name in names}
        return {name: value for name, value in found.items() if value is not None}

    async def _read(self, metric: SqsMetric, names: Sequence[str]) -> None:
        """Read values; those before them are forgotten if that fails."""
        now = self._clock_s()
        self._known = {key: known for key, known in self._known.items() if known[0] > now}
        try:
            for at in range(0, len(names), QUERIES_MAX):
                part = names[at : at + QUERIES_MAX]
                found = await self._client.ask("GetMetricData", **_request(metric, part))
                values = _latest(metric, part, found)
                until = self._clock_s() + FRESH_S
                self._known |= {(metric, name): (until, values.get(name)) for name in part}
        except Exception as error:  # noqa: BLE001 (whatever it is, the queues can be read without it)
            self._paused_until[metric] = self._clock_s() + FAILED_S
            self._log.warning(f"{metric.name} of the queues stays unknown: {error}")


class CloudWatchSink:
    """Publishes metrics of queues in a namespace of CloudWatch. The region, the credentials and
    the endpoint are those of the environment (AWS_REGION, AWS_ENDPOINT_URL_CLOUDWATCH)."""

    def __init__(self, namespace: str) -> None:
        if not _NAMESPACE.match(namespace):
            raise ConfigError(
                f"the CloudWatch namespace {namespace[:80]!r} is not valid: use up to 255"
                " characters of A-Z a-z 0-9 . _ / # : -, and do not begin with AWS/"
            )
        self._namespace = namespace
        self._client = _CloudWatchClient(None, None)

    async def put(self, values: Mapping[str, Mapping[str, float]]) -> None:
        """Publish the metrics of queues: values by queue, then by metric. Raises HoldfastError. A
        repeat of what was published changes no maximum and no mean."""
        data = [
            {
                "MetricName": metric,
                "Dimensions": [{"Name": "QueueName", "Value": queue}],
                "Value": value,
                "Unit": "Seconds" if metric in _SECONDS else "Count",
            }
            for queue, metrics in values.items()
            for metric, value in metrics.items()
        ]
        for at in range(0, len(data), DATA_MAX):
            part = data[at : at + DATA_MAX]
            await self._client.ask("PutMetricData", Namespace=self._namespace, MetricData=part)

    def close(self) -> None:
        """End the client. Idempotent."""
        self._client.close()


class _CloudWatchClient:
    """boto3's client of CloudWatch in one thread of its own, made when it is first used."""

    def __init__(self, region: str | None, endpoint: str | None) -> None:
        self._region = region
        self._endpoint = endpoint
        self._pool: ThreadPool | None = None
        self._made: Any = None

    async def ask(self, action: str, **asked: Any) -> dict[str, Any]:
        """The answer to a request. Raises HoldfastError."""
        if self._pool is None:
            self._pool = ThreadPool("holdfast cloudwatch", 1, self._end)
        try:
            return await self._pool.submit(lambda: self._call(action, asked)).future
        except NoRegionError:
            raise ConfigError(
                f"no AWS region for CloudWatch: set AWS_REGION for {action}, e.g. eu-west-1"
            ) from None
        except (BotoCoreError, ClientError, OSError, ValueError) as error:
            where = without_credentials(self._endpoint or self._region or "its region")
            raise faults.explain(
                error, action, where, doubtful=False, service=faults.CLOUDWATCH
            ) from None

    def close(self) -> None:
        """Let the thread end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def _call(self, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        """In the thread."""
        if self._made is None:
            self._made = self._make()
        method = {"GetMetricData": "get_metric_data", "PutMetricData": "put_metric_data"}[action]
        answer: dict[str, Any] = getattr(self._made, method)(**asked)
        return answer

    def _make(self) -> Any:
        import boto3.session
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": 2},
        )
        return boto3.session.Session().client(
            "cloudwatch", region_name=self._region, endpoint_url=self._endpoint, config=config
        )

    def _end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()


def _endpoint_of(sqs: str | None) -> str | None:
    """The endpoint of CloudWatch beside one of SQS; None for the one that AWS's own variables and
    the region give."""
    host = urlsplit(sqs).hostname if sqs else None
    is_aws = host is None or host.endswith(_AWS_HOSTS)
    return None if is_aws or os.environ.get("AWS_ENDPOINT_URL_CLOUDWATCH") else sqs


def _request(metric: SqsMetric, names: Sequence[str]) -> dict[str, Any]:
    end = datetime.now(UTC).replace(second=0, microsecond=0)
    if not metric.is_mean:
        end += timedelta(minutes=1)
    return {
        "StartTime": end - WINDOW,
        "EndTime": end,
        "ScanBy": "TimestampDescending",
        "MetricDataQueries": [
            {
                "Id": f"q{at}",
                "MetricStat": {
                    "Metric": {
                        "Namespace": "AWS/SQS",
                        "MetricName": metric.name,
                        "Dimensions": [{"Name": "QueueName", "Value": name}],
                    },
                    "Period": 60,
                    "Stat": metric.statistic,
                },
            }
            for at, name in enumerate(names)
        ],
    }


def _latest(metric: SqsMetric, names: Sequence[str], answer: dict[str, Any]) -> dict[str, float]:
    """The value of each queue that has one, by its name."""
    found: dict[str, float] = {}
    for at, values in _results(answer):
        if at < len(names) and values:
            found[names[at]] = sum(values) / len(values) if metric.is_mean else values[0]
    return found


def _results(answer: dict[str, Any]) -> Iterator[tuple[int, list[float]]]:
    """The number and the values of each query; a value that is no count is left out."""
    for result in answer.get("MetricDataResults", ()):
        number = str(result.get("Id", ""))[1:]
        values = [float(each) for each in result.get("Values", ())]
        good = [each for each in values if math.isfinite(each) and 0 <= each <= _VALUE_MAX]
        if number.isdecimal() and len(number) < 5:
            yield int(number), good
