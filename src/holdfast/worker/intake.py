"""Free slots → leases: never more than there is room for now, plus what is soon worked off.

How many are leased ahead follows from how fast jobs end here: next to none for long ones, so that
no worker hoards what another could run, hundreds for those that take no time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from time import monotonic

from holdfast.core import limits
from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Held

_log = logging.getLogger("holdfast.worker")

_WAIT_MS_MIN, _WAIT_MS = 100, 5 * limits.SECOND_MS
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0


class Intake:
    """`wanted` says how many jobs may come, 0 while none may, and of which tasks; `taken` counts
    what came and hears when it was asked for; `given` gets it, while the next is on its way."""

    def __init__(
        self,
        engine: Engine,
        wanted: Callable[[], tuple[int, frozenset[str]]],
        taken: Callable[[list[Lease], float], list[Held]],
        given: Callable[[list[Held]], None],
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._taken = taken
        self._given = given
        self._in_arms: list[Held] = []
        self._asked = 0.0
        self._wait_ms = _WAIT_MS
        self._worker = ""
        self._queues: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._interrupted = asyncio.Event()
        self.leased_at = monotonic()
        """When the engine last gave a job, or was last not asked because there was no room."""

    def serve(self, worker: str, queues: Mapping[str, int]) -> bool:
        """From now on under this name, for these queues by weight. Whether that is anything new."""
        before = (self._worker, self._queues)
        self._worker, self._queues = worker, dict(queues)
        return before != (self._worker, self._queues)

    def look(self) -> None:
        """Something changed that may have made room."""
        self._changed.set()

    def interrupt(self) -> None:
        """What is being waited for is no longer what is wanted."""
        self._interrupted.set()
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled: what an abandoned call leased goes back by itself."""
        pause = _PAUSE_S_FIRST
        while True:
            self._interrupted.clear()
            limit, tasks = self._wanted()
            if limit <= 0 or not self._queues:
                self._give()
                self.leased_at = monotonic()
                self._changed.clear()
                await self._sleep(1.0)
                continue
            try:
                leases = await self._lease(limit, tasks)
            except EngineClosed:
                raise
            except EngineError as error:
                _log.warning("nothing can be leased, again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _PAUSE_S_MAX)
                continue
            pause = _PAUSE_S_FIRST
            if leases:
                self.leased_at = monotonic()
                self._in_arms = self._taken(leases, self._asked)
                # What comes at the end of a wait longer than its lease must be renewed first.
                shortest_ms = min(lease.lease_ms for lease in leases)
                self._wait_ms = max(_WAIT_MS_MIN, min(_WAIT_MS, shortest_ms // 3))

    async def _lease(self, limit: int, tasks: frozenset[str]) -> list[Lease]:
        """What comes in time; nothing when interrupted."""
        request = LeaseRequest(
            queues=self._order(),
            limit=limit,
            worker=self._worker,
            wait_ms=self._wait_ms,
            tasks=tasks,
        )
        self._asked = boot_s()
        leasing = asyncio.ensure_future(self._engine.lease(request))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            # The question is out; what came before is handed on meanwhile.
            await asyncio.sleep(0)
            self._give()
            await asyncio.wait((leasing, interrupted), return_when=asyncio.FIRST_COMPLETED)
            if leasing.done():
                return leasing.result()
            leasing.cancel()
            await asyncio.wait((leasing,))
            return [] if leasing.cancelled() else leasing.result()
        except asyncio.CancelledError:
            self._give()
            if not leasing.cancel() and leasing.exception() is None and leasing.result():
                # It came in the last moment: whoever ends this will release it.
                self._given(self._taken(leasing.result(), self._asked))
            raise
        finally:
            interrupted.cancel()

    async def lease_one(self, task: str) -> list[Lease]:
        """Beside all others, and at once: nothing when there is none."""
        if not self._queues:
            return []
        request = LeaseRequest(queues=self._order(), worker=self._worker, tasks=frozenset((task,)))
        return await self._engine.lease(request)

    def _give(self) -> None:
        in_arms, self._in_arms = self._in_arms, []
        if in_arms:
            self._given(in_arms)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _order(self) -> tuple[str, ...]:
        """Heavier queues come first more often; each comes first sometimes."""
        if len(self._queues) == 1:
            return tuple(self._queues)
        drawn = {name: random.random() ** (1 / weight) for name, weight in self._queues.items()}
        return tuple(sorted(drawn, key=drawn.__getitem__, reverse=True))


class Pace:
    """How many jobs end here in a second, lately, and so how many to lease ahead."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended = 0
        self._rate = 0.0
        self._at = monotonic()

    def ended(self, count: int = 1) -> None:
        self._ended += count

    def measure(self) -> None:
        now = monotonic()
        seconds = max(now - self._at, 0.001)
        rate, self._ended, self._at = self._ended / seconds, 0, now
        self._rate += (rate - self._rate) * 0.4

    def ahead(self) -> int:
        return min(self._most, int(self._rate * 0.1))
