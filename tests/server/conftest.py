"""A server over REST, on an engine in memory and on a file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.asking import Rest, serving


@pytest.fixture(params=["memory", "sqlite"])
async def rest(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rest]:
    async with serving(request.param, tmp_path) as rest:
        yield rest
