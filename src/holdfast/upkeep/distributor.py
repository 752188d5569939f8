"""The loop that moves jobs from tenants' queues to one work queue, taking turns fairly, for engines
without built-in fairness.

A job is leased and forwarded under its token, so any number of distributors may run. If one is
killed, its leases expire and the jobs return to their queues. Each keeps its turns in memory: they
decide only the order.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from holdfast.core import bounds
from holdfast.core.fairness import FairTurns, interleaved
from holdfast.core.model import Lease, LeaseRequest, QueueView
from holdfast.core.verdict import Forward, Outcome, Release, Settlement
from holdfast.core.workers import DISTRIBUTOR
from holdfast.engines.base import Engine
from holdfast.events import Distributed, Tell, ignore_event
from holdfast.ops.queues import Distribution, Distributions

_log = logging.getLogger("holdfast.upkeep")

STEP = 200
"""Maximum number of jobs that one step leases. Several distributors may exceed the depth by as
many.
"""

_LEASE_MS = 10 * bounds.SECOND_MS
_SOON_MS = 50
_IDLE_MS = 250


class Distributor:
    """Carries out the distributions in `given`, or else the stored ones, of `limit` jobs in all."""

    name = "distributor"

    def __init__(
        self,
        engine: Engine,
        given: Sequence[Distribution] | None = None,
        *,
        limit: int | None = None,
        tell: Tell = ignore_event,
        sleep_ms_max: int = 5 * bounds.SECOND_MS,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._given = given
        self._left = limit
        self._tell = tell
        self._turns: dict[str, FairTurns] = defaultdict(FairTurns)
        self._missing: set[str] = set()

    async def once(self) -> int | None:
        """One step of every distribution; the time to the next."""
        wanted = self._given
        if wanted is None:
            wanted = await Distributions(self._engine).all()
        if not wanted:
            return None
        views = {view.queue.name: view for view in await self._engine.queues()}
        moved = 0
        for distribution in wanted:
            moved += await self._fill(distribution, views)
        return _SOON_MS if moved else _IDLE_MS

    async def _fill(self, distribution: Distribution, views: dict[str, QueueView]) -> int:
        target = views.get(distribution.target)
        if target is None:
            if distribution.target not in self._missing:
                _log.warning("queue %s does not exist: its distribution waits", distribution.target)
            self._missing.add(distribution.target)
            return 0
        self._missing.discard(distribution.target)
        waiting = {
            name: view.ready
            for name, view in views.items()
            if distribution.feeds_from(name) and not view.queue.paused
        }
        turns = self._turns[distribution.target]
        turns.forget_others(list(waiting))
        room = distribution.depth - target.ready - target.delayed - target.blocked
        room = min(room, STEP) if self._left is None else min(room, STEP, self._left)
        order = turns.order(waiting, room, distribution.weights)
        if not order:
            return 0
        taken: dict[str, deque[Lease]] = defaultdict(deque)
        try:
            await self._take(Counter(order), waiting, taken)
        finally:
            # Jobs that were leased before a failure are still forwarded.
            count = await self._forward(interleaved(order, taken), distribution, turns)
        return count

    async def _take(
        self, wanted: Counter[str], waiting: dict[str, int], taken: dict[str, deque[Lease]]
    ) -> None:
        """Lease from queues that one call empties together, and from the others one by one."""
        emptied = tuple(name for name, count in wanted.items() if count >= waiting[name])
        requests = [(emptied, sum(wanted[name] for name in emptied))] if emptied else []
        requests += [((name,), count) for name, count in wanted.items() if name not in emptied]
        for queues, count in requests:
            request = LeaseRequest(
                queues=queues, limit=count, worker=DISTRIBUTOR, lease_ms=_LEASE_MS
            )
            for lease in await self._engine.lease(request):
                taken[lease.job.queue].append(lease)

    async def _forward(
        self, leases: list[Lease], distribution: Distribution, turns: FairTurns
    ) -> int:
        """Forward leases to the work queue, in this order; returns how many."""
        if not leases:
            return 0
        verdict = Forward(distribution.target)
        outcomes = await self._engine.settle(
            [Settlement(lease=lease, verdict=verdict) for lease in leases]
        )
        moved: Counter[str] = Counter()
        refused = []
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome is Outcome.SETTLED:
                moved[lease.job.queue] += 1
                turns.took(lease.job.queue, distribution.weights.get(lease.job.queue, 1))
            elif outcome is Outcome.REFUSED:
                refused.append(lease)
        if refused:
            # The work queue was dropped in the meantime.
            release = Release(f"queue {distribution.target} no longer exists", unstarted=True)
            await self._engine.settle([Settlement(lease=each, verdict=release) for each in refused])
        if self._left is not None:
            self._left -= moved.total()
        if moved:
            self._tell(Distributed(queue=distribution.target, moved=dict(moved)))
        return moved.total()
