"""The indexes that the statements of the hot path use, and the pages they read for each job."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from holdfast.conformance.contract.cases import from_default
from holdfast.core.model import NewJob, Renewal
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine
from tests.engines.postgres.test_query_cost import Meter, load
from tests.engines.postgres.until import until

BATCH = 200
SCANS = """
SELECT indexrelname::text AS name, idx_scan AS scans FROM pg_stat_user_indexes
WHERE schemaname = 'holdfast' AND relname IN ('bodies', 'jobs', 'done')
"""


OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def scans(look: Any) -> dict[str, int]:
    return {row["name"]: row["scans"] for row in await look.fetch(SCANS)}


async def flushed(engine: PostgresEngine, look: Any) -> None:
    """The server adds a session's scans to the statistics before the session has ended."""

    async def is_alone() -> bool:
        others: int = await look.fetchval(OTHERS)
        return others == 0

    await engine.close()
    await until(is_alone)
    await engine.open()


class Used:
    """The scans of each index and the pages that a call reads, for each job."""

    def __init__(self, look: Any, engine: PostgresEngine) -> None:
        self._look = look
        self._engine = engine

    async def by(self, call: Callable[[], Awaitable[object]]) -> tuple[dict[str, float], float]:
        await flushed(self._engine, self._look)
        before = await scans(self._look)
        await call()
        await flushed(self._engine, self._look)
        after = await scans(self._look)
        used = {name: (after[name] - before[name]) / BATCH for name in after}
        meter = Meter(self._engine)
        await call()
        meter.remove()
        return {name: each for name, each in used.items() if each}, meter.pages.total() / BATCH


@pytest.mark.parametrize("delayed", [False, True], ids=["waiting-and-done", "delayed"])
async def test_the_plans_of_the_hot_path(pg_dsn: str, look: Any, delayed: bool) -> None:
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    await load(look, 20_000, delayed=delayed)
    used = Used(look, engine)
    leases: list[Any] = []

    async def enqueue() -> None:
        ids = sorted(f"{uuid4().hex}-{n}" for n in range(BATCH))
        await engine.enqueue([NewJob(id=id_, task="work", priority=100) for id_ in ids])

    async def lease() -> None:
        leases.extend(await engine.lease(from_default(BATCH, worker="w")))

    async def renew() -> None:
        batch = [Renewal(lease=lease) for lease in leases[:BATCH]]
        assert None not in await engine.renew(batch)

    async def settle(verdict: Complete | Retry) -> None:
        batch = [Settlement(lease=leases.pop(), verdict=verdict) for _ in range(BATCH)]
        assert set(await engine.settle(batch)) == {Outcome.SETTLED}

    indexes, pages = await used.by(enqueue)
    # The unique checks of an insert are no scans. The counts below are 0 but for single looks.
    assert not {name for name, each in indexes.items() if each > 0.1}
    assert pages < 20
    # Each call was made twice, so there are two batches.
    indexes, pages = await used.by(lease)
    assert set(indexes) == {"bodies_seq", "jobs_ready", "jobs_stale"}
    assert pages < 26
    indexes, pages = await used.by(renew)
    heavy = {name for name, each in indexes.items() if each > 0.1}
    assert heavy == {"bodies_id", "jobs_seq"}
    assert pages < 33
    for _ in range(2):
        await enqueue()
    await lease()
    await lease()
    indexes, pages = await used.by(lambda: settle(Complete()))
    assert set(indexes) <= {"jobs_seq", "jobs_stale"}
    assert indexes["jobs_seq"] > 0
    assert pages < 20
    indexes, pages = await used.by(lambda: settle(Retry(2**40)))
    heavy = {name for name, each in indexes.items() if each > 0.1}
    assert heavy <= {"bodies_id", "bodies_seq", "jobs_seq", "done_seq"}
    assert pages < 56
    await engine.close()
