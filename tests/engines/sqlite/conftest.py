"""Engines on a temporary file, closed after the test. Relaxed: no test here cuts the power."""

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
    """Return when a lease of this engine waits for the bell."""
    while not engine._bell.awaited:  # noqa: ASYNC110 - the bell has no event for this
        await asyncio.sleep(0)
