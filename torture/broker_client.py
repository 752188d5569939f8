"""A client process of a torture test with a broker. Besides what every client does, it enqueues
jobs that are addressed to workers, leases them as those workers, and handles dead messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.core.model import Lease, LeaseRequest, NewJob
from holdfast.core.verdict import Amendment, Forward, Move, Verdict
from holdfast.engines.brokered import BrokeredEngine
from holdfast.engines.extras import Brokered, extra
from holdfast.errors import EngineError
from holdfast.upkeep.dead_letter_handler import DeadLetterHandler
from torture.client import Client
from torture.workload import ADDRESSED, TTL_MS

ADDRESSED_SHARE = 0.3
TTLS_MS = (TTL_MS // 10, TTL_MS, 5 * TTL_MS)
WAIT_MS = 300


class StrictBrokered(BrokeredEngine):
    """Counts what its ledger counts: see `StrictPostgres`."""

    @property
    def told(self) -> int:
        return getattr(self._engine, "told", 0)


class BrokerClient(Client):
    """See `Client`. Its engine is `brokered`."""

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        loops = [*super()._loops(), self._work_addressed(), self._handle_dead_messages()]
        return loops if self._calm else [*loops, self._produce_addressed()]

    async def _produce_addressed(self) -> None:
        """Some jobs expire before a worker looks, others wait behind a longer time limit."""
        rng, number = self._rng, 0
        while not self._stop.is_set():
            count = rng.choice((1, 1, 5))
            jobs = [
                NewJob(
                    id=f"{self._journal.process}-addressed-{number + index}",
                    task="torture",
                    queue=rng.choice(ADDRESSED),
                    payload=rng.randbytes(50),
                    expires_ms=rng.choice((None, *TTLS_MS)),
                )
                for index in range(count)
            ]
            number += count
            receipts = await self._retry(lambda: self._engine.enqueue(jobs))  # noqa: B023
            self._factory.answered(receipts or [])
            await asyncio.sleep(rng.random() * 0.2)

    async def _work_addressed(self) -> None:
        """Lease as the worker does to whom the jobs are addressed: with pauses, in which messages
        expire at the broker."""
        rng = self._rng
        while not self._stop.is_set():
            if not self._calm:
                await asyncio.sleep(rng.random() * TTL_MS / 4000)
            request = LeaseRequest(
                queues=(rng.choice(ADDRESSED),),
                limit=rng.choice((1, 5)),
                worker=self._journal.process,
                wait_ms=WAIT_MS,
            )
            try:
                leases = await self._engine.lease(request)
            except EngineError:
                await asyncio.sleep(0.05)
                continue
            if leases:
                await self._attempt(leases)

    async def _handle_dead_messages(self) -> None:
        brokered = extra(self._store, Brokered)
        assert brokered is not None
        handler = DeadLetterHandler(self._engine, brokered.broker(), wait_ms=100)
        while not self._stop.is_set():
            try:
                pause_ms = await handler.once()
            except EngineError:
                pause_ms = 100
            await asyncio.sleep((pause_ms or 0) / 1000)

    def _amendment(self) -> Amendment:
        if self._rng.random() < ADDRESSED_SHARE:
            return Move(queue=self._rng.choice(ADDRESSED))
        return super()._amendment()

    def _verdict(self, lease: Lease) -> Verdict:
        verdict = super()._verdict(lease)
        if isinstance(verdict, Forward) and self._rng.random() < ADDRESSED_SHARE:
            return Forward(self._rng.choice(ADDRESSED))
        return verdict
