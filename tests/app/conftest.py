"""A Holdfast on each engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Holdfast


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/work.db"
        case "postgresql":
            dsn: str = request.getfixturevalue("pg_dsn")
            return dsn
        case _:
            return "memory:"


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(url) as app:
        yield app
