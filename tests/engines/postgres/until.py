"""Waits for what the server shows and nothing in this process announces; tests end hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.engines.postgres import PostgresEngine

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` finds, as soon as it is something."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.005)


async def until_waiting(engine: PostgresEngine) -> None:
    """A lease of this engine has found nothing and waits for the bell."""

    async def awaited() -> bool:
        return engine._bell.awaited

    await until(awaited)
