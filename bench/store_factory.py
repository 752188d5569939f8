"""Creates the stores of the benchmarks, with full durability, and raw SQL on the same store.

SQLite stores are files in a directory; PostgreSQL stores are databases of a private server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg

from bench.raw_postgres import RawPostgres
from bench.raw_sqlite import RawSqlite
from bench.stores import EngineName, Store, build
from bench.subject import HoldfastSubject, Subject
from holdfast.conformance.postgres_server import PrivatePostgres

CONNECTIONS = 4
# A checkpoint in the middle of a turn would count against that turn.
SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "30min", "synchronous_commit": "on"}
_SLOW_VFS = "holdfast-slow-sync"


class StoreFactory(Protocol):
    """Creates stores of one engine."""

    async def store(self, name: str) -> Store:
        """Create a new, empty store."""

    async def raw(self) -> Subject:
        """Open raw SQL, the reference, on a new store."""


async def open_holdfast(store: Store) -> Subject:
    """Open Holdfast on the store."""
    engine = build(store)
    await engine.open()
    return HoldfastSubject(engine)


@contextmanager
def store_factory(
    engine: EngineName, directory: Path, *, sync_delay_ms: float
) -> Iterator[StoreFactory]:
    """Create a factory for the engine; `sync_delay_ms` is added to every sync."""
    if engine == "sqlite":
        if sync_delay_ms == 0:
            yield _SqliteStores(directory, vfs=None)
            return
        with _slow_sync(sync_delay_ms) as vfs:
            yield _SqliteStores(directory, vfs=vfs)
        return
    settings = {**SETTINGS, **_slow_postgres_settings(sync_delay_ms)}
    with PrivatePostgres(fsync=True, settings=settings) as server:
        yield _PostgresStores(server.dsn)


class _SqliteStores:
    def __init__(self, directory: Path, *, vfs: str | None) -> None:
        self._directory = directory
        self._vfs = vfs

    async def store(self, name: str) -> Store:
        path = self._directory / f"{name}{'-slow' if self._vfs else ''}.db"
        assert not path.exists(), f"{path} exists already"
        return Store(engine="sqlite", place=str(path), vfs=self._vfs)

    async def raw(self) -> Subject:
        return RawSqlite(Path((await self.store("raw")).place), vfs=self._vfs)


class _PostgresStores:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def store(self, name: str) -> Store:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(f'CREATE DATABASE "{name}"')
        await connection.close()
        return Store(engine="postgres", place=f"{self._dsn.rpartition('/')[0]}/{name}")

    async def raw(self) -> Subject:
        return await RawPostgres.open((await self.store("raw")).place, connections=CONNECTIONS)


@contextmanager
def _slow_sync(delay_ms: float) -> Iterator[str]:
    """Register a VFS that sleeps at each sync, for the duration of the block; yields its name."""

    class File(apsw.VFSFile):
        def __init__(self, filename: str | apsw.URIFilename | None, flags: list[int]) -> None:
            super().__init__("", filename, flags)

        def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
            time.sleep(delay_ms / 1000)
            super().xSync(flags)

    class Slow(apsw.VFS):
        def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
            return File(name, flags)

    vfs = Slow(_SLOW_VFS, "", maxpathname=1024)
    try:
        yield _SLOW_VFS
    finally:
        vfs.unregister()


def _slow_postgres_settings(delay_ms: float) -> dict[str, str]:
    """Settings that delay each flush of the log: the backend that flushes sleeps first while it
    holds the log's write lock, as if the sync itself were slow."""
    return {"commit_delay": str(round(delay_ms * 1000)), "commit_siblings": "0"}
