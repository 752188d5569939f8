"""Kill processes with SIGKILL while they migrate a PostgreSQL store of schema version 22, and
compare every job afterwards. The same seed kills after the same delays."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random, SystemRandom
from typing import Any

import asyncpg

from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.core.model import LeaseRequest, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.postgres import PostgresEngine, schema

OLD_VERSION = 22
KILL_S_MAX = 0.2
MIGRATE = """
import asyncio, sys
from holdfast.engines.postgres import PostgresEngine, schema

schema.MOVE_BATCH = int(sys.argv[2])
print("ready", flush=True)
asyncio.run(PostgresEngine(sys.argv[1]).open())
"""

FILL = """
WITH numbered AS (
    SELECT nextval('numbers') AS s, n, CASE
        WHEN n % 100 < 60 THEN 2 WHEN n % 100 < 95 THEN 0 WHEN n % 100 < 97 THEN 1
        WHEN n % 100 < 98 THEN 3 WHEN n % 100 < 99 THEN 4 ELSE 5 END AS state
    FROM generate_series($1::int, $2::int) AS n
)
INSERT INTO jobs (
    seq, place, due_at, created_at, expires_at, token, leased_at, deadline_at, finished_at,
    lease_ms, ns, queue, attempt, crashes, releases, version, holds, rank, state, cancel, noted, id,
    task, key, tenant, grp, worker, origin, reason, extra, payload, result, flow, fingerprint
)
SELECT
    s, s, 1000 + n % 9, 900 + n % 5, CASE WHEN n % 50 = 61 % 50 THEN 9999999999999 + n END,
    CASE WHEN state IN (1, 2, 5) THEN s * 65536 END, CASE WHEN state <> 0 THEN 1000 + n END,
    CASE WHEN state IN (1, 5) THEN 9999999999999 END, CASE WHEN state > 1 THEN 5000 + n END,
    CASE WHEN n % 13 = 0 THEN 7000 END, 1, 1, CASE WHEN state = 0 THEN n % 2 ELSE 1 + n % 3 END,
    n % 4, n % 5, 1 + n % 6,
    CASE WHEN grouped AND n % 1000 <> 60 THEN 1 ELSE 0 END, n % 3 - 1, state,
    state = 1 AND n % 7 = 0, false, 'job-' || n, 'task-' || n % 3,
    CASE WHEN n % 11 = 0 THEN 'key-' || n END,
    CASE WHEN n % 6 = 0 THEN 'tenant-' || n % 20 END,
    CASE WHEN grouped THEN 'group-' || n / 1000 END,
    CASE WHEN state <> 0 THEN 'worker' END, CASE WHEN n % 17 = 0 THEN 'elsewhere' END,
    CASE WHEN state IN (3, 5) THEN 'attempts' END,
    CASE WHEN n % 10 = 0 THEN '{"labels":{"a":"b"}}'::bytea END, ('{"n":' || n || '}')::bytea,
    CASE WHEN state = 2 AND n % 2 = 0 THEN '"done"'::bytea END,
    CASE WHEN grouped THEN CASE WHEN n % 1000 = 60 THEN 2 ELSE 18 END ELSE 0 END,
    CASE WHEN state IN (3, 5) THEN 'fingerprint-' || n % 5 END
FROM (SELECT *, n % 100 = 60 AS grouped FROM numbered) n
"""
"""Jobs of all states, from $1 to $2. Every hundredth waits in a group, of which the first is
exposed."""

_DIGEST = """
SELECT state::int, count(*)::bigint, sum(hashtextextended(ROW(
    seq, ns, id, created_at, task, key, tenant, grp, origin, extra, payload, due_at, expires_at,
    token, leased_at, deadline_at, finished_at, queue, attempt, crashes, releases, version, rank,
    cancel, noted, worker, reason, fingerprint, result
)::text, 0)::numeric)::text FROM {} GROUP BY state ORDER BY state
"""
_PLACES = """
SELECT sum(hashtextextended(ROW(seq, place, lane, flow, holds, lease_ms)::text, 0)::numeric)::text
FROM {} WHERE state <> 2
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hf torture migration", description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=2_000_000, metavar="N", help="jobs [default: 2000000]"
    )
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="kills [default: 30]")
    parser.add_argument(
        "--batch",
        type=int,
        default=schema.MOVE_BATCH,
        metavar="N",
        help=f"jobs moved in one step [default: {schema.MOVE_BATCH}]",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed [default: random]")
    given = parser.parse_args(argv)
    seed = SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(
        f"./hf torture migration --jobs {given.jobs} --kills {given.kills} --batch {given.batch}"
        f" --seed {seed}"
    )
    with PrivatePostgres() as server:
        problems = asyncio.run(_run(server.dsn, given.jobs, given.kills, given.batch, Random(seed)))
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


async def _run(dsn: str, jobs: int, kills: int, batch: int, random: Random) -> list[str]:
    await make_old_store(dsn, jobs)
    look = await connect(dsn)
    before, places = await digest(look, "jobs"), await look.fetchval(_PLACES.format("jobs"))
    killed = 0
    began = time.monotonic()
    while killed < kills and _migrate(dsn, batch, kill_after_s=random.uniform(0, KILL_S_MAX)):
        killed += 1
    _migrate(dsn, batch)
    print(f"{jobs:,} jobs moved in {time.monotonic() - began:.1f} s, with {killed} kills")
    problems = []
    if await digest(look, "all_jobs") != before:
        problems.append("the jobs are not the same after the migration")
    if await look.fetchval(_PLACES.format("jobs")) != places:
        problems.append("the waiting jobs are not in their places")
    await look.close()
    return problems + await _use(dsn)


async def _use(dsn: str) -> list[str]:
    """Lease, complete and find jobs of the migrated store."""
    problems = []
    engine = PostgresEngine(dsn)
    await engine.open()
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=500))
    order = [(-lease.job.priority, lease.job.due_at, lease.job.seq) for lease in leases]
    if not leases or order != sorted(order):
        problems.append("jobs are not leased in their order")
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    if set(await engine.settle(done)) != {Outcome.SETTLED}:
        problems.append("leased jobs cannot be completed")
    if await engine.recount(1_000):
        problems.append("the recount repaired something")
    await engine.close()
    return problems


async def make_old_store(dsn: str, jobs: int) -> None:
    """Create a store of the old version with that many jobs."""
    with old_version():
        engine = PostgresEngine(dsn)
        await engine.open()
        await engine.declare(Queue(name="elsewhere"))
        await engine.close()
    look = await connect(dsn)
    for first in range(0, jobs, 100_000):
        await look.execute(FILL, first, min(first + 100_000, jobs) - 1, timeout=600)
    await look.close()


@contextmanager
def old_version() -> Iterator[None]:
    """Let this process create and open stores of the old version."""
    whole = schema.migrations
    schema.migrations = lambda: whole()[:OLD_VERSION]  # type: ignore[assignment]
    try:
        yield
    finally:
        schema.migrations = whole


async def connect(dsn: str) -> Any:
    """A plain connection whose search path is the engine's schema."""
    return await asyncpg.connect(dsn, server_settings={"search_path": "holdfast"})


async def digest(look: Any, table: str) -> list[tuple[int, int, str]]:
    """The number of jobs in each state, and a hash of all their columns."""
    return [tuple(row) for row in await look.fetch(_DIGEST.format(table), timeout=600)]


def _migrate(dsn: str, batch: int, *, kill_after_s: float | None = None) -> bool:
    """Open the store in another process; returns whether it was killed before it was open."""
    command = [sys.executable, "-c", MIGRATE, dsn, str(batch)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    try:
        status = process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    if status:
        raise RuntimeError(f"the migration failed with status {status}")
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
