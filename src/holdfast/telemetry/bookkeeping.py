"""Keeps the books of the fleet: watches the store for news, and adds up what ended processes did.

Any number may run. The more processes there are, the less often each one looks, so that all of
them together look about as often as one would.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core import limits
from holdfast.engines.base import Engine
from holdfast.telemetry.closing import Closer
from holdfast.telemetry.watching import Watcher

_LOOK_MS = 2 * limits.SECOND_MS
_LOOK_MS_MAX = limits.MINUTE_MS


class Bookkeeper:
    """A service of upkeep."""

    name = "bookkeeper"

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._watcher = Watcher(engine, wall_ms)
        self._closer = Closer(engine, wall_ms)

    @property
    def net_ms(self) -> int:
        return min(_LOOK_MS_MAX, _LOOK_MS * max(1, self._closer.open))

    async def once(self) -> int | None:
        await self._watcher.once()
        return 0 if await self._closer.once() else None
