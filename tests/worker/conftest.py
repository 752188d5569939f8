"""A place where real workers can be started, on the embedded file or on PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Holdfast
from tests.worker.running import Place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{tmp_path}/work.db"
    async with Holdfast(url) as app:
        place = Place(tmp_path, url, app)
        yield place
        await place.end()


@pytest.fixture
async def pg_place(tmp_path: Path, pg_dsn: str) -> AsyncIterator[Place]:
    async with Holdfast(pg_dsn) as app:
        place = Place(tmp_path, pg_dsn, app)
        yield place
        await place.end()
