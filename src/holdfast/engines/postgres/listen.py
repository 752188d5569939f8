"""A connection that only listens, and rings the bell when other engines enqueue.

It is a shortcut: whoever waits also polls, so losing it costs time, never a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from holdfast.engines.postgres.pool import FAILURES, Pool
from holdfast.engines.waiting import Bell
from holdfast.errors import EngineError

PING_S = 10.0
PONG_S_MAX = 5.0
PAUSE_S_MAX = 2.0
READY_S_MAX = 1.0


class Listener:
    """Starts at the first wait: an engine that only enqueues needs none."""

    def __init__(self, pool: Pool, bell: Bell) -> None:
        self._pool = pool
        self._bell = bell
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, signal: str) -> None:
        """Return when it listens, or after a moment if it cannot."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen_for_ever(signal))
        await _happens(self._ready, READY_S_MAX)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen_for_ever(self, signal: str) -> None:
        while True:
            with contextlib.suppress(EngineError, *FAILURES):
                await self._listen(signal)
            self._ready.clear()
            await asyncio.sleep(random.uniform(0, PAUSE_S_MAX))

    async def _listen(self, signal: str) -> None:
        connection = await self._pool.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(signal, self._ring)
            self._ready.set()
            # Whatever was enqueued while nobody listened is found by looking.
            self._bell.ring()
            while not await _happens(gone, PING_S):
                await connection.fetchval("SELECT 1", timeout=PONG_S_MAX)
        finally:
            connection.terminate()

    def _ring(self, *_: Any) -> None:
        self._bell.ring()


async def _happens(event: asyncio.Event, timeout_s: float) -> bool:
    """Does it happen within that time?"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
