"""The service that publishes the depth, the age and the wanted workers of each queue to CloudWatch,
every minute. All processes share one record of the last time, so that one of them publishes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from holdfast.core import bounds
from holdfast.core.bounds import Instant
from holdfast.core.model import QueueView
from holdfast.core.scaling import Goal
from holdfast.core.workers import addressee
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.events import Tell, ignore_event
from holdfast.ops.records import RecordKind
from holdfast.ops.scaling import ReadActivity, Scaling, read_scaling
from holdfast.ops.service import run_service
from holdfast.process import LogOnce

EXPORT_KIND: Final = "cloudwatch"
EXPORT_KEY: Final = "last"
INTERVAL_MS: Final = bounds.MINUTE_MS
QUEUES_MAX: Final = 500
"""The first queues by name: CloudWatch charges for each metric."""

_JITTER_MS: Final = 5 * bounds.SECOND_MS

_log = logging.getLogger("holdfast.cloudwatch")


class ExportTime(msgspec.Struct, frozen=True):
    """The last time at which a process began to publish, by its own clock."""

    at: Instant = 0


EXPORTS = RecordKind(EXPORT_KIND, ExportTime, label="the CloudWatch metrics", fallback=ExportTime)


class QueueMetricsSink(Protocol):
    """Where the metrics of queues go."""

    async def put(self, values: Mapping[str, Mapping[str, float]]) -> None:
        """Publish values by queue, then by metric. Raises HoldfastError."""

    def close(self) -> None:
        """End the client. Idempotent."""


class CloudWatchExporter:
    """Publishes every 60 to 65 seconds. No job depends on it: metrics that cannot be published are
    left out, and the reason is logged once."""

    name = "CloudWatch exporter"
    sleep_ms_max = INTERVAL_MS

    def __init__(
        self,
        engine: Engine,
        sink: QueueMetricsSink,
        activity: ReadActivity,
        wall_ms: Callable[[], int],
        *,
        tell: Tell = ignore_event,
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._activity = activity
        self._wall_ms = wall_ms
        self._tell = tell
        self._log = LogOnce(_log)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        try:
            await run_service(self, stop, self._tell)
        finally:
            self._sink.close()

    async def once(self) -> int | None:
        """Publish, unless a process has done so within the last minute."""
        wait_ms = await self._claim()
        if wait_ms <= 0:
            await self._export()
            wait_ms = INTERVAL_MS
        return wait_ms + random.randrange(_JITTER_MS)

    async def _claim(self) -> int:
        """0 if this process is to publish now; otherwise the time to the next try. A process that
        is killed after this leaves out one minute."""
        if not self._engine.traits.records:
            return 0
        known = await EXPORTS.read(self._engine, EXPORT_KEY)
        if known is not None and known.age_ms < INTERVAL_MS:
            return INTERVAL_MS - known.age_ms
        version = 0 if known is None else known.version
        exported = ExportTime(at=self._wall_ms())
        won = await EXPORTS.save(self._engine, EXPORT_KEY, exported, version)
        return 0 if won else INTERVAL_MS

    async def _export(self) -> None:
        views = await self._engine.queues()
        found = await read_scaling(
            self._engine, None, Goal(), now=self._wall_ms(), activity=self._activity, views=views
        )
        values = metrics_of(views, found)
        if len(values) > QUEUES_MAX:
            self._log.warning(f"only the first {QUEUES_MAX} of {len(values)} queues are published")
            values = dict(list(values.items())[:QUEUES_MAX])
        try:
            await self._sink.put(values)
        except HoldfastError as error:
            self._log.warning(f"metrics are not published: {error}")


def metrics_of(
    views: Sequence[QueueView], scalings: Sequence[Scaling]
) -> dict[str, dict[str, float]]:
    """The metrics of each queue but the workers' own. An age that is unknown is left out."""
    advised = {each.queue: each.advice.workers for each in scalings}
    found: dict[str, dict[str, float]] = {}
    for view in views:
        name = view.queue.name
        if addressee(name) is not None:
            continue
        metrics: dict[str, float] = {"Ready": view.ready}
        if not view.is_age_unknown:
            metrics["OldestAge"] = (view.oldest_age_ms or 0) / bounds.SECOND_MS
        if name in advised:
            metrics["DesiredWorkers"] = advised[name]
        found[name] = metrics
    return found
