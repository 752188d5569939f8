"""A slow or failing engine."""

import asyncio
from collections.abc import Sequence

from holdfast.core.model import Lease, LeaseRequest, NewJob, Receipt, Renewal
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.memory import MemoryEngine


class GatedEngine(MemoryEngine):
    """Each call is written down, then waits until the gate is open, then may fail.

    A gate that `shuts` lets one call pass each time it is opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.shuts = False
        self.calls: list[tuple[str, int]] = []
        self.called = asyncio.Event()
        self.errors: list[Exception] = []

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        await super().open()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await self._pass("enqueue", len(jobs))
        return await super().enqueue(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        await self._pass("lease", request.limit)
        return await super().lease(request)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        await self._pass("renew", len(renewals))
        return await super().renew(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        await self._pass("settle", len(settlements))
        return await super().settle(settlements)

    async def _pass(self, verb: str, size: int) -> None:
        self.calls.append((verb, size))
        self.called.set()
        await self.gate.wait()
        if self.shuts:
            self.gate.clear()
        if self.errors:
            raise self.errors.pop(0)
