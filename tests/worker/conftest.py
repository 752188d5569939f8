"""Places where real workers can be started, and doubles for those that are not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Holdfast
from holdfast.worker import births, crew, processes, renewer, settler, supervisor
from tests.worker.doubles import FakeLink, TroubledEngine
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


@pytest.fixture
async def troubled() -> TroubledEngine:
    engine = TroubledEngine()
    await engine.open()
    return engine


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that looks often, and has no real process to look for."""
    monkeypatch.setattr(supervisor, "TICK_S", 0.005)
    monkeypatch.setattr(supervisor, "_ORDERS_S", 0.01)
    monkeypatch.setattr(settler, "_PAUSE_S_MAX", 0.01)
    monkeypatch.setattr(renewer, "_PAUSE_S", 0.01)
    monkeypatch.setattr(births, "_PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(processes, "kill_marked", lambda _marker: 0)
