"""Measures the cost of calls in SQLite's VM steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from holdfast.engines.sqlite import SQLiteEngine

BATCH = 100
"""Jobs in the calls that are measured."""

# One statement fills a queue with `count` jobs of one kind, as fast as SQLite can.
FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO hf_jobs(seq, ns, queue, state, rank, due_at, place, created_at, finished_at,
  id, task, payload)
SELECT :first + i, 1, :queue, :state, :rank, :due_at, :first + i, 1, :finished_at,
  printf('job-%d-%09d', :first, i), 'work', x'7b7d' FROM n
"""


class Meter:
    """Sums the VM steps of all statements, and records statements that scan a table."""

    def __init__(self) -> None:
        self.steps = 0
        self.scans: list[str] = []

    def __call__(self, trace: dict[str, Any]) -> None:
        self.steps += trace["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        scanned = trace["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]
        # A batch of numbers passed as JSON is scanned once.
        if scanned > 2 * BATCH:
            self.scans.append(trace["sql"])


@contextmanager
def metered(engine: SQLiteEngine) -> Iterator[Meter]:
    """Meter the statements of the writer's connection."""
    meter = Meter()
    connection = engine._database._writer.connection
    assert connection is not None
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, meter)
    yield meter
    connection.trace_v2(0, None)
