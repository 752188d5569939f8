"""The loop that looks at the queues of workers at the broker. A worker that has not received from
its queue for a while is unhealthy, and its jobs go to others where they allow it.

All processes share one record of the last look; of several that look at the same time, one saves
its result. A process that cannot reach the broker does not look until it has been back for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from holdfast.core import bounds
from holdfast.core.explain import ABSENT_MS
from holdfast.core.workers import (
    UNATTENDED_MAX,
    UNATTENDED_MS,
    WATCH_MS,
    addressee,
    after_look,
    is_recent_look,
    worker_queue,
)
from holdfast.engines.base import Engine
from holdfast.engines.broker import Broker
from holdfast.errors import EngineUnavailable
from holdfast.events import Reaped, Tell, ignore_event
from holdfast.ops.doctor import examine
from holdfast.ops.workers import UNATTENDED, UNATTENDED_KEY, Workers, reroute_unattended

_log = logging.getLogger("holdfast.upkeep")

_REROUTED_MAX = bounds.PAGE_MAX
"""Jobs of one worker that one step looks at."""


class QueueWatch:
    """Looks every ten seconds. Cordoned workers, and those that are stopping, are left out."""

    name = "queue watch"
    sleep_ms_max = WATCH_MS

    def __init__(
        self,
        engine: Engine,
        broker: Broker,
        *,
        tell: Tell = ignore_event,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._engine = engine
        self._broker = broker
        self._tell = tell
        self._clock_s = clock_s
        self._trusted_s = float("-inf")

    async def once(self) -> int | None:
        """One look at the queues of all workers."""
        known = await UNATTENDED.read(self._engine, UNATTENDED_KEY)
        if known is not None and is_recent_look(known.age_ms):
            return None
        names = await self._worker_names()
        try:
            views = await self._broker.worker_queues([worker_queue(name) for name in names])
        except EngineUnavailable as error:
            # Workers that were cut off too need time to come back.
            self._trusted_s = self._clock_s() + UNATTENDED_MS / 1000
            _log.debug("the %s waits for the broker: %s", self.name, error)
            return None
        if self._clock_s() < self._trusted_s:
            return None
        missing = sorted(filter(None, (addressee(v.queue) for v in views if not v.consumers)))
        value, age_ms, version = (
            (known.value, known.age_ms, known.version) if known else (None, 0, 0)
        )
        found = after_look(value, age_ms, missing)
        if await UNATTENDED.save(self._engine, UNATTENDED_KEY, found, version):
            await self._reroute(found.workers)
        return None

    async def _reroute(self, workers: dict[str, int]) -> None:
        """Move jobs away from the workers that are unhealthy for this reason."""
        unhealthy = {name: for_ms for name, for_ms in workers.items() if for_ms >= UNATTENDED_MS}
        if not unhealthy:
            return
        now = (await examine(self._engine)).now
        moved = 0
        for name, for_ms in unhealthy.items():
            moved += await reroute_unattended(
                self._engine, name, for_ms, now=now, by=self.name, limit=_REROUTED_MAX
            )
        if moved:
            self._tell(Reaped(overdue=0, expired=0, rerouted=moved))

    async def _worker_names(self) -> list[str]:
        """The workers to look at: those that have registered first, then others with a queue."""
        views = await Workers(self._engine).all()
        excused = {
            view.name
            for view in views
            if view.record.cordoned or (view.record.stopping and view.age_ms <= ABSENT_MS)
        }
        queues = await self._engine.queues(counts=False)
        others = (addressee(view.queue.name) for view in queues)
        names = dict.fromkeys((*(view.name for view in views), *filter(None, others)))
        return [name for name in names if name not in excused][:UNATTENDED_MAX]
