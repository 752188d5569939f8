"""Engines on a file of the test's own, closed in the end. Relaxed: nothing here cuts the power."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock

OpenEngine = Callable[..., Awaitable[SQLiteEngine]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def open_engine(path: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    opened = []

    async def open_one(**given: Any) -> SQLiteEngine:
        engine = SQLiteEngine(path, **{"clock": clock, "durability": "relaxed", **given})
        await engine.open()
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        await engine.close()


async def until_awaited(engine: SQLiteEngine) -> None:
    """Return when a lease of this engine sleeps and only a ring can wake it."""
    while not engine._bell.awaited:  # noqa: ASYNC110 - the bell has nobody else to tell
        await asyncio.sleep(0)
