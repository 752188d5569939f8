"""The reports of engines on themselves."""

from pathlib import Path

import pytest

from holdfast.engines.extras import Examination
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock


async def test_memory_reports_only_its_clock() -> None:
    assert await MemoryEngine(clock=ManualClock(5)).examine(deep=True) == Examination(now=5)


@pytest.mark.parametrize("deep", [False, True])
async def test_sqlite(tmp_path: Path, *, deep: bool) -> None:
    engine = SQLiteEngine(tmp_path / "w.db", clock=ManualClock(5))
    await engine.open()
    try:
        told = await engine.examine(deep=deep)
    finally:
        await engine.close()
    assert told.now == 5
    assert set(told.versions) == {"SQLite", "apsw"}
    assert told.free_bytes is not None
    assert told.free_bytes > 0
    assert told.trouble == (), "a ballast is made where there is room for one"
    assert told.damage == (() if deep else None)


async def test_postgres(shared_pg_dsn: str) -> None:
    from holdfast.engines.postgres import PostgresEngine

    engine = PostgresEngine(shared_pg_dsn, namespace="examined", clock=ManualClock(5))
    await engine.open()
    try:
        told = await engine.examine(deep=True)
    finally:
        await engine.close()
    assert (told.now, told.damage, told.free_bytes) == (5, None, None)
    assert int(told.versions["PostgreSQL"].partition(".")[0]) >= 12
    assert all("off" in text for text in told.trouble)
