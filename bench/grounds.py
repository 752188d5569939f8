"""Where the engines are measured: a directory, or a private server, with full durability."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import asyncpg

from bench.raw_postgres import RawPostgres
from bench.raw_sqlite import RawSqlite
from bench.slow_sync import postgres_settings, slow_sync
from bench.stores import EngineName, Store, build
from bench.subject import HoldfastSubject, Subject
from holdfast.testing.services import PrivatePostgres

CONNECTIONS = 4
# A checkpoint in the middle of one turn would be held against whoever's turn it is.
SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "30min", "synchronous_commit": "on"}


class Ground(Protocol):
    async def store(self, name: str) -> Store:
        """A new, empty one."""

    async def raw(self) -> Subject:
        """The ceiling, on a new store."""


async def holdfast(store: Store) -> Subject:
    engine = build(store)
    await engine.open()
    return HoldfastSubject(engine)


@contextmanager
def ground(engine: EngineName, directory: Path, *, sync_delay_ms: float) -> Iterator[Ground]:
    """Every sync takes `sync_delay_ms` longer than the disk does."""
    if engine == "sqlite":
        if sync_delay_ms == 0:
            yield _SqliteGround(directory, vfs=None)
            return
        with slow_sync(sync_delay_ms) as vfs:
            yield _SqliteGround(directory, vfs=vfs)
        return
    settings = {**SETTINGS, **postgres_settings(sync_delay_ms)}
    with PrivatePostgres(fsync=True, settings=settings) as server:
        yield _PostgresGround(server.dsn)


class _SqliteGround:
    def __init__(self, directory: Path, *, vfs: str | None) -> None:
        self._directory = directory
        self._vfs = vfs

    async def store(self, name: str) -> Store:
        path = self._directory / f"{name}{'-slow' if self._vfs else ''}.db"
        assert not path.exists(), f"{path} exists already"
        return Store(engine="sqlite", place=str(path), vfs=self._vfs)

    async def raw(self) -> Subject:
        return RawSqlite(Path((await self.store("raw")).place), vfs=self._vfs)


class _PostgresGround:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def store(self, name: str) -> Store:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(f'CREATE DATABASE "{name}"')
        await connection.close()
        return Store(engine="postgres", place=f"{self._dsn.rpartition('/')[0]}/{name}")

    async def raw(self) -> Subject:
        return await RawPostgres.open((await self.store("raw")).place, connections=CONNECTIONS)
