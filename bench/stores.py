"""The store of a benchmark, a file or a database, and the engine that opens it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.engines.base import Engine

EngineName = Literal["sqlite", "postgres"]
ENGINES: tuple[EngineName, ...] = ("sqlite", "postgres")


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is the path of a file or the URL of a database. Passed to other processes as JSON."""

    engine: EngineName
    place: str
    vfs: str | None = None


def build(store: Store) -> Engine:
    """Create an engine with default settings; it is not open yet."""
    if store.engine == "sqlite":
        from holdfast.engines.sqlite import SQLiteEngine

        return SQLiteEngine(store.place, vfs=store.vfs)
    from holdfast.engines.postgres import PostgresEngine

    return PostgresEngine(store.place)


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Engine]:
    """Open an engine on the store for the duration of the block."""
    engine = build(store)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def syncs_per_second(directory: Path, *, seconds: float) -> float:
    """Measure how often 4 KB can be written and synced in this directory, sequentially."""
    path = directory / "syncs"
    block = bytes(4096)
    number = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.pwrite(number, block, done % 256 * 4096)
            os.fdatasync(number)
            done += 1
        return done / (time.perf_counter() - started)
    finally:
        os.close(number)
        path.unlink()
