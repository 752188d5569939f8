"""The loop that ends overdue leases and expired jobs, and repairs stored counters."""

from __future__ import annotations

import logging
import time

from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.events import EngineCalled, ProcessEvent, Reaped, Tell, ignore_event
from holdfast.ops.service import Alarm
from holdfast.ops.workers import end_overdue_and_expired

_log = logging.getLogger("holdfast.upkeep")

RECOUNT_MS = bounds.MINUTE_MS
_RECOUNT_MAX = 1_000


class Reaper:
    """Wakes at the next deadline that the engine reports, and at that of a lease that this process
    granted in between. `sleep_ms_max` bounds the sleep, because other processes grant leases, too.
    At its start, and once a minute, it makes the engine compare its counters with the jobs.
    """

    name = "reaper"

    def __init__(
        self,
        engine: Engine,
        *,
        tell: Tell = ignore_event,
        sleep_ms_max: int = 5 * bounds.SECOND_MS,
        batch: int = 100,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self.alarm: Alarm = Alarm()
        self._engine = engine
        self._tell = tell
        self._batch = batch
        self._recount_at = 0.0

    async def once(self) -> int | None:
        """One batch of leases and one of jobs; 0 when there is more."""
        await self._recount()
        done = await end_overdue_and_expired(self._engine, self._batch)
        if done.overdue or done.buried or done.rerouted:
            self._tell(Reaped(overdue=done.overdue, expired=done.buried, rerouted=done.rerouted))
        return done.next_ms

    def on_event(self, event: ProcessEvent) -> None:
        """Set the alarm for leases that end before the next look is due in any case."""
        if not isinstance(event, EngineCalled) or event.verb not in ("lease", "renew"):
            return
        spans = [lease.lease_ms for lease in event.answer or () if lease is not None]
        if spans and (first_ms := min(spans)) < self.sleep_ms_max:
            # Deadlines are whole milliseconds: one later the lease is certainly over.
            self.alarm.set(first_ms + 1)

    async def _recount(self) -> None:
        traits = self._engine.traits
        counts = traits.groups or traits.dependencies or traits.rates
        if not counts or time.monotonic() < self._recount_at:
            return
        repaired = await self._engine.recount(_RECOUNT_MAX)
        rest_s = 0 if repaired >= _RECOUNT_MAX else RECOUNT_MS / 1000
        self._recount_at = time.monotonic() + rest_s
        if repaired:
            _log.warning("repaired %d wrong counters", repaired)
