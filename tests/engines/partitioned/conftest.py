"""Three partitions that can fail, opened for a test."""

from collections.abc import AsyncIterator

import pytest

from tests.engines.partitioned.fragile import Trio


@pytest.fixture
async def trio() -> AsyncIterator[Trio]:
    trio = Trio()
    await trio.engine.open()
    yield trio
    await trio.engine.close()
