"""Waits for state that only the server shows. A hang is ended by the timeout of the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.engines.postgres import PostgresEngine

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """Poll `look` until its answer is true, and return it."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.005)


async def until_blocked(look: Any, calls: int = 1) -> None:
    """Wait until this many calls wait for a lock in this database."""
    waiting = (
        "SELECT count(*) >= $1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    await until(lambda: look.fetchval(waiting, calls))


async def until_waiting(engine: PostgresEngine) -> None:
    """Wait until a lease of this engine has found no job and waits."""

    async def awaited() -> bool:
        return engine._bell.awaited

    await until(awaited)


async def until_notified(engine: PostgresEngine) -> None:
    """Wait until a lease of this engine waits and is notified of changes from now on. Its
    registration as waiting ends after 5 seconds unless it is renewed by polling. For tests in
    which nothing polls, and which may be held up for longer than that, it is extended."""
    await until_waiting(engine)
    assert engine._pool is not None
    assert engine._identity is not None
    extend = "UPDATE holdfast.waiters SET until_at = until_at + 3600000 WHERE ns = $1"
    async with engine._pool.lend() as connection:
        assert await connection.execute(extend, engine._identity.ns) == "UPDATE 1"


async def until_vacuumed(look: Any) -> None:
    """Vacuum until every page of the schema is marked as visible to all. How many buffers a count
    reads depends on that, and while the server analyzes a table by itself, VACUUM cannot mark pages
    that are newer than its snapshot."""
    left = """
    SELECT count(*) FROM pg_class
    WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' AND relallvisible < relpages
    """

    async def vacuumed() -> bool:
        # Without INDEX_CLEANUP a few pages may keep dead line pointers.
        await look.execute("VACUUM (ANALYZE, INDEX_CLEANUP ON)")
        return int(await look.fetchval(left)) == 0

    await until(vacuumed)


async def deadlocks(look: Any, *engines: PostgresEngine) -> int:
    """How many deadlocks PostgreSQL counted in this database. A server process reports what it
    counted at the latest when it ends, so the engines are closed first."""
    for engine in engines:
        await engine.close()
    alone = """
    SELECT count(*) = 0 FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND backend_type = 'client backend'
    """
    await until(lambda: look.fetchval(alone))
    count: int = await look.fetchval(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return count
