"""Connections to PostgreSQL for all tests of a module."""

from collections.abc import AsyncIterator

import pytest

from tests.engines.pg_connections import KeptConnections


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[KeptConnections]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with KeptConnections() as kept:
        yield kept
