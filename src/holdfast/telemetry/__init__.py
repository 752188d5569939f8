"""COUNT: each process counts its jobs into a record; upkeep sums, charts and watches them.

Any number of processes count. No job depends on it: while the store is unreachable, counts wait and
jobs continue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from holdfast.core.scaling import Activity
from holdfast.engines.base import Engine
from holdfast.engines.extras import ServerBacked, extra
from holdfast.errors import EngineClosed, EngineError, HoldfastError
from holdfast.events import Listeners
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.activity import ActivityReader
from holdfast.telemetry.bookkeeper import Bookkeeper
from holdfast.telemetry.cloudwatch import CloudWatchExporter, QueueMetricsSink
from holdfast.telemetry.meter import Meter, PartitionWatch
from holdfast.telemetry.snapshots import Retention, Roller

__all__ = ["CloudWatchExporter", "Meter", "Retention", "Telemetry", "bookkeepers"]

_log = logging.getLogger("holdfast.telemetry")

FLUSH_S: Final = 2.0
_LAG_S = 0.5
_LAST_S = 3.0


class Telemetry:
    """The telemetry of one process on one store. `store` is the engine without its wrappers: a
    partitioned one reports its partitions."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        store: object,
        listeners: Listeners,
        wall_ms: Callable[[], int],
    ) -> None:
        self.role = "app"
        self.process: int = os.getpid()
        self.meter: Meter = Meter()
        self._engine = engine
        self._listeners = listeners
        self._wall_ms = wall_ms
        self._store = store
        self._partitions = PartitionWatch(store)
        self._activity: ActivityReader | None = None
        self._running = False

    async def run(self, stop: asyncio.Event) -> None:
        """Count and flush until `stop` is set, once per process, however often it is called. A
        Holdfast server counts for its clients, so they do not count again.
        """
        if self._running or is_counted_elsewhere(self._engine()):
            return
        self._running = True
        flusher = Flusher(self._engine(), self.meter, self.role, self._wall_ms)
        self._listeners.add(self.meter.record)
        lag = asyncio.create_task(self._measure_lag())
        try:
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S):
                        await stop.wait()
                if not stop.is_set() and not await self._flush(flusher):
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._flush(flusher, last=True)
        finally:
            lag.cancel()
            self._listeners.remove(self.meter.record)
            self._running = False

    async def activity(self, names: Collection[str]) -> dict[str, Activity]:
        """The recent activity of queues, by the counters of all processes."""
        if self._activity is None:
            self._activity = ActivityReader(self._engine(), self._store)
        return await self._activity.read(names, now=self._wall_ms())

    def exporter(self, sink: QueueMetricsSink) -> CloudWatchExporter:
        """The service that publishes metrics of queues every minute."""
        return CloudWatchExporter(
            self._engine(), sink, self.activity, self._wall_ms, tell=self._listeners
        )

    async def _flush(self, flusher: Flusher, *, last: bool = False) -> bool:
        """False if it can never succeed: the store does not accept counts from this process."""
        try:
            self._partitions.check(self.meter)
            await flusher.flush(last=last)
        except EngineClosed:
            return False
        except EngineError as error:
            _log.debug("counts wait until the store accepts them: %s", error)
        except HoldfastError as error:
            _log.info("this process does not report counts: %s", error)
            return False
        except Exception:  # noqa: BLE001 (whatever it is, the jobs of this process go on)
            _log.exception("counts could not be written")
        return True

    async def _measure_lag(self) -> None:
        while True:
            due = time.perf_counter() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self.meter.lagged(self.role, max(0.0, (time.perf_counter() - due) * 1000))


def is_counted_elsewhere(engine: Engine) -> bool:
    """True for the client of a Holdfast server, which counts for all its clients."""
    return extra(engine, ServerBacked) is not None


def bookkeepers(
    engine: Engine, wall_ms: Callable[[], int], retention: Retention | None = None
) -> tuple[Bookkeeper, Roller] | tuple[()]:
    """The services of upkeep that sum the counts of all processes and take snapshots."""
    if is_counted_elsewhere(engine):
        return ()
    return Bookkeeper(engine, wall_ms), Roller(engine, wall_ms, retention=retention)
