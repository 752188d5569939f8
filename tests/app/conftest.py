"""A Holdfast on each engine."""

from collections.abc import AsyncIterator

import pytest

from holdfast.app.application import Holdfast


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(url) as app:
        yield app
