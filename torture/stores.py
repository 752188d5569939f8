"""The stores that are tortured: how a process reaches one, and how its server is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.engines.base import Engine
from holdfast.engines.postgres import PostgresEngine
from holdfast.testing.services import PrivatePostgres

ENGINES = ("sqlite", "postgres")


class Killable(Protocol):
    """A server that can be killed, and is itself again after `restart`."""

    @property
    def log(self) -> str: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...


class Store(NamedTuple):
    """`make` builds an engine that is not yet open. `server` is None where there is no server.
    With a `clock` of its own that server is where leases are timed."""

    name: str
    make: Callable[[], Engine]
    server: Killable | None
    url: str
    clock: bool = True


class Strict(PostgresEngine):
    """Children are told of an end in a transaction after the one that ends it. Whoever is killed in
    between leaves that to the next reaper or recount, which is no fault; `told` counts it."""

    told = 0

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, connections=2)
        self._one_at_a_time = asyncio.Lock()

    async def recount(self, limit: int) -> int:
        async with self._one_at_a_time:
            mended = await super().recount(limit)
            self.told += self._rounds.untold
            return mended - self._rounds.untold


@contextlib.contextmanager
def store(name: str, directory: Path) -> Iterator[Store]:
    """A new, empty one; it is gone afterwards."""
    if name == "sqlite":
        from holdfast.engines.sqlite import SQLiteEngine

        path = directory / "jobs.db"
        yield Store(name, lambda: SQLiteEngine(path), None, f"sqlite:///{path}")
        return
    # What is acknowledged must outlive the server's death, so here it syncs.
    with PrivatePostgres(fsync=True) as server:
        dsn = server.dsn
        yield Store(name, lambda: Strict(dsn), server, dsn)
