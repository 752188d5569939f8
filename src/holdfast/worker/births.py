"""Children that are about to be started: at once, or after a pause that grows while they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.worker.wire import ChildSetup

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 10.0


class Births:
    """`spawn` starts one, given its setup and whether it is for a job alone."""

    def __init__(self, spawn: Callable[[ChildSetup, bool], Awaitable[None]]) -> None:
        self._spawn = spawn
        self._under_way: set[asyncio.Task[None]] = set()
        self._pause_s = _PAUSE_S_FIRST
        self.solos = 0
        """How many for jobs alone have not been started yet."""

    def later(self, setup: ChildSetup, *, solo: bool, after_s: float) -> None:
        async def begin() -> None:
            try:
                await asyncio.sleep(after_s)
            finally:
                self.solos -= solo
            await self._spawn(setup, solo)

        self.solos += solo
        task = asyncio.create_task(begin())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def succeeded(self) -> None:
        """A child became ready."""
        self._pause_s = _PAUSE_S_FIRST

    def failed(self) -> float:
        """A child died before it was ready: how long to wait before the next."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _PAUSE_S_MAX)
        return pause_s

    async def stop(self) -> None:
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
