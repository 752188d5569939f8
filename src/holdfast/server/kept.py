"""What is read from the store and used for many requests, for at most a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

KEPT_S = 1.0


class Kept(Generic[Value]):
    """However many ask, it is read once at a time, for all of them. Whoever leaves meanwhile
    leaves the others waiting for the same."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Value]]) -> None:
        self._read = read
        self._value: Value | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[Value] | None = None

    async def get(self) -> Value:
        if self._value is not None and time.monotonic() - self._read_at < KEPT_S:
            return self._value
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(partial(self._done, time.monotonic()))
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """It was changed here: whoever asks from now on sees that."""
        self._value = None
        self._reading = None

    def _done(self, began: float, reading: asyncio.Task[Value]) -> None:
        error = None if reading.cancelled() else reading.exception()
        # What was begun before a change must not come back.
        if reading is self._reading:
            self._reading = None
            if error is None and not reading.cancelled():
                self._value, self._read_at = reading.result(), began
