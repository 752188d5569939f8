"""COUNT: what each process does, as records of the store; summed, kept over time, and told.

Any number of processes count, and any number of upkeeps keep the books. Nothing here is needed
for a job to run: when the store is away, counts wait, and jobs do not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, HoldfastError
from holdfast.events import Listeners
from holdfast.telemetry.bookkeeping import Bookkeeper
from holdfast.telemetry.flushing import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.telemetry.partitions import Partitions
from holdfast.telemetry.rolling import Retention, Roller
from holdfast.upkeep.service import Service

__all__ = ["Meter", "Retention", "Telemetry", "bookkeepers"]

_log = logging.getLogger("holdfast.telemetry")

FLUSH_S: Final = 2.0
_LAG_S = 0.5
_LAST_S = 3.0


class Telemetry:
    """Of one process on one store. `store` is the engine without what is wrapped around it: one
    that is made of partitions says how they are."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        store: object,
        listeners: Listeners,
        wall_ms: Callable[[], int],
    ) -> None:
        self.role = "app"
        self.process = os.getpid()
        self.meter = Meter(wall_ms)
        self._engine = engine
        self._listeners = listeners
        self._wall_ms = wall_ms
        self._partitions = Partitions(store)
        self._running = False

    async def run(self, stop: asyncio.Event) -> None:
        """Count and flush until `stop` is set; once in a process, however often it is asked. What
        goes through another Holdfast's server is counted there, and not here again."""
        if self._running or is_counted_elsewhere(self._engine()):
            return
        self._running = True
        flusher = Flusher(self._engine(), self.meter, self.role, self._wall_ms)
        self._listeners.add(self.meter.hear)
        lag = asyncio.create_task(self._watch_lag())
        try:
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S):
                        await stop.wait()
                if not stop.is_set() and not await self._flushed(flusher):
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await self._flushed(flusher, last=True)
        finally:
            lag.cancel()
            self._listeners.remove(self.meter.hear)
            self._running = False

    async def _flushed(self, flusher: Flusher, *, last: bool = False) -> bool:
        """False when it never will be: the store does not take it from this process."""
        try:
            self._partitions.look(self.meter)
            await flusher.flush(last=last)
        except EngineClosed:
            return False
        except EngineError as error:
            _log.debug("counts are kept until the store takes them: %s", error)
        except HoldfastError as error:
            _log.info("what this process does is not counted: %s", error)
            return False
        except Exception:  # noqa: BLE001 (whatever it is, the jobs of this process go on)
            _log.exception("counts could not be written")
        return True

    async def _watch_lag(self) -> None:
        while True:
            asked = time.perf_counter() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self.meter.lagged(self.role, max(0.0, (time.perf_counter() - asked) * 1000))


def is_counted_elsewhere(engine: Engine) -> bool:
    """Is it another Holdfast's server, which counts and keeps the books for all who come to it?"""
    return engine.traits.name == "remote"


def bookkeepers(
    engine: Engine, wall_ms: Callable[[], int], retention: Retention | None = None
) -> tuple[Service, ...]:
    """What keeps everybody's counts, as services of upkeep."""
    if is_counted_elsewhere(engine):
        return ()
    return Bookkeeper(engine, wall_ms), Roller(engine, wall_ms, retention=retention)
