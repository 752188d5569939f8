"""Raw SQL on PostgreSQL, the reference: minimal SQL for a queue, on asyncpg, one round trip each.

It has the same features as raw_sqlite, on one connection per caller, with SKIP LOCKED, tokens from
a sequence, prepared statements and cached plans. It has no notifications, reconnecting or server
clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self

import asyncpg

from bench.subject import PAYLOAD, TASK, next_number

SCHEMA = """
CREATE TABLE job(
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT NOT NULL, queue INT NOT NULL,
    state SMALLINT NOT NULL DEFAULT 0, rank SMALLINT NOT NULL, due_at BIGINT NOT NULL,
    deadline_at BIGINT, token BIGINT, attempt INT NOT NULL DEFAULT 0, created_at BIGINT NOT NULL,
    leased_at BIGINT, finished_at BIGINT, worker TEXT, task TEXT NOT NULL,
    content_type TEXT NOT NULL, payload BYTEA NOT NULL, version INT, crashes INT, releases INT,
    expires_at BIGINT, cancel_requested BOOL, reason TEXT, key TEXT, tenant TEXT, grp TEXT,
    labels TEXT, headers TEXT, overrides TEXT, origin TEXT, progress REAL, checkpoint BYTEA,
    output BYTEA, result BYTEA);
CREATE UNIQUE INDEX job_id ON job(id);
CREATE INDEX job_ready ON job(queue, rank, due_at, seq) WHERE state = 0;
CREATE INDEX job_leased ON job(deadline_at) WHERE state = 1;
CREATE SEQUENCE token CACHE 1000;
"""
ENQUEUE = """
INSERT INTO job(id, queue, rank, due_at, created_at, task, content_type, payload)
SELECT id, 1, 0, $4::bigint, $4::bigint, task, 'application/json', payload
FROM unnest($1::text[], $2::text[], $3::bytea[]) AS new(id, task, payload)
"""
LEASE = """
UPDATE job SET state = 1, attempt = attempt + 1, token = nextval('token'),
    leased_at = $1::bigint, deadline_at = $1::bigint + 30000, worker = 'worker'
WHERE seq = ANY(ARRAY(
    SELECT seq FROM job WHERE queue = 1 AND state = 0 AND due_at <= $1::bigint
    ORDER BY rank, due_at, seq LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING seq, token, id, task, content_type, attempt, payload
"""
SETTLE = """
UPDATE job SET state = 2, finished_at = $3::bigint, deadline_at = NULL, token = NULL
WHERE seq = ANY($1::bigint[]) AND token = ANY($2::bigint[])
"""


class RawPostgres:
    """Raw SQL on PostgreSQL; see `Subject`."""

    def __init__(self, connections: list[Any]) -> None:
        self._connections = connections
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        for connection in connections:
            self._free.put_nowait(connection)

    @classmethod
    async def open(cls, dsn: str, *, connections: int) -> Self:
        # Planning at every call costs more than a slightly better plan could save.
        settings = {"plan_cache_mode": "force_generic_plan"}
        opened = [await asyncpg.connect(dsn, server_settings=settings) for _ in range(connections)]
        await opened[0].execute(SCHEMA)
        return cls(opened)

    def make(self, count: int) -> list[Any]:
        return [(f"job-{next_number():012d}", TASK, PAYLOAD) for _ in range(count)]

    async def enqueue(self, jobs: Sequence[Any]) -> None:
        ids, tasks, payloads = zip(*jobs, strict=True)
        await self._run("execute", ENQUEUE, ids, tasks, payloads, _now())

    async def lease(self, limit: int) -> Sequence[Any]:
        rows: list[Any] = await self._run("fetch", LEASE, _now(), limit)
        return rows

    async def settle(self, leases: Sequence[Any]) -> None:
        numbers, tokens = [row[0] for row in leases], [row[1] for row in leases]
        status = await self._run("execute", SETTLE, numbers, tokens, _now())
        assert status == f"UPDATE {len(leases)}", f"a settle was lost: {status}"

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def _run(self, method: str, statement: str, *values: Any) -> Any:
        connection = await self._free.get()
        try:
            return await getattr(connection, method)(statement, *values)
        finally:
            self._free.put_nowait(connection)


def _now() -> int:
    return time.time_ns() // 1_000_000
