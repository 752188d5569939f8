"""The stores that are tortured: how a process reaches one, and how its server is killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.engines.base import Engine
from holdfast.testing.services import PrivatePostgres

ENGINES = ("sqlite", "postgres")


class Store(NamedTuple):
    """`make` builds an engine that is not yet open. `server` is None where there is no server."""

    name: str
    make: Callable[[], Engine]
    server: PrivatePostgres | None


@contextlib.contextmanager
def store(name: str, directory: Path) -> Iterator[Store]:
    """A new, empty one; it is gone afterwards."""
    if name == "sqlite":
        from holdfast.engines.sqlite import SQLiteEngine

        yield Store(name, lambda: SQLiteEngine(directory / "jobs.db"), None)
        return
    from holdfast.engines.postgres import PostgresEngine

    # What is acknowledged must outlive the server's death, so here it syncs.
    with PrivatePostgres(fsync=True) as server:
        dsn = server.dsn
        yield Store(name, lambda: PostgresEngine(dsn, connections=2), server)
