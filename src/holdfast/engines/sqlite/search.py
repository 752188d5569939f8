"""Reads of jobs: get, find and tally; and JobFilter → SQL.

Filters become constant SQL fragments with bound values. One call reads no more than
`bounds.SCAN_MAX` rows, in the order of arrival. Dead and cancelled jobs, which are few among many
done ones, leased jobs and the children of a job have indexes of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.core import bounds
from holdfast.core.model import (
    STORED_STATES,
    Job,
    JobFilter,
    Page,
    State,
    Tally,
    TallyBy,
    WaitingKind,
)
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.transaction import Transaction

_EXACT = {
    "task": "task = ?",
    "tenant": "tenant = ?",
    "group": "grp = ?",
    "key": "key = ?",
    "worker": "worker = ?",
    "fingerprint": "fingerprint = ?",
    "version": "version = ?",
    "created_from": "created_at >= ?",
    "created_before": "created_at < ?",
}
_CONTAINS = (
    "(instr(id, ?) OR instr(task, ?) OR instr(ifnull(key, ''), ?) OR instr(ifnull(tenant, ''), ?))"
)
_LABELLED = (
    "EXISTS (SELECT 1 FROM json_each(CAST(extra AS TEXT), '$.labels') AS label"
    " WHERE label.key = ? AND label.value = ?)"
)
_CHILD = (
    "EXISTS (SELECT 1 FROM hf_children WHERE parent = ? AND namespace = hf_jobs.ns AND child = seq)"
)
_EXPIRED = "(state = 0 AND ifnull(expires_at <= ?, 0))"
_NOT_EXPIRED = "NOT (state = 0 AND ifnull(expires_at <= ?, 0))"
_WAITING_KINDS = {
    WaitingKind.PENDING: "attempt = 0",
    WaitingKind.SCHEDULED: "(attempt = 0 AND due_at > ?)",
    WaitingKind.FAILED: "attempt > 0",
}
_INDEXED = {
    None: "NOT INDEXED",
    "hf_id": "INDEXED BY hf_id",
    "hf_buried": "INDEXED BY hf_buried",
    "hf_leased": "INDEXED BY hf_leased",
}
_SEQ_MAX = 2**63 - 1
_NEAR = 4
"""A page is first looked for among this many times as many rows."""
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


def get(transaction: Transaction, id: str) -> Job | None:
    """The job with everything that is stored about it."""
    row = rows.fetch(transaction, id)
    job = None if row is None else rows.to_job(transaction, row)
    return None if row is None or job is None else rows.with_details(transaction, row, job)


def find(
    transaction: Transaction,
    wanted: JobFilter,
    limit: int,
    after: int | None,
    *,
    payloads: bool = True,
) -> Page:
    """One page of matching jobs, newest first."""
    query = query_for(transaction, wanted)
    if query is None:
        return Page(jobs=())
    columns = rows.COLUMNS if payloads else rows.ROW_COLUMNS
    # Where the end of the range is counted, a page is often full long before it.
    near = min(_NEAR * (limit + 1), bounds.SCAN_MAX)
    is_counted = query.indexed_by in ("hf_buried", "hf_children")
    for scan_max in (near, bounds.SCAN_MAX) if is_counted else (bounds.SCAN_MAX,):
        span = newest_range(transaction, query, after, scan_max)
        found = transaction.run(
            f"SELECT {columns} {query.source} {query.order} DESC LIMIT ?",  # sql: constant pieces
            (*query.values, span.low, span.high, limit + 1),
        ).fetchall()
        if len(found) > limit or not span.more:
            break
    jobs = tuple(job for row in found[:limit] if (job := rows.to_job(transaction, row)) is not None)
    if len(found) > limit:
        return Page(jobs=jobs, after=found[limit - 1][rows.SEQ] if limit else after)
    return Page(jobs=jobs, after=span.low if span.more else None)


def tally(transaction: Transaction, wanted: JobFilter, by: TallyBy, limit: int) -> list[Tally]:
    """Counts of matching jobs by one field, largest first."""
    query = query_for(transaction, wanted)
    if query is None:
        return []
    span = newest_range(transaction, query, None, bounds.SCAN_MAX)
    column = _TALLY_COLUMNS[by]
    found = transaction.run(
        f"SELECT {column}, count(*) {query.source} GROUP BY 1",  # sql: constant pieces
        (*query.values, span.low, span.high),
    ).fetchall()
    counts: Counter[str | None] = Counter()
    for value, count in found:
        if by == "queue" and value not in transaction.queue_names:
            continue
        counts[_tally_value(transaction, by, value)] += count
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0] or ""))
    return [Tally(value=value, count=count) for value, count in ranked[:limit]]


def _tally_value(transaction: Transaction, by: TallyBy, value: Any) -> Any:
    if by == "queue":
        return transaction.queue_names[value]
    return str(STORED_STATES[value]) if by == "state" else value


class JobQuery(NamedTuple):
    """Conditions joined by AND, their values, and the index to use; None scans the table. With
    `hf_children` the first values are the parent and its namespace."""

    conditions: str
    values: tuple[object, ...]
    indexed_by: str | None

    @property
    def source(self) -> str:
        """FROM and WHERE; the bounds of the range are bound last."""
        if self.indexed_by == "hf_children":
            return (
                "FROM hf_children CROSS JOIN hf_jobs ON seq = child"
                f" WHERE {self.conditions} AND child BETWEEN ? AND ?"
            )
        indexed = _INDEXED[self.indexed_by]
        return f"FROM hf_jobs {indexed} WHERE {self.conditions} AND seq BETWEEN ? AND ?"

    @property
    def order(self) -> str:
        """ORDER BY the arrival of the jobs."""
        return f"ORDER BY {'child' if self.indexed_by == 'hf_children' else 'seq'}"


class SeqRange(NamedTuple):
    """The seqs to read, both ends included, and whether there are more beyond."""

    low: int
    high: int
    more: bool


def query_for(transaction: Transaction, wanted: JobFilter) -> JobQuery | None:
    """The query for a filter; None if nothing can match."""
    if wanted.states == ():
        return None
    conditions = ["ns = ?"]
    values: list[object] = [transaction.namespace_id]

    def require(condition: str, *bound: object) -> None:
        conditions.append(condition)
        values.extend(bound)

    for name, condition in _EXACT.items():
        value = getattr(wanted, name)
        if value is not None:
            require(condition, value)
    if wanted.queue is not None:
        queue_row = transaction.queues.get(wanted.queue)
        if queue_row is None:
            return None
        require("queue = ?", queue_row.id)
    if wanted.reason is not None:
        require("reason = ?", wanted.reason.value)
    if wanted.search:
        require(_CONTAINS, *[wanted.search] * 4)
    for name, value in (wanted.labels or {}).items():
        require(_LABELLED, name, value)
    _require_times(wanted, transaction.now, require)
    index = _require_states(wanted, require)
    if wanted.ids is not None:
        index = "hf_id"
        require("id IN (SELECT value FROM json_each(?))", msgspec.json.encode(wanted.ids).decode())
        if wanted.parent is not None:
            require(_CHILD, wanted.parent)
    elif wanted.parent is not None:
        index = "hf_children"
        conditions = ["parent = ? AND namespace = ?", *conditions]
        values = [wanted.parent, transaction.namespace_id, *values]
    return JobQuery(" AND ".join(conditions), tuple(values), index)


def newest_range(
    transaction: Transaction, query: JobQuery, before: int | None, scan_max: int
) -> SeqRange:
    """The newest `scan_max` rows before `before`, or fewer."""
    high = _SEQ_MAX if before is None else before - 1
    if query.indexed_by in ("hf_id", "hf_leased"):
        return SeqRange(0, high, more=False)
    if query.indexed_by == "hf_buried":
        low = transaction.run(
            "SELECT seq FROM hf_jobs INDEXED BY hf_buried"
            " WHERE ns = ? AND state >= 3 AND seq <= ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
            (transaction.namespace_id, high, scan_max),
        ).get
        return SeqRange(0 if low is None else low + 1, high, more=low is not None)
    if query.indexed_by == "hf_children":
        low = transaction.run(
            "SELECT child FROM hf_children WHERE parent = ? AND namespace = ? AND child <= ?"
            " ORDER BY child DESC LIMIT 1 OFFSET ?",
            (*query.values[:2], high, scan_max),
        ).get
        return SeqRange(0 if low is None else low + 1, high, more=low is not None)
    # Seqs have gaps, so this reads at most `scan_max` rows.
    high = transaction.run("SELECT max(seq) FROM hf_jobs WHERE seq <= ?", (high,)).get or 0
    low = max(high - scan_max + 1, 0)
    lowest = transaction.run("SELECT min(seq) FROM hf_jobs").get
    return SeqRange(low, high, more=lowest is not None and lowest < low)


def oldest_range(transaction: Transaction, query: JobQuery, after: int) -> SeqRange:
    """The oldest SCAN_MAX rows after `after`, or fewer; an index is read to its end."""
    if query.indexed_by is not None:
        return SeqRange(after + 1, _SEQ_MAX, more=False)
    low = transaction.run("SELECT min(seq) FROM hf_jobs WHERE seq > ?", (after,)).get
    if low is None:
        return SeqRange(after + 1, after, more=False)
    high = low + bounds.SCAN_MAX - 1
    highest = transaction.run("SELECT max(seq) FROM hf_jobs").get
    return SeqRange(low, high, more=highest > high)


def _require_times(wanted: JobFilter, now: int, require: Callable[..., None]) -> None:
    """Add the conditions that depend on the clock."""
    if wanted.finished_before_ms is not None:
        require("finished_at <= ?", now - wanted.finished_before_ms)
    if wanted.expired is not None:
        require(_EXPIRED if wanted.expired else _NOT_EXPIRED, now)
    if wanted.waiting is not None:
        kinds = set(wanted.waiting)
        choice = ["state <> 0", *(_WAITING_KINDS[kind] for kind in sorted(kinds))]
        require(f"({' OR '.join(choice)})", *[now] * (WaitingKind.SCHEDULED in kinds))


def _require_states(wanted: JobFilter, require: Callable[..., None]) -> str | None:
    """Add the states; returns the index that fits them, whose own condition must be repeated."""
    if wanted.states is None:
        return None
    states = {State(state) for state in wanted.states}
    codes = {code for code, state in enumerate(STORED_STATES) if state in states}
    require("state IN (SELECT value FROM json_each(?))", str(sorted(codes)))
    if states <= {State.DEAD, State.CANCELLED}:
        require("state >= 3")
        return "hf_buried"
    if states == {State.LEASED}:
        require("state IN (1, 5)")
        return "hf_leased"
    return None
