"""What is read: one job, lists, counts, and what the reaper and the pruner must look at."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

from holdfast.core import limits, policy
from holdfast.core.model import (
    STATES,
    Job,
    JobFilter,
    Lease,
    Page,
    State,
    Tally,
    TallyBy,
)
from holdfast.engines.base import Expired, Overdue
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.search import newest_span, search_for
from holdfast.engines.sqlite.unit import Unit

_OVERDUE = (
    f"SELECT {rows.COLUMNS} FROM hf_jobs INDEXED BY hf_leased"
    " WHERE ns = ? AND state = 1 AND deadline <= ? ORDER BY deadline, seq LIMIT ?"
)
_EXPIRED = (
    f"SELECT {rows.COLUMNS} FROM hf_jobs INDEXED BY hf_expiring"
    " WHERE ns = ? AND state = 0 AND expires_at <= ? ORDER BY expires_at, seq LIMIT ?"
)
_TALLY_COLUMNS: dict[TallyBy, str] = {
    "queue": "queue",
    "state": "state",
    "task": "task",
    "tenant": "tenant",
    "reason": "reason",
    "worker": "worker",
    "group": "grp",
    "fingerprint": "fingerprint",
}


def get(unit: Unit, id: str) -> Job | None:
    row = rows.fetch(unit, id)
    job = None if row is None else rows.job_of(unit, row)
    return None if row is None or job is None else rows.whole(unit, row, job)


def find(unit: Unit, wanted: JobFilter, limit: int, after: int | None) -> Page:
    search = search_for(unit, wanted)
    if search is None:
        return Page(jobs=())
    span = newest_span(unit, search, after)
    found = unit.run(
        f"SELECT {rows.COLUMNS} {search.source} ORDER BY seq DESC LIMIT ?",  # sql: constant pieces
        (*search.values, span.low, span.high, limit + 1),
    ).fetchall()
    jobs = tuple(job for row in found[:limit] if (job := rows.job_of(unit, row)) is not None)
    if len(found) > limit:
        return Page(jobs=jobs, after=found[limit - 1][rows.SEQ] if limit else after)
    return Page(jobs=jobs, after=span.low if span.more else None)


def tally(unit: Unit, wanted: JobFilter, by: TallyBy, limit: int) -> list[Tally]:
    search = search_for(unit, wanted)
    if search is None:
        return []
    span = newest_span(unit, search, None)
    column = _TALLY_COLUMNS[by]
    found = unit.run(
        f"SELECT {column}, count(*) {search.source} GROUP BY 1",  # sql: constant pieces
        (*search.values, span.low, span.high),
    ).fetchall()
    counts: Counter[str | None] = Counter()
    for value, count in found:
        if by == "queue" and value not in unit.catalog.names:
            continue
        counts[_tally_value(unit, by, value)] += count
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0] or ""))
    return [Tally(value=value, count=count) for value, count in ranked[:limit]]


def _tally_value(unit: Unit, by: TallyBy, value: Any) -> Any:
    if by == "queue":
        return unit.catalog.names[value]
    return str(STATES[value]) if by == "state" else value


def overdue(unit: Unit, limit: int) -> Overdue:
    found = unit.run(_OVERDUE, (unit.namespace_id, unit.boot, limit)).fetchall()
    leases = []
    for row in found:
        job = rows.job_of(unit, row, payload=b"")
        if job is not None:
            leases.append(Lease(job=job, token=job.token or 0, lease_ms=0))
    if len(found) >= limit:
        return Overdue(leases=tuple(leases), next_ms=0)
    next_at = unit.run(
        "SELECT deadline FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state = 1 AND deadline > ? ORDER BY deadline LIMIT 1",
        (unit.namespace_id, unit.boot),
    ).get
    return Overdue(leases=tuple(leases), next_ms=None if next_at is None else next_at - unit.boot)


def expired(unit: Unit, limit: int) -> Expired:
    found = unit.run(_EXPIRED, (unit.namespace_id, unit.now, limit)).fetchall()
    jobs = tuple(job for row in found if (job := rows.job_of(unit, row, payload=b"")) is not None)
    if len(found) >= limit:
        return Expired(jobs=jobs, next_ms=0)
    next_at = unit.run(
        "SELECT expires_at FROM hf_jobs INDEXED BY hf_expiring"
        " WHERE ns = ? AND state = 0 AND expires_at > ? ORDER BY expires_at LIMIT 1",
        (unit.namespace_id, unit.now),
    ).get
    return Expired(jobs=jobs, next_ms=None if next_at is None else next_at - unit.now)


def finished(unit: Unit, limit: int) -> list[Job]:
    past: list[tuple[int, int]] = []
    for line in unit.catalog.lines.values():
        for state in (State.DONE, State.DEAD, State.CANCELLED):
            until = unit.now - policy.retention_ms(line.queue, state)
            past += unit.run(
                "SELECT finished_at, seq FROM hf_jobs INDEXED BY hf_ended"
                " WHERE queue = ? AND state = ? AND state >= 2 AND finished_at <= ?"
                " ORDER BY finished_at, seq LIMIT ?",
                (line.id, rows.CODES[state], until, limit),
            ).fetchall()
    jobs = []
    for _, seq in heapq.nsmallest(limit, past):
        row = unit.run(rows.BY_SEQ, (seq,)).fetchone()
        job = rows.job_of(unit, row)
        if job is not None:
            jobs.append(rows.whole(unit, row, job))
    return jobs


def free_keys(unit: Unit) -> list[tuple[int, str]]:
    """Once-only keys past their window whose jobs are finished or gone: (queue id, key)."""
    found: list[tuple[int, str]] = unit.run(
        "SELECT k.queue, k.key FROM ("
        " SELECT queue, key, ns, id FROM hf_keys INDEXED BY hf_keys_until"
        " WHERE ns = ? AND until <= ? ORDER BY until LIMIT ?) k"
        " LEFT JOIN hf_jobs j ON j.id = k.id AND j.ns = k.ns"
        " WHERE ifnull(j.state, 2) >= 2 LIMIT ?",
        (unit.namespace_id, unit.now, limits.SCAN_MAX, limits.BATCH_MAX),
    ).fetchall()
    return found


def drop_keys(unit: Unit, keys: list[tuple[int, str]]) -> None:
    """Only those that are still free: a key may have been taken again since it was read."""
    unit.connection.executemany(
        "DELETE FROM hf_keys WHERE queue = ? AND key = ? AND until <= ? AND NOT EXISTS"
        " (SELECT 1 FROM hf_jobs j WHERE j.id = hf_keys.id AND j.ns = hf_keys.ns AND j.state < 2)",
        [(queue_id, key, unit.now) for queue_id, key in keys],
    )
