"""An open engine on a database of the test's own, and a way to look into that database."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.engines.postgres import PostgresEngine


@pytest.fixture
async def engine(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(pg_dsn)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def look(pg_dsn: str) -> AsyncIterator[Any]:
    """A plain connection whose search path is the engine's schema."""
    connection = await asyncpg.connect(pg_dsn, server_settings={"search_path": "holdfast"})
    yield connection
    await connection.close()
