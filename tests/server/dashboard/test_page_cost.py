"""The first data of each page costs the same among many jobs as among few, counted in SQLite's VM
steps and in PostgreSQL's buffers.

The bounds of scans and counts are small here, so that the smaller store exceeds them already.
"""

from pathlib import Path

import asyncpg
import pytest

from bench.dashboard_pages import PAGES, page_application, page_steps
from bench.dashboard_store import fill
from bench.stores import Store
from holdfast.core import bounds
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres import queues as postgres_queues
from holdfast.engines.postgres import search as postgres_search
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqlite import queues as sqlite_queues
from holdfast.ops import dead_letters
from holdfast.server.rest import jobs
from tests.engines.postgres.test_query_cost import Meter
from tests.engines.postgres.until import until_vacuumed

FEW, MANY, QUEUES = 8_000, 40_000, 4
SCAN_MAX, COUNT_MAX = 500, 100
PAGES_MAX = 10
GROWTH_MAX = 1.1


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    full = str(bounds.SCAN_MAX)
    for name in ("_FIND", "_FIND_ROWS", "_END_OF_SCAN", "_TALLY"):
        statements = getattr(postgres_search, name)
        assert all(full in text for text in statements.values())
        small = {key: text.replace(full, str(SCAN_MAX)) for key, text in statements.items()}
        monkeypatch.setattr(postgres_search, name, small)
    monkeypatch.setattr(bounds, "SCAN_MAX", SCAN_MAX)
    monkeypatch.setattr(dead_letters, "WALK_MAX", COUNT_MAX)
    monkeypatch.setattr(jobs, "_PAGES_MAX", PAGES_MAX)
    for count in (sqlite_queues.views, postgres_queues.count_queues):
        assert count.__kwdefaults__ is not None
        monkeypatch.setitem(count.__kwdefaults__, "most", COUNT_MAX)


def check(few: dict[str, int], many: dict[str, int]) -> None:
    for page in PAGES:
        print(f"{page}: {few[page]:,} among {FEW:,} jobs, {many[page]:,} among {MANY:,}")
    assert [page for page in PAGES if many[page] > few[page] * GROWTH_MAX] == []
    assert min(few.values()) > 0


async def test_sqlite(tmp_path: Path) -> None:
    steps = []
    for count in (FEW, MANY):
        store = Store(engine="sqlite", place=str(tmp_path / f"{count}.db"))
        await fill(store, jobs=count, queues=QUEUES)
        steps.append(await page_steps(SQLiteEngine(store.place)))
    check(*steps)


async def test_postgres(pg_dsn: str, empty_pg_dsn: str) -> None:
    buffers = []
    for count, dsn in ((FEW, pg_dsn), (MANY, empty_pg_dsn)):
        await fill(Store(engine="postgres", place=dsn), jobs=count, queues=QUEUES)
        await vacuum(dsn)
        engine = PostgresEngine(dsn, connections=1)
        found = {}
        async with page_application(engine) as pages:
            for page in PAGES:
                await pages.load(page)
                meter = Meter(engine)
                await pages.load(page)
                meter.remove()
                found[page] = sum(meter.pages.values())
        buffers.append(found)
    check(*buffers)


async def vacuum(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "holdfast"})
    try:
        await until_vacuumed(connection)
    finally:
        await connection.close()
