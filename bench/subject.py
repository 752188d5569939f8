"""The interface that the benchmarks measure, and Holdfast behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.core.model import Lease, LeaseRequest, NewJob, Status
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine

PAYLOAD = bytes(range(256))
TASK = "measure"

next_number = itertools.count(1).__next__


class Subject(Protocol):
    """A queue under test. `make` is not timed; each other call is one durable transaction."""

    def make(self, count: int) -> list[Any]: ...

    async def enqueue(self, jobs: Sequence[Any]) -> None: ...

    async def lease(self, limit: int) -> Sequence[Any]: ...

    async def settle(self, leases: Sequence[Any]) -> None: ...

    async def close(self) -> None: ...


class HoldfastSubject:
    """An open engine, used as a program would use it: every result is checked."""

    def __init__(self, engine: Engine, *, queue: str = "default") -> None:
        self._engine = engine
        self._queue = queue

    def make(self, count: int) -> list[NewJob]:
        return [
            NewJob(id=f"job-{next_number():012d}", task=TASK, queue=self._queue, payload=PAYLOAD)
            for _ in range(count)
        ]

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        receipts = await self._engine.enqueue(jobs)
        assert all(receipt.status is Status.NEW for receipt in receipts), "a job was not new"

    async def lease(self, limit: int) -> Sequence[Lease]:
        request = LeaseRequest(queues=(self._queue,), limit=limit, worker="worker")
        return await self._engine.lease(request)

    async def settle(self, leases: Sequence[Lease]) -> None:
        verdict = Complete()
        settlements = [Settlement(lease=lease, verdict=verdict) for lease in leases]
        outcomes = await self._engine.settle(settlements)
        assert all(outcome is Outcome.SETTLED for outcome in outcomes), "a settle was lost"

    async def close(self) -> None:
        await self._engine.close()
