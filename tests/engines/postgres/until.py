"""Waits for what the server shows and nothing in this process announces; tests end hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.engines.postgres import PostgresEngine

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` finds, as soon as it is something."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.005)


async def until_blocked(look: Any) -> None:
    """Somebody waits for a lock in this database."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    await until(lambda: look.fetchval(waiting))


async def until_waiting(engine: PostgresEngine) -> None:
    """A lease of this engine has found nothing and waits for the bell."""

    async def awaited() -> bool:
        return engine._bell.awaited

    await until(awaited)
