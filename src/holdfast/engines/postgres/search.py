"""Reads jobs: one complete job, pages newest first, and counts by value.

A `JobFilter` is one constant SQL condition whose parts are off while their value is NULL. Every
scan is bounded before the condition is applied: a filter that matches nothing reads
`bounds.SCAN_MAX` rows and no more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.core import bounds
from holdfast.core.model import STORED_STATES, Job, JobFilter, Page, State, Tally, TallyBy
from holdfast.engines.postgres.rows import (
    BARE_COLUMNS,
    BRIEF_COLUMNS,
    WHOLE_COLUMNS,
    brief_job,
    whole_job,
)
from holdfast.engines.postgres.script import CallContext, Script, Statement

SCAN_MAX = str(bounds.SCAN_MAX)
Direction: TypeAlias = Literal["ASC", "DESC"]

# $1 namespace, $2 instant, $3 … $21 the filter, as `filter_values` gives them.
CONDITION = """
    q.name IS NOT NULL
    AND ($3::text[] IS NULL OR j.id = ANY ($3::text[]))
    AND ($4::text IS NULL OR q.name = $4::text)
    AND ($5::smallint[] IS NULL OR j.state = ANY ($5::smallint[]))
    AND ($6::text IS NULL OR j.task = $6::text)
    AND ($7::text IS NULL OR j.tenant = $7::text)
    AND ($8::text IS NULL OR j.grp = $8::text)
    AND ($9::text IS NULL OR j.key = $9::text)
    AND ($10::text IS NULL OR j.worker = $10::text)
    AND ($11::text IS NULL OR j.reason = $11::text)
    AND ($12::text IS NULL
         OR convert_from(j.extra, 'UTF8')::jsonb -> 'labels' @> ($12::text)::jsonb)
    AND ($13::text IS NULL OR position($13::text IN j.id) > 0 OR position($13::text IN j.task) > 0
         OR position($13::text IN coalesce(j.key, '')) > 0
         OR position($13::text IN coalesce(j.tenant, '')) > 0)
    AND ($14::bigint IS NULL OR j.created_at >= $14::bigint)
    AND ($15::bigint IS NULL OR j.created_at < $15::bigint)
    AND ($16::bigint IS NULL OR j.finished_at <= $schema.now_ms($2::bigint) - $16::bigint)
    AND ($17::boolean IS NULL
         OR (j.state = 0 AND coalesce(j.expires_at <= $schema.now_ms($2::bigint), false))
            = $17::boolean)
    AND ($18::bigint IS NULL OR j.version = $18::bigint)
    AND ($19::text IS NULL OR j.fingerprint = $19::text)
    AND ($20::text[] IS NULL OR j.state <> 0
         OR ('failed' = ANY ($20::text[]) AND j.attempt > 0)
         OR ('pending' = ANY ($20::text[]) AND j.attempt = 0)
         OR ('scheduled' = ANY ($20::text[]) AND j.attempt = 0
             AND j.due_at > $schema.now_ms($2::bigint)))
    AND ($21::text IS NULL OR EXISTS (
        SELECT FROM $schema.children x
        WHERE x.parent = $21::text AND x.ns = $1::int AND x.child = j.seq))
"""

QUEUE_NAME = """
    CROSS JOIN LATERAL (SELECT x.name FROM $schema.queues x WHERE x.number = j.queue OFFSET 0) q
"""
"""The job's queue as `q`, looked up row by row: a join of another kind would lose the order."""


class Source(NamedTuple):
    """A view of jobs, and a condition that narrows a scan of it; or tables with only the numbers of
    jobs, each with such a condition."""

    view: str = ""
    condition: str = "true"
    numbers: tuple[NumberTable, ...] = ()


class NumberTable(NamedTuple):
    """A table with an index of the numbers of jobs."""

    table: str
    condition: str = "true"
    column: str = "seq"


_ALL = Source("all_jobs")
_BY_ID = Source("all_jobs", "x.id = ANY ($3::text[])")
_UNDONE = Source("undone_with_bodies")
_WAITING = Source("undone_with_bodies", "x.state = 0")
_LEASED = Source("undone_with_bodies", "x.state IN (1, 5)")
_UNFINISHED = Source("undone_with_bodies", "(x.state < 2 OR x.state = 5)")
_FAILED = Source("undone_with_bodies", "x.state >= 3")
_DONE = Source(numbers=(NumberTable("done"), NumberTable("bodies", "x.state = 2")))
BY_PARENT = Source(numbers=(NumberTable("children", "x.parent = $21::text", "child"),))
_BY_STATE = {
    frozenset({State.WAITING}): _WAITING,
    frozenset({State.LEASED}): _LEASED,
    frozenset({State.DONE}): _DONE,
    frozenset({State.DEAD}): _FAILED,
    frozenset({State.CANCELLED}): _FAILED,
    frozenset({State.DEAD, State.CANCELLED}): _FAILED,
    frozenset({State.WAITING, State.LEASED}): _UNFINISHED,
}
SOURCES = (_ALL, _BY_ID, BY_PARENT, _UNDONE, *dict.fromkeys(_BY_STATE.values()))


def scan(source: Source, condition: str, direction: Direction) -> str:
    """The jobs of a source that also meet a condition on their `seq`, at most `SCAN_MAX`, in the
    order of `number`."""
    if not source.numbers:
        return f"""
        SELECT x.*, x.seq AS number FROM $schema.{source.view} x
        WHERE x.ns = $1::int AND {condition.format(seq="x.seq")} AND {source.condition}
        ORDER BY x.seq {direction} LIMIT {SCAN_MAX}
        """  # sql: constant pieces
    return f"""
    SELECT j.*, c.number FROM ({_numbers(source, condition, direction)}) c
    CROSS JOIN LATERAL (
        SELECT * FROM $schema.all_jobs x WHERE x.ns = $1::int AND x.seq = c.number OFFSET 0
    ) j
    """  # sql: constant pieces


def _numbers(source: Source, condition: str, direction: Direction) -> str:
    """The first numbers in the tables of a source. Each table is bounded and in order by itself, so
    that none is read as a whole."""
    parts = [
        f"""
        (SELECT x.{each.column} AS number FROM $schema.{each.table} x
         WHERE x.ns = $1::int AND {condition.format(seq=f"x.{each.column}")} AND {each.condition}
         ORDER BY x.{each.column} {direction} LIMIT {SCAN_MAX})
        """  # sql: constant pieces
        for each in source.numbers
    ]
    return f"""
    SELECT n.number FROM ({" UNION ALL ".join(parts)}) n
    ORDER BY n.number {direction} LIMIT {SCAN_MAX}
    """  # sql: constant pieces


def source_of(wanted: JobFilter, states: Collection[State] | None) -> Source:
    """The source that narrows the scan of a filter most."""
    if wanted.ids is not None:
        return _BY_ID
    if wanted.parent is not None:
        return BY_PARENT
    if states is None:
        return _ALL
    return _BY_STATE.get(frozenset(states), _ALL if State.DONE in states else _UNDONE)


def filter_values(wanted: JobFilter, states: Collection[State] | None) -> tuple[Any, ...]:
    """The values of CONDITION from $3 on."""
    return (
        None if wanted.ids is None else [id_ for id_ in wanted.ids if bounds.JOB_ID.match(id_)],
        wanted.queue,
        None if states is None else [
            code for code, state in enumerate(STORED_STATES) if state in states
        ],
        wanted.task, wanted.tenant, wanted.group, wanted.key, wanted.worker,
        None if wanted.reason is None else str(wanted.reason),
        msgspec.json.encode(wanted.labels).decode() if wanted.labels else None,
        wanted.search or None, wanted.created_from, wanted.created_before,
        wanted.finished_before_ms, wanted.expired, wanted.version, wanted.fingerprint,
        None if wanted.waiting is None else [str(kind) for kind in wanted.waiting],
        wanted.parent,
    )  # fmt: skip


_GET = f"""
SELECT {WHOLE_COLUMNS} FROM $schema.all_jobs j
JOIN $schema.queues q ON q.number = j.queue AND q.name IS NOT NULL
LEFT JOIN $schema.notes n ON n.job = j.seq
WHERE j.id = $2::text AND j.ns + 0 = $1::int
"""


def _find(source: Source, columns: str) -> str:
    return f"""
    SELECT {columns} FROM ({scan(source, "{seq} < $22::bigint", "DESC")}) j {QUEUE_NAME}
    WHERE {CONDITION}
    ORDER BY j.number DESC LIMIT $23::bigint
    """  # sql: the sources are the constants above, and the columns those of `rows`


def _end_of_scan(source: Source) -> str:
    numbers = source.numbers or (NumberTable(_TABLES[source.view], source.condition),)
    condition = "{seq} < $2::bigint"
    # The parent is the third value here.
    found = _numbers(Source(numbers=numbers), condition, "DESC").replace("$21", "$3")
    return f"SELECT c.number FROM ({found}) c OFFSET {SCAN_MAX} - 1 LIMIT 1"  # sql: as above


_TABLES = {"all_jobs": "bodies", "undone_with_bodies": "jobs"}
"""The tables that have the numbers of a view's jobs."""

_COLUMNS: dict[TallyBy, str] = {
    "queue": "q.name",
    "state": "(ARRAY['waiting', 'leased', 'done', 'dead', 'cancelled', 'leased'])[j.state + 1]",
    "task": "j.task",
    "tenant": "j.tenant",
    "reason": "j.reason",
    "worker": "j.worker",
    "group": "j.grp",
    "fingerprint": "j.fingerprint",
}


def _tally(source: Source, column: str) -> str:
    return f"""
    SELECT v.value, count(*) FROM (
        SELECT {column} AS value FROM (
            {scan(source, "true", "DESC")}
        ) j {QUEUE_NAME}
        WHERE {CONDITION}
    ) v
    GROUP BY v.value ORDER BY count(*) DESC, coalesce(v.value, '') COLLATE "C" LIMIT $22::bigint
    """  # sql: sources and columns are constants


_FIND = {source: _find(source, BRIEF_COLUMNS) for source in SOURCES}
_FIND_ROWS = {source: _find(source, BARE_COLUMNS) for source in SOURCES}
_END_OF_SCAN = {source: _end_of_scan(source) for source in SOURCES if source != _BY_ID}
_TALLY = {
    (source, by): _tally(source, column) for source in SOURCES for by, column in _COLUMNS.items()
}
_NEWEST = 2**63 - 1


_REVISION = "SELECT pg_current_snapshot()::text"
"""The transactions whose writes are visible: what is read under the same ones is the same."""


def revision(_context: CallContext) -> Script[str]:
    """A text that stays the same while no transaction that writes begins or ends."""
    rows = yield Statement(_REVISION, (), alone=True)
    return str(rows[0][0])


def get(context: CallContext, id: str) -> Script[Job | None]:
    """One complete job."""
    rows = yield Statement(_GET, (context.ns, id), alone=True)
    return whole_job(rows[0]) if rows else None


def find(
    context: CallContext,
    wanted: JobFilter,
    *,
    limit: int,
    after: int | None,
    payloads: bool = True,
) -> Script[Page]:
    """A page of jobs that match the filter, newest first."""
    source = source_of(wanted, wanted.states)
    start = _NEWEST if after is None else after
    values = (context.ns, context.given_ms, *filter_values(wanted, wanted.states), start, limit + 1)
    statements = _FIND if payloads else _FIND_ROWS
    rows = yield Statement(statements[source], values, alone=True)
    jobs = tuple(brief_job(row) for row in rows[:limit])
    if len(rows) > limit:
        return Page(jobs=jobs, after=jobs[-1].seq)
    if wanted.ids is not None:
        return Page(jobs=jobs)
    end_values = (context.ns, start, *([wanted.parent] if source == BY_PARENT else []))
    ends = yield Statement(_END_OF_SCAN[source], end_values, alone=True)
    return Page(jobs=jobs, after=ends[0][0] if ends else None)


def tally(
    context: CallContext, wanted: JobFilter, by: TallyBy, *, limit: int
) -> Script[list[Tally]]:
    """Counts of matching jobs by value, the most frequent first."""
    source = source_of(wanted, wanted.states)
    values = (context.ns, context.given_ms, *filter_values(wanted, wanted.states), limit)
    rows = yield Statement(_TALLY[source, by], values, alone=True)
    return [Tally(value=row[0], count=row[1]) for row in rows]
