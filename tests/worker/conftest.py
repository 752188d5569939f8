"""A place where real workers can be started, on the embedded file or on PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Holdfast
from holdfast.worker import births, crew, processes
from tests.worker.doubles import FakeLink
from tests.worker.running import Place
from tests.worker.staging import Stage


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


@pytest.fixture
def crew_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubles count as processes, and nobody looks for those that strangers left here."""
    monkeypatch.setattr(crew, "Link", FakeLink)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(births, "_PAUSE_S_FIRST", 0.001)


@pytest.fixture
async def stage(crew_doubles: None) -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.crew.stop("the test is over")
