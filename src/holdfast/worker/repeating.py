"""What a worker does again and again, whatever becomes of its store meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from holdfast.errors import EngineClosed, EngineError

_log = logging.getLogger("holdfast.worker")


async def every(
    seconds: float,
    act: Callable[[], Coroutine[Any, Any, None]],
    sooner: asyncio.Event | None = None,
) -> None:
    """Until cancelled; an engine out of reach is tried again at the next turn."""
    sooner = sooner or asyncio.Event()
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await sooner.wait()
        sooner.clear()
        try:
            await act()
        except EngineClosed:
            raise
        except EngineError as error:
            _log.warning("%s", error)
