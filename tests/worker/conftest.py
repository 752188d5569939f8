"""Fixtures: folders in which real workers run, and doubles of children and engines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.worker import processes
from holdfast.worker.supervisor import child_pool, child_process, held_leases, settle, supervisor
from tests.worker.doubles import FakeChild, TroubledEngine
from tests.worker.live_workers import Place
from tests.worker.pool_driver import PoolDriver


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
def pool_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubles count as child processes, and no orphaned processes are swept."""
    monkeypatch.setattr(child_pool, "ChildProcess", FakeChild)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(child_process, "_PAUSE_S_FIRST", 0.001)


@pytest.fixture
async def driver(pool_doubles: None) -> AsyncIterator[PoolDriver]:
    made = PoolDriver()
    yield made
    await made.pool.stop("the test is over")


@pytest.fixture
async def troubled() -> TroubledEngine:
    engine = TroubledEngine()
    await engine.open()
    return engine


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor with short intervals and no real processes."""
    monkeypatch.setattr(supervisor, "TICK_S", 0.005)
    monkeypatch.setattr(supervisor, "_ORDERS_S", 0.01)
    monkeypatch.setattr(settle, "_PAUSE_S_MAX", 0.01)
    monkeypatch.setattr(held_leases, "_PAUSE_S", 0.01)
    monkeypatch.setattr(child_process, "_PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(processes, "kill_marked", lambda _marker: 0)
