"""Looking: one job whole, pages of jobs newest first, and counts by value."""

from __future__ import annotations

from holdfast.core.model import Job, JobFilter, Page, Tally, TallyBy
from holdfast.engines.postgres.filters import (
    CONDITION,
    QUEUE_NAME,
    SCAN_MAX,
    SOURCES,
    source_of,
    values_of,
)
from holdfast.engines.postgres.rows import BRIEF, WHOLE, brief_job, whole_job
from holdfast.engines.postgres.steps import Ask, Steps, Store

_GET = f"""
SELECT {WHOLE} FROM $schema.jobs j
JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.id = $2::text AND j.ns + 0 = $1::int
"""


def _find(source: str) -> str:
    return f"""
    SELECT {BRIEF} FROM (
        SELECT * FROM $schema.jobs j
        WHERE j.ns = $1::int AND j.seq < $20::bigint AND {source}
        ORDER BY j.seq DESC LIMIT {SCAN_MAX}
    ) j {QUEUE_NAME}
    WHERE {CONDITION}
    ORDER BY j.seq DESC LIMIT $21::bigint
    """  # sql: the sources are the constants of `filters`


def _end_of_scan(source: str) -> str:
    return f"""
    SELECT j.seq FROM $schema.jobs j
    WHERE j.ns = $1::int AND j.seq < $2::bigint AND {source}
    ORDER BY j.seq DESC OFFSET {SCAN_MAX} - 1 LIMIT 1
    """  # sql: as above


_COLUMNS: dict[TallyBy, str] = {
    "queue": "q.name",
    "state": "(ARRAY['waiting', 'leased', 'done', 'dead', 'cancelled'])[j.state + 1]",
    "task": "j.task",
    "tenant": "j.tenant",
    "reason": "j.reason",
    "worker": "j.worker",
    "group": "j.grp",
    "fingerprint": "j.fingerprint",
}


def _tally(source: str, column: str) -> str:
    return f"""
    SELECT v.value, count(*) FROM (
        SELECT {column} AS value FROM (
            SELECT * FROM $schema.jobs j WHERE j.ns = $1::int AND {source}
            ORDER BY j.seq DESC LIMIT {SCAN_MAX}
        ) j {QUEUE_NAME}
        WHERE {CONDITION}
    ) v
    GROUP BY v.value ORDER BY count(*) DESC, coalesce(v.value, '') COLLATE "C" LIMIT $20::bigint
    """  # sql: sources and columns are constants


_FIND = {source: _find(source) for source in SOURCES}
_END_OF_SCAN = {source: _end_of_scan(source) for source in SOURCES}
_TALLY = {
    (source, by): _tally(source, column) for source in SOURCES for by, column in _COLUMNS.items()
}
_NEWEST = 2**63 - 1


def get(store: Store, id: str) -> Steps[Job | None]:
    rows = yield Ask(_GET, (store.ns, id), alone=True)
    return whole_job(rows[0]) if rows else None


def find(store: Store, wanted: JobFilter, *, limit: int, after: int | None) -> Steps[Page]:
    source = source_of(wanted, wanted.states)
    start = _NEWEST if after is None else after
    values = (store.ns, store.given_ms, *values_of(wanted, wanted.states), start, limit + 1)
    rows = yield Ask(_FIND[source], values, alone=True)
    jobs = tuple(brief_job(row) for row in rows[:limit])
    if len(rows) > limit:
        return Page(jobs=jobs, after=jobs[-1].seq)
    if wanted.ids is not None:
        return Page(jobs=jobs)
    ends = yield Ask(_END_OF_SCAN[source], (store.ns, start), alone=True)
    return Page(jobs=jobs, after=ends[0][0] if ends else None)


def tally(store: Store, wanted: JobFilter, by: TallyBy, *, limit: int) -> Steps[list[Tally]]:
    source = source_of(wanted, wanted.states)
    values = (store.ns, store.given_ms, *values_of(wanted, wanted.states), limit)
    rows = yield Ask(_TALLY[source, by], values, alone=True)
    return [Tally(value=row[0], count=row[1]) for row in rows]
