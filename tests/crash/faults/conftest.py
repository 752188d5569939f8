"""A faulty disk for each test, and engines that use it and are closed in the end."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.conformance.faulty_disk import FaultyDisk
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock

OpenEngine = Callable[..., Awaitable[SQLiteEngine]]

_numbers = itertools.count()


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk(f"faulty-{next(_numbers)}", Random(0))
    yield disk
    disk.faults.mend()


@pytest.fixture
async def open_engine(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    opened = []

    async def open_one(path: Path | None = None, **given: Any) -> SQLiteEngine:
        engine = SQLiteEngine(path or tmp_path / "jobs.db", **{"clock": clock, **given})
        opened.append(engine)
        await engine.open()
        return engine

    yield open_one
    for engine in opened:
        await engine.close()
