"""The one loop that polls the store of a namespace for all its streams, while there are any.

An operator's act through this server wakes it, so that the act is shown at once.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from holdfast.app.application import Holdfast

POLL_S: Final = 1.0

_log = logging.getLogger("holdfast.server")
_STREAMS_FULL_RATE = 1_000
"""With more streams than this the loop polls less often: each poll may wake all of them."""
_WOKEN_S_MIN = 0.1
_WOKEN_REST = 5
"""The least time between two polls, however many acts wake the loop: this long, and this many
times as long as the last poll took."""

_WAKE_BATCH = 10
_WAKE_PAUSE_S = 0.002
"""Waking a stream takes about 40 µs. Batches with pauses leave most of the time to other requests,
however many streams there are."""

Poll = Callable[[], Awaitable[None]]


class PollLoop:
    """Calls every poll that joined, again and again. With `poll_s` None only the caller polls."""

    def __init__(self, *, poll_s: float | None = POLL_S) -> None:
        self.poll_s = poll_s
        self.task: asyncio.Task[None] | None = None
        self._joined: Counter[Poll] = Counter()
        self._woken = asyncio.Event()
        self.is_woken: bool = False
        """True while polls run because of an act."""

    def join(self, poll: Poll) -> None:
        """Poll for one more stream. Joining again with the same poll counts streams."""
        self._joined[poll] += 1
        if self.task is None and self.poll_s is not None:
            self.task = asyncio.create_task(self._run(self.poll_s))

    def leave(self, poll: Poll) -> None:
        """Poll for one stream less; the loop ends with the last."""
        self._joined[poll] -= 1
        if not self._joined[poll]:
            del self._joined[poll]
        if not self._joined and self.task is not None:
            self.task.cancel()
            self.task = None

    def wake(self) -> None:
        """Poll now, because something was changed here."""
        self._woken.set()

    async def _run(self, poll_s: float) -> None:
        took_s = 0.0
        while True:
            started_at = monotonic()
            await asyncio.sleep(min(poll_s, max(_WOKEN_S_MIN, _WOKEN_REST * took_s)))
            rest_s = poll_s * max(1.0, self._joined.total() / _STREAMS_FULL_RATE)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, started_at + rest_s - monotonic())):
                    await self._woken.wait()
            self.is_woken = self._woken.is_set()
            self._woken.clear()
            started_at = monotonic()
            for poll in list(self._joined):
                try:
                    await poll()
                except Exception:  # noqa: BLE001 (streams must not wait for a dead loop)
                    _log.exception("a poll of the live streams failed unexpectedly, and continues")
            took_s = monotonic() - started_at


async def wake_in_batches(
    waiting: Sequence[asyncio.Future[None]], pause: Callable[[float], Awaitable[None]]
) -> None:
    """Wake waiting streams in batches, so that other requests are answered in between."""
    for at in range(0, len(waiting), _WAKE_BATCH):
        if at:
            await pause(_WAKE_PAUSE_S)
        for waiter in waiting[at : at + _WAKE_BATCH]:
            if not waiter.done():
                waiter.set_result(None)


_LOOPS: weakref.WeakKeyDictionary[Holdfast, PollLoop] = weakref.WeakKeyDictionary()


def poll_loop(app: Holdfast) -> PollLoop:
    """The loop of an application."""
    found = _LOOPS.get(app)
    if found is None:
        found = _LOOPS[app] = PollLoop()
    return found
