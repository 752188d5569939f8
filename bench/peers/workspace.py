"""The workspace of a contestant: a directory and a new, empty file or database for every turn."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.store_factory import SETTINGS
from bench.stores import EngineName
from holdfast.conformance.postgres_server import PrivatePostgres


@dataclass(frozen=True, slots=True)
class Workspace:
    """`store` is a path or a URL, as the peers expect it. The directory belongs to one turn."""

    store: str
    directory: Path

    @property
    def url(self) -> str:
        return self.store if "://" in self.store else f"sqlite:///{self.store}"


class Workspaces:
    """Creates the workspaces of one engine."""

    def __init__(self, directory: Path, dsn: str | None) -> None:
        self._directory = directory
        self._dsn = dsn
        self._count = 0

    @asynccontextmanager
    async def new(self) -> AsyncIterator[Workspace]:
        """Create a workspace, deleted after the block."""
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            directory = Path(name)
            if self._dsn is None:
                yield Workspace(str(directory / "queue.db"), directory)
                return
            self._count += 1
            database = f"turn{self._count}"
            await self._execute(f"CREATE DATABASE {database}")
            try:
                yield Workspace(f"{self._dsn.rpartition('/')[0]}/{database}", directory)
            finally:
                # Dropping it also checkpoints, so no turn pays for the pages of another.
                await self._execute(f"DROP DATABASE {database} WITH (FORCE)")

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(sql)
        await connection.close()


@asynccontextmanager
async def workspaces(engine: EngineName) -> AsyncIterator[Workspaces]:
    """Use a private server with full durability, or a temporary directory."""
    server = PrivatePostgres(fsync=True, settings=SETTINGS) if engine == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, server or nullcontext():
        yield Workspaces(Path(name), server.dsn if server else None)
