"""Connections to PostgreSQL for all tests of a module."""

from collections.abc import AsyncIterator

import pytest

from tests.engines.kept import Kept


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[Kept]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with Kept() as kept:
        yield kept
