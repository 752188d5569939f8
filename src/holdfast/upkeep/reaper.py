"""Overdue leases and expired jobs → verdicts → the engine, which has the last word.

A worker that settles at the same moment and another reaper are races that the token and the
state decide; the reaper has no way of its own to change a job.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.core import limits, policy
from holdfast.core.model import Job, JobFilter, Lease, State
from holdfast.core.verdict import BuryWaiting, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.events import Reaped, Tell, tell_nobody
from holdfast.upkeep.rerouting import is_rerouted, reroute_expired

_log = logging.getLogger("holdfast.upkeep")

RECOUNT_MS = limits.MINUTE_MS
_RECOUNT_MAX = 1_000


class Reaper:
    """Wakes at the next deadline that the engine names; the net finds what came in between.

    At its start, and once a minute, it has the engine compare what is counted beside the jobs.
    """

    name = "reaper"

    def __init__(
        self,
        engine: Engine,
        *,
        tell: Tell = tell_nobody,
        net_ms: int = 5 * limits.SECOND_MS,
        batch: int = 100,
    ) -> None:
        self.net_ms = net_ms
        self._engine = engine
        self._tell = tell
        self._batch = batch
        self._recount_at = 0.0

    async def once(self) -> int | None:
        """One batch of each; 0 when there is more."""
        await self._recount()
        overdue = await self._engine.overdue(self._batch)
        ended = await self._reap(overdue.leases) if overdue.leases else 0
        expired = await self._engine.expired(self._batch)
        moved, buried = await self._expire(expired.jobs) if expired.jobs else (0, 0)
        if ended or buried or moved:
            self._tell(Reaped(overdue=ended, expired=buried, rerouted=moved))
        elif overdue.leases or expired.jobs:
            # Others were faster with all of them. The net looks again, instead of a hot loop.
            return None
        ahead = [ms for ms in (overdue.next_ms, expired.next_ms) if ms is not None]
        return min(ahead, default=None)

    async def _recount(self) -> None:
        traits = self._engine.traits
        counts = traits.groups or traits.dependencies or traits.rates
        if not counts or time.monotonic() < self._recount_at:
            return
        mended = await self._engine.recount(_RECOUNT_MAX)
        self._recount_at = time.monotonic() + (0 if mended >= _RECOUNT_MAX else RECOUNT_MS / 1000)
        if mended:
            _log.warning("%d counts beside the jobs were wrong, and are mended", mended)

    async def _reap(self, leases: Iterable[Lease]) -> int:
        # Read after the leases, so that every queue they can be of is known.
        views = await self._engine.queues(counts=False)
        queues = {view.queue.name: view.queue for view in views}
        settlements = [
            Settlement(lease=lease, verdict=policy.after_overdue(queue, lease.job))
            for lease in leases
            # A queue that is not there was dropped a moment ago, and its jobs with it.
            if (queue := queues.get(lease.job.queue)) is not None
        ]
        outcomes = await self._engine.settle(settlements)
        return outcomes.count(Outcome.SETTLED)

    async def _expire(self, jobs: Sequence[Job]) -> tuple[int, int]:
        moved, stuck = await reroute_expired(self._engine, jobs)
        alike: dict[tuple[str, BuryWaiting], list[str]] = defaultdict(list)
        for job in jobs:
            if not is_rerouted(job) or job.id in stuck:
                verdict = policy.after_expiry(job, stuck.get(job.id, ""))
                alike[job.queue, verdict].append(job.id)
        buried = 0
        for (queue, amendment), ids in alike.items():
            # By queue, so that whoever counts knows which; who was moved since comes again.
            still = JobFilter(ids=tuple(ids), queue=queue, states=(State.WAITING,), expired=True)
            buried += await self._engine.amend(still, amendment, limit=len(ids))
        return moved, buried
