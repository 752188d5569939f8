"""Raw SQL on SQLite, the reference: the minimal SQL for a queue, on apsw, in the caller's thread.

It has a table as wide as a job, an integer key, the producer's text id (unique), an attempt
count, a token checked at settle, priority, due time, deadline, and full durability. It has no
input checks, queues with settings, once-only keys, results for each job, events, locks between
processes, threads, wake-ups or objects: rows in, rows out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import apsw

from bench.subject import PAYLOAD, TASK, next_number

SCHEMA = """
CREATE TABLE job(
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, queue INT NOT NULL, state INT NOT NULL DEFAULT 0,
    rank INT NOT NULL, due_at INT NOT NULL, deadline_at INT, token INT,
    attempt INT NOT NULL DEFAULT 0, created_at INT NOT NULL, leased_at INT, finished_at INT,
    worker TEXT, task TEXT NOT NULL, content_type TEXT NOT NULL, payload BLOB NOT NULL,
    version INT, crashes INT, releases INT, expires_at INT, cancel_requested INT, reason TEXT,
    key TEXT, tenant TEXT, grp TEXT, labels TEXT, headers TEXT, overrides TEXT, origin TEXT,
    progress REAL, checkpoint BLOB, output BLOB, result BLOB);
CREATE UNIQUE INDEX job_id ON job(id);
CREATE INDEX job_ready ON job(queue, rank, due_at, seq) WHERE state = 0;
CREATE INDEX job_leased ON job(deadline_at) WHERE state = 1;
"""
# Measured fastest: one INSERT of many rows, but a SELECT and one UPDATE for each row.
INSERT = "INSERT INTO job(id, queue, rank, due_at, created_at, task, content_type, payload) VALUES "
ROW = "(?, 1, 0, ?, ?, ?, 'application/json', ?)"
TAKE = """
SELECT seq, ?1 + seq, id, task, content_type, attempt + 1, payload FROM job INDEXED BY job_ready
WHERE queue = 1 AND state = 0 AND due_at <= ?2 ORDER BY rank, due_at, seq LIMIT ?3
"""
LEASE = """
UPDATE job SET state = 1, attempt = attempt + 1, token = ?2, leased_at = ?3, deadline_at = ?4,
worker = 'worker' WHERE seq = ?1
"""
SETTLE = """
UPDATE job SET state = 2, finished_at = ?3, deadline_at = NULL, token = NULL
WHERE seq = ?1 AND token = ?2
"""


class RawSqlite:
    """Raw SQL on SQLite; see `Subject`."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        self._connection = apsw.Connection(str(path), vfs=vfs)
        # Read to the end: otherwise only the first setting, which returns a row, is applied.
        self._connection.execute(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -65536;"
            "PRAGMA wal_autocheckpoint = 4000"
        ).fetchall()
        self._connection.execute(SCHEMA)
        self._tokens = 0

    def make(self, count: int) -> list[Any]:
        return [(f"job-{next_number():012d}", TASK, PAYLOAD) for _ in range(count)]

    async def enqueue(self, jobs: Sequence[Any]) -> None:
        now = _now()
        values = chain.from_iterable((job[0], now, now, job[1], job[2]) for job in jobs)
        with self._transaction():
            self._connection.execute(_insert(len(jobs)), tuple(values))

    async def lease(self, limit: int) -> Sequence[Any]:
        now = _now()
        with self._transaction():
            rows = self._connection.execute(TAKE, (self._tokens, now, limit)).fetchall()
            changes = [(row[0], row[1], now, now + 30_000) for row in rows]
            self._connection.executemany(LEASE, changes)
        self._tokens += 1_000_000_000
        return rows

    async def settle(self, leases: Sequence[Any]) -> None:
        now = _now()
        before = self._connection.total_changes()
        with self._transaction():
            self._connection.executemany(SETTLE, [(row[0], row[1], now) for row in leases])
        assert self._connection.total_changes() - before == len(leases), "a settle was lost"

    async def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("COMMIT")


@cache
def _insert(rows: int) -> str:
    return INSERT + ",".join([ROW] * rows)


def _now() -> int:
    return time.time_ns() // 1_000_000
