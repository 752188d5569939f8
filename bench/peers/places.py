"""Where a contestant has its jobs: a new, empty file or database for every turn."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.grounds import SETTINGS
from bench.stores import EngineName
from holdfast.testing.services import PrivatePostgres


@dataclass(frozen=True, slots=True)
class Place:
    """`store` is a path or a URL, as peers want it. The directory is of this turn alone."""

    store: str
    directory: Path

    @property
    def url(self) -> str:
        return self.store if "://" in self.store else f"sqlite:///{self.store}"


class Places:
    def __init__(self, directory: Path, dsn: str | None) -> None:
        self._directory = directory
        self._dsn = dsn
        self._count = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            directory = Path(name)
            if self._dsn is None:
                yield Place(str(directory / "queue.db"), directory)
                return
            self._count += 1
            database = f"turn{self._count}"
            await self._execute(f"CREATE DATABASE {database}")
            try:
                yield Place(f"{self._dsn.rpartition('/')[0]}/{database}", directory)
            finally:
                # Dropping it checkpoints as well, so nobody pays for the pages of another.
                await self._execute(f"DROP DATABASE {database} WITH (FORCE)")

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(sql)
        await connection.close()


@asynccontextmanager
async def places(engine: EngineName) -> AsyncIterator[Places]:
    """On a server of their own with full durability, or in a temporary directory."""
    server = PrivatePostgres(fsync=True, settings=SETTINGS) if engine == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, server or nullcontext():
        yield Places(Path(name), server.dsn if server else None)
