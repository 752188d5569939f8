"""No more work per job in a large database than in a small one: counted in buffers, not in time.

A line of 200,000 jobs that are not due yet, 200,000 that are and 200,000 finished ones are
in front, beside and behind. Ready ones are added to each database afterwards in the same way.
"""

import json
import re
from collections import Counter
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Renewal
from holdfast.core.verdict import Cancel, Complete, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.script import Statement

SMALL, LARGE = 10_000, 200_000
BATCH = 100
# An index grows by a level or two between the two sizes, which is a buffer or two for each probe;
# and now and then an insert splits full pages, which only shows where a statement does little.
GROWTH_MAX = 1.5
SPLITS_MAX = 40

LOAD = """
WITH new AS MATERIALIZED (SELECT nextval('numbers') AS number FROM generate_series(1, $1::int)),
bodies_ AS (
    INSERT INTO bodies (seq, ns, created_at, id, task, payload)
    SELECT number, 1, 1, $2::text || number, 'work', '{}' FROM new
), done_ AS (
    INSERT INTO done (seq, ns, queue, due_at, finished_at, attempt, crashes, releases, version,
                      rank, cancel, noted)
    SELECT number, 1, 1, $3, number, 1, 0, 0, 3, $5::int, false, false FROM new
    WHERE $4::int = 2
)
INSERT INTO jobs (seq, place, due_at, expires_at, ns, queue, rank, state, task)
SELECT number, number, $3, CASE WHEN number % 1000 = 0 THEN 9999999999999 END, 1, 1, $5::int,
       $4::int, 'work'
FROM new WHERE $4::int <> 2
"""
"""Values: count, id prefix, due time, state, rank."""
FAR = 9_999_999_999_999


async def load(look: Any, count: int, *, delayed: bool) -> None:
    # Indexes are made again afterwards: that is much faster than growing them row by row.
    indexes = await look.fetch(
        "SELECT * FROM pg_indexes WHERE tablename IN ('jobs', 'bodies', 'done')"
    )
    for index in indexes:
        await look.execute(f"DROP INDEX {index['indexname']}")
    if delayed:
        # Over a hundred higher priorities, all of which must be skipped.
        for rank in range(-100, 0):
            await look.execute(LOAD, count // 100, f"delayed{rank}-", FAR, 0, rank)
    else:
        await look.execute(LOAD, count, "waiting-", 5, 0, 10)
        await look.execute(LOAD, count, "done-", 5, 2, 0)
    await look.execute("SET maintenance_work_mem = '256MB'")
    for index in indexes:
        await look.execute(index["indexdef"])
    await look.execute("VACUUM ANALYZE jobs, bodies, done")


class Meter:
    """Runs each statement twice: first to count buffers, rolled back, then for real."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.pages: Counter[str] = Counter()
        self._pool, _ = engine._opened()
        self._fetch = self._pool._fetch
        self._pool._fetch = self._measure  # type: ignore[method-assign]

    def remove(self) -> None:
        self._pool._fetch = self._fetch  # type: ignore[method-assign]

    async def _measure(self, connection: Any, statement: Statement) -> list[Any]:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {self._pool.text(statement.text)}"
        begun = connection.is_in_transaction()
        await connection.execute("SAVEPOINT meter" if begun else "BEGIN")
        answer = await connection.fetchval(explain, *statement.values)
        await connection.execute("ROLLBACK TO meter" if begun else "ROLLBACK")
        plan = json.loads(answer)[0]["Plan"]
        called = re.search(r"\$schema\.\w+(?=\()", statement.text)
        name = called[0] if called else " ".join(statement.text.partition("(")[0].split())
        self.pages[name] += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return await self._fetch(connection, statement)


async def work(engine: PostgresEngine, rounds: int) -> Counter[str]:
    """Buffers read by each statement while batches are enqueued, leased, renewed and settled."""
    meter = Meter(engine)
    for _ in range(rounds):
        ids = [f"{uuid4().hex}-{n}" for n in range(BATCH)]
        await engine.enqueue([NewJob(id=id_, task="work", priority=-5) for id_ in ids])
        leases = await engine.lease(LeaseRequest(queues=("default",), limit=BATCH, worker="w"))
        assert [lease.id for lease in leases] == ids
        await engine.renew([Renewal(lease=lease) for lease in leases])
        half = BATCH // 2
        done = [Settlement(lease=lease, verdict=Complete()) for lease in leases[:half]]
        late = [Settlement(lease=lease, verdict=Retry(2**40)) for lease in leases[half:]]
        assert set(await engine.settle(done)) == {Outcome.SETTLED}
        assert set(await engine.settle(late)) == {Outcome.SETTLED}
        assert await engine.lease(LeaseRequest(ids=("waiting-none",))) == []
        assert (await engine.enqueue([NewJob(id=ids[0], task="work")]))[0].status == "duplicate"
        keyed = NewJob(id=uuid4().hex, task="work", key=uuid4().hex, delay_ms=2**40)
        await engine.enqueue([keyed, msgspec.structs.replace(keyed, id="other")])
        await engine.amend(JobFilter(ids=(keyed.id,)), Cancel(), limit=1)
        await engine.overdue(10)
        await engine.expired(10)
        assert await engine.get(keyed.id) is not None
    meter.remove()
    return meter.pages


@pytest.mark.parametrize("delayed", [False, True], ids=["waiting-and-done", "delayed"])
async def test_the_work_does_not_grow(pg_dsn: str, look: Any, delayed: bool) -> None:
    counts = []
    for more in (SMALL, LARGE - SMALL):
        engine = PostgresEngine(pg_dsn, connections=1)
        await engine.open()
        await load(look, more, delayed=delayed)
        await work(engine, 2)
        counts.append(await work(engine, 3))
        await engine.close()
    small, large = counts
    for statement, pages in large.items():
        print(f"{statement}: {small[statement]} pages beside {SMALL:,}, {pages} beside {LARGE:,}")
    grown = {name for name in large if large[name] > small[name] * GROWTH_MAX + SPLITS_MAX}
    assert grown == set()
    assert small["$schema.lease_jobs"] > BATCH, "nothing was measured"


async def test_plans_made_when_the_table_was_empty(pg_dsn: str, look: Any) -> None:
    """The planner has no statistics of the grown table, and connections keep cached plans."""
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    for table in ("jobs", "bodies", "done"):
        await look.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    for _ in range(4):
        small = await work(engine, 2)
    await look.execute(LOAD, 30_000, "waiting-", 5, 0, 10)
    await look.execute(LOAD, 30_000, "done-", 5, 2, 0)
    large = await work(engine, 2)
    await engine.close()
    for statement, pages in large.items():
        print(f"{statement}: {small[statement]} pages before, {pages} after")
    assert {name for name in large if large[name] > small[name] * 2 + 50} == set()


async def test_the_children_of_a_job_are_read_by_an_index(pg_dsn: str, look: Any) -> None:
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    await engine.enqueue([NewJob(id="p", task="work")])
    await engine.enqueue([NewJob(id=f"few-{n}", task="work", after=("p",)) for n in range(20)])
    pages = []
    for more in (1_000, 30_000):
        await look.execute(LOAD, more, f"waiting-{more}-", 5, 0, 10)
        await look.execute("VACUUM ANALYZE jobs, bodies, done")
        meter = Meter(engine)
        page = await engine.find(JobFilter(parent="p"), limit=50)
        assert (len(page.jobs), page.after) == (20, None)
        assert (await engine.find(JobFilter(parent="none"), limit=50)).jobs == ()
        [tally] = await engine.tally(JobFilter(parent="p"), "task", limit=5)
        assert tally.count == 20
        meter.remove()
        pages.append(sum(meter.pages.values()))
    await engine.close()
    assert 0 < pages[1] <= pages[0] * GROWTH_MAX + SPLITS_MAX


async def test_counting_skipped_jobs_passes_over_delayed_ones(pg_dsn: str, look: Any) -> None:
    """By a plan that was made when the table was empty."""
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    for table in ("jobs", "bodies", "done"):
        await look.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    request = LeaseRequest(queues=("default",), tasks=frozenset({"other"}))
    for _ in range(6):
        assert await engine._count_skipped(request, 10) == 0
    ranks = range(-20, 0)
    for rank in ranks:
        await look.execute(LOAD, 1_000, f"delayed{rank}-", FAR, 0, rank)
    await look.execute(LOAD, 3, "waiting-", 5, 0, 10)
    meter = Meter(engine)
    assert await engine._count_skipped(request, 10) == 3
    meter.remove()
    await engine.close()
    assert 0 < sum(meter.pages.values()) < 10 * len(ranks)
