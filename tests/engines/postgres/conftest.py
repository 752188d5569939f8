"""Fixtures: an open engine on a database of its own, directly or through a proxy, and a plain
connection to that database."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.engines.postgres import PostgresEngine
from tests.engines.postgres.proxy import Proxy, proxied


@pytest.fixture
async def engine(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(pg_dsn)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def proxy(pg_dsn: str) -> AsyncIterator[Proxy]:
    async with proxied(pg_dsn) as proxy:
        yield proxy


@pytest.fixture
async def far_engine(proxy: Proxy) -> AsyncIterator[PostgresEngine]:
    """One connection, through the proxy."""
    engine = PostgresEngine(proxy.dsn, connections=1)
    await engine.open()
    yield engine
    proxy.heal()
    await engine.close()


@pytest.fixture
async def look(pg_dsn: str) -> AsyncIterator[Any]:
    """A plain connection whose search path is the engine's schema."""
    connection = await asyncpg.connect(pg_dsn, server_settings={"search_path": "holdfast"})
    yield connection
    await connection.close()
