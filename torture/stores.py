"""The stores of torture runs: how a process opens one, and how its server is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.engines.base import Engine
from holdfast.engines.postgres import PostgresEngine

ENGINES = ("sqlite", "postgres")


class Killable(Protocol):
    """A server that can be killed and restarted."""

    @property
    def log(self) -> str: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...


class Store(NamedTuple):
    """A store. `make` creates an engine that is not open yet; `server` is None if there is none.
    `clock`: leases use the clock of the server."""

    name: str
    make: Callable[[], Engine]
    server: Killable | None
    url: str
    clock: bool = True


class StrictPostgres(PostgresEngine):
    """PostgreSQL releases children in a transaction after the one that ends their parent. If a
    client is killed in between, the next reaper or recount does it. That is correct, so this engine
    counts it in `told` and not as a difference."""

    told = 0

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, connections=2)
        self._recount_lock = asyncio.Lock()

    async def recount(self, limit: int) -> int:
        async with self._recount_lock:
            repaired = await super().recount(limit)
            self.told += self._recount_cursor.untold
            return repaired - self._recount_cursor.untold


@contextlib.contextmanager
def store(name: str, directory: Path) -> Iterator[Store]:
    """Create a new, empty store, deleted after the block."""
    if name == "sqlite":
        from holdfast.engines.sqlite import SQLiteEngine

        path = directory / "jobs.db"
        yield Store(name, lambda: SQLiteEngine(path), None, f"sqlite:///{path}")
        return
    # Acknowledged jobs must survive a kill of the server, so fsync is on.
    with PrivatePostgres(fsync=True) as server:
        dsn = server.dsn
        yield Store(name, lambda: StrictPostgres(dsn), server, dsn)
