"""Leasing and renewing: one statement each, whose rows become leases in the order asked for."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.core import checks, limits
from holdfast.core.model import Lease, LeaseRequest, Renewal
from holdfast.engines.postgres.rows import TAKEN, held_job, taken_lease
from holdfast.engines.postgres.steps import STATEMENT_BYTES_MAX, Ask, Row, Steps, Store

_LEASE = f"""
SELECT {TAKEN}
FROM $schema.lease($1::int, $2::bigint, $3::text[], $4::int, $5::text, $6::bigint, $7::text[]) h
"""
_LEASE_IDS = _LEASE.replace("$schema.lease", "$schema.lease_ids")
_LEASE_FLOW = _LEASE.replace("$schema.lease", "$schema.lease_flow")
_LEASE_IDS_FLOW = _LEASE.replace("$schema.lease", "$schema.lease_ids_flow")
_LINGER = """
SELECT now_, next_ms, fresh
FROM $schema.linger($1::int, $2::bigint, $3::text[], $4::text[], $5::boolean, $6::bigint)
"""
_RENEW = """
SELECT * FROM $schema.renew($1::int, $2::bigint, $3::text[], $4::bigint[], $5::bigint[],
                            $6::float8[], $7::bytea[], $8::bytea[])
"""
_HAS_LANES = -1
_TOKEN = 17
"""Where a row of the type `held` has it."""

_SEQ = 1
_queue_of, _place_in_line = itemgetter(3), itemgetter(6, 10, 2)
"""Of a row of TAKEN: its queue; its rank, due time and place."""


def can_exist(lease: Lease) -> bool:
    """Could it be in the database at all? What could not must not be sent there either."""
    return bool(limits.JOB_ID.match(lease.id)) and 0 <= lease.token < 2**63


def lease(store: Store, request: LeaseRequest) -> Steps[list[Lease] | int]:
    """The number of a queue: it has to be sorted first."""
    tasks = None
    if request.tasks is not None:
        tasks = [task for task in sorted(request.tasks) if limits.TASK_NAME.match(task)]
    names = _names(request)
    has_flow = not request.ids and not store.duties.laned.isdisjoint(names)
    while True:
        values = (
            store.ns, store.given_ms, names, request.limit,
            request.worker or None, request.lease_ms, tasks,
        )  # fmt: skip
        rows = yield Ask(_statement(request, has_flow=has_flow), values, alone=True)
        taken = [row for row in rows if row[0] is not None]
        if taken or not rows:
            worker = request.worker or None
            # Under a flow they come in the order in which they were taken.
            ordered = taken if has_flow else _in_order(request, taken)
            return [taken_lease(row, worker) for row in ordered]
        # A row without an id: expired jobs were put aside and more may stand in front; or there
        # are lanes, into which the jobs of a queue may have to be sorted first.
        sign: int | None = rows[0][_SEQ]
        if sign == _HAS_LANES:
            has_flow = True
            store.duties.laned.update(filter(None, (_queue_of(rows[0]) or "").split(",")))
        elif sign is not None:
            return sign


def _statement(request: LeaseRequest, *, has_flow: bool) -> str:
    if request.ids:
        return _LEASE_IDS_FLOW if has_flow else _LEASE_IDS
    return _LEASE_FLOW if has_flow else _LEASE


def _names(request: LeaseRequest) -> list[str]:
    if request.ids:
        return [id_ for id_ in dict.fromkeys(request.ids) if limits.JOB_ID.match(id_)]
    return [name for name in request.queues if limits.QUEUE_NAME.match(name)]


def _in_order(request: LeaseRequest, rows: Sequence[Row]) -> Sequence[Row]:
    if request.ids:
        wanted = {id_: position for position, id_ in reversed(list(enumerate(request.ids)))}
        return sorted(rows, key=lambda row: wanted[row[0]])
    ordered = sorted(rows, key=_place_in_line)
    if len(request.queues) > 1:
        line = {name: position for position, name in reversed(list(enumerate(request.queues)))}
        ordered.sort(key=lambda row: line[_queue_of(row)])
    return ordered


class Outlook(NamedTuple):
    """When it was asked, the time to the next due job, and whether nobody was known to wait."""

    at: int
    next_ms: int | None
    is_fresh: bool


def linger(
    store: Store, request: LeaseRequest, seen_at: int | None, *, listens: bool
) -> Steps[Outlook]:
    """What there is to wait for. What became due since `seen_at` counts as due at once."""
    names = _names(request)
    values = (
        store.ns, store.given_ms, [] if request.ids else names, names if request.ids else [],
        listens, seen_at,
    )  # fmt: skip
    (row,) = yield Ask(_LINGER, values, alone=True)
    return Outlook(*row)


def renew(store: Store, renewals: Sequence[Renewal]) -> Steps[list[Lease | None]]:
    """One statement, unless a job is named twice or the notes are large: then one transaction."""
    answers: list[Lease | None] = [None] * len(renewals)
    left = [entry for entry in enumerate(renewals) if can_exist(entry[1].lease)]
    # Row locks in one order for everybody.
    left.sort(key=lambda entry: (entry[1].lease.job.seq, entry[1].lease.id))
    is_single = True
    while left:
        now_, later = _one_statement(left)
        is_single = is_single and not later
        rows = yield Ask(_RENEW, _values(store, now_), alone=is_single)
        by_id = {row[0]: row for row in rows}
        for position, renewal in now_:
            row = by_id.get(renewal.lease.id)
            if row is not None:
                lease_ms = _span(renewal)
                answers[position] = Lease(job=held_job(row), token=row[_TOKEN], lease_ms=lease_ms)
        left = later
    return answers


_Numbered = list[tuple[int, Renewal]]


def _one_statement(numbered: _Numbered) -> tuple[_Numbered, _Numbered]:
    """The first renewal of each job, as far as their notes go together; and the rest."""
    seen: set[str] = set()
    total = 0
    first: _Numbered = []
    later: _Numbered = []
    for entry in numbered:
        _, renewal = entry
        total += _note_bytes(renewal)
        is_too_large = bool(first) and total > STATEMENT_BYTES_MAX
        (later if renewal.lease.id in seen or is_too_large else first).append(entry)
        seen.add(renewal.lease.id)
    return first, later


def _note_bytes(renewal: Renewal) -> int:
    note = renewal.note
    return 0 if note is None else len(note.checkpoint or b"") + len(note.output or b"")


def _values(store: Store, numbered: _Numbered) -> tuple[Any, ...]:
    renewals = [renewal for _, renewal in numbered]
    notes = [renewal.note for renewal in renewals]
    noted = any(note is not None for note in notes)
    return (
        store.ns, store.given_ms,
        [renewal.lease.id for renewal in renewals],
        [renewal.lease.token for renewal in renewals],
        [_span(renewal) for renewal in renewals],
        [note and note.progress for note in notes] if noted else [],
        [note and note.checkpoint for note in notes] if noted else [],
        [
            None if note is None or note.output is None else checks.clip_output(note.output)
            for note in notes
        ] if noted else [],
    )  # fmt: skip


def _span(renewal: Renewal) -> int:
    return renewal.lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
