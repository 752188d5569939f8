"""Leases whose caller has left: they go back to the store, and its end waits for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.model import Lease
from holdfast.core.verdict import Outcome, Release, Settlement
from holdfast.errors import EngineError

Settle = Callable[[Sequence[Settlement]], Awaitable[list[Outcome]]]
Leases = list[Lease] | asyncio.Future[list[Lease]]
"""In hand, or still being taken."""


class Returns:
    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, leases: Leases) -> None:
        """What cannot be given back lapses."""
        task = asyncio.get_running_loop().create_task(self._give_back(leases))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def ended(self, timeout_s: float | None = None) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=timeout_s)

    async def _give_back(self, leases: Leases) -> None:
        verdict = Release(text="the caller was cancelled")
        with contextlib.suppress(EngineError):
            taken = await leases if isinstance(leases, asyncio.Future) else leases
            if taken:
                await self._settle([Settlement(lease=one, verdict=verdict) for one in taken])
