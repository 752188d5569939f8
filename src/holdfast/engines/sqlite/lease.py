"""Taking due jobs without scanning: one seek per priority, then rows in their order.

A delayed job in front costs one seek, whatever stands behind it. Jobs met past their expiry are
put out of the hot index, to wait for the reaper, so that nobody meets them twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core import limits
from holdfast.core.model import Job, Lease, LeaseRequest, Renewal, State
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.schema import PART_NOTES
from holdfast.engines.sqlite.unit import Unit
from holdfast.engines.tokens import make_token

HOLD_MAX = 20_000
"""So many expired jobs are put aside in one call at most; then it answers with what it has."""

_RANK_FIRST = -limits.PRIORITY_MAX - 1
_ORDER = "queue = ? AND state = 0 AND holds = 0 AND rank > ? ORDER BY rank, due_at, place"
_TAKE = f"SELECT {rows.COLUMNS} FROM hf_jobs INDEXED BY hf_ready WHERE {_ORDER}"
_LOOK = (
    "SELECT seq, queue, state, rank, due_at, place, task"
    f" FROM hf_jobs INDEXED BY hf_ready WHERE {_ORDER}"
)
_LOOK_TASK = 6


def look(unit: Unit, request: LeaseRequest) -> int | None:
    """The time until something may be leased: 0 is now, None is not in sight. Only reads."""
    if request.ids:
        return _look_by_id(unit, request)
    line_up = _LineUp(unit)
    for line in _lines(unit, request):
        for passed, row in enumerate(line_up.due(_LOOK, line)):
            if request.tasks is None or row[_LOOK_TASK] in request.tasks:
                return 0
            if passed >= limits.SCAN_MAX:
                break
    if _astray(unit):
        return 0
    return None if line_up.next_at is None else line_up.next_at - unit.now


def take(unit: Unit, request: LeaseRequest) -> list[Lease]:
    """Lease what is due, best first; the attempt is counted in the same write."""
    _bring_back(unit)
    found: list[tuple[Row, Line]] = []
    if request.ids:
        found = list(_takeable_by_id(unit, request))
    else:
        for line in _lines(unit, request):
            found += [(row, line) for row in _takeable(unit, line, request, len(found))]
            if len(found) >= request.limit:
                break
    if not found:
        return []
    token = make_token(unit.numbers(1))
    leases = [_lease(unit, row, line, request, token) for row, line in found]
    _write(unit, found, request, token)
    return leases


def renew(unit: Unit, renewals: Iterable[Renewal]) -> list[Lease | None]:
    return [_renew(unit, renewal) for renewal in renewals]


class _LineUp:
    """Walks a queue's due jobs in order, and remembers the earliest of those not yet due."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.next_at: int | None = None

    def due(self, statement: str, line: Line) -> Iterator[Row]:
        unit, now, rank = self._unit, self._unit.now, _RANK_FIRST
        while True:
            for row in unit.run(statement, (line.id, rank)):
                if row[rows.DUE_AT] > now:
                    # All behind it at this priority are later still: on to the next priority.
                    rank = row[rows.RANK]
                    if self.next_at is None or row[rows.DUE_AT] < self.next_at:
                        self.next_at = row[rows.DUE_AT]
                    break
                yield row
            else:
                return


def _lines(unit: Unit, request: LeaseRequest) -> Iterator[Line]:
    for name in dict.fromkeys(request.queues):
        line = unit.catalog.lines.get(name)
        if line is not None and not line.queue.paused:
            yield line


def _takeable(unit: Unit, line: Line, request: LeaseRequest, have: int) -> list[Row]:
    now, tasks, want = unit.now, request.tasks, request.limit - have
    found: list[Row] = []
    expired: list[int] = []
    passed = 0
    for row in _LineUp(unit).due(_TAKE, line):
        if row[6] is not None and row[6] <= now:
            expired.append(row[0])
            if len(expired) >= HOLD_MAX:
                break
        elif tasks is not None and row[22] not in tasks:
            passed += 1
            if passed >= limits.SCAN_MAX:
                break
        else:
            found.append(row)
            if len(found) >= want:
                break
    if expired:
        unit.run(
            "UPDATE hf_jobs SET holds = 1"
            " WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0 AND holds = 0",
            (msgspec.json.encode(expired).decode(),),
        )
    return found


def _takeable_by_id(unit: Unit, request: LeaseRequest) -> Iterator[tuple[Row, Line]]:
    count = 0
    for id_ in dict.fromkeys(request.ids):
        row = rows.fetch(unit, id_)
        line = None if row is None else _line_of(unit, row)
        if row is None or line is None or not _may_go(unit, row, request) or line.queue.paused:
            continue
        yield row, line
        count += 1
        if count >= request.limit:
            return


def _look_by_id(unit: Unit, request: LeaseRequest) -> int | None:
    next_ms = None
    for id_ in dict.fromkeys(request.ids):
        row = rows.fetch(unit, id_)
        if row is None or row[rows.STATE] != rows.WAITING:
            continue
        line = _line_of(unit, row)
        if line is not None and not line.queue.paused and _may_go(unit, row, request):
            return 0
        ahead_ms = row[rows.DUE_AT] - unit.now
        if ahead_ms > 0 and (next_ms is None or ahead_ms < next_ms):
            next_ms = ahead_ms
    return next_ms


def _may_go(unit: Unit, row: Row, request: LeaseRequest) -> bool:
    expires_at = row[rows.EXPIRES_AT]
    return (
        row[rows.STATE] == rows.WAITING
        and row[rows.DUE_AT] <= unit.now
        and (expires_at is None or expires_at > unit.now)
        and (request.tasks is None or row[rows.TASK] in request.tasks)
    )


def _line_of(unit: Unit, row: Row) -> Line | None:
    name = unit.catalog.name_of(unit.connection, row[rows.QUEUE])
    return None if name is None else unit.catalog.lines.get(name)


def _lease(unit: Unit, row: Row, line: Line, request: LeaseRequest, token: int) -> Lease:
    """The row as `_write` is about to leave it."""
    lease_ms = request.lease_ms
    if lease_ms is None:
        lease_ms = row[18] or line.queue.lease_ms
    extra = rows.NO_EXTRA if row[26] is None else rows.decode_extra(row[26])
    job = Job(
        id=row[21],
        task=row[22],
        queue=line.queue.name,
        payload=row[27] if row[27] is not None else rows.outside(unit, row[0]),
        content_type=extra.content_type,
        priority=-row[3],
        state=State.LEASED,
        seq=row[0],
        version=row[11] + 1,
        attempt=row[8] + 1,
        crashes=row[9],
        releases=row[10],
        created_at=row[15],
        due_at=row[4],
        expires_at=row[6],
        leased_at=unit.now,
        deadline_at=unit.now + lease_ms,
        token=token,
        worker=request.worker or None,
        cancel_requested=row[17] != 0,
        reason=rows.reason_of(row),
        key=row[23],
        tenant=row[24],
        group=row[25],
        labels=extra.labels,
        headers=extra.headers,
        overrides=extra.overrides,
        origin=extra.origin,
    )
    if row[7]:
        job = rows.in_hand(unit, row, job)
    return Lease(job=job, token=token, lease_ms=lease_ms)


def _write(unit: Unit, found: list[tuple[Row, Line]], request: LeaseRequest, token: int) -> None:
    by_lease_ms: dict[int, list[int]] = {}
    for row, line in found:
        by_lease_ms.setdefault(line.queue.lease_ms, []).append(row[rows.SEQ])
    for lease_ms, seqs in by_lease_ms.items():
        unit.run(
            "UPDATE hf_jobs SET state = 1, holds = 0, attempt = attempt + 1,"
            " version = version + 1, token = ?, deadline = ? + coalesce(?, lease_ms, ?),"
            " leased_at = ?, worker = ?"
            " WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0",
            (
                token,
                unit.boot,
                request.lease_ms,
                lease_ms,
                unit.now,
                request.worker or None,
                msgspec.json.encode(seqs).decode(),
            ),
        )
        assert unit.changes() == len(seqs), "a waiting row changed inside our own transaction"


def _astray(unit: Unit) -> bool:
    """Was a job put aside as expired that is not, because the wall clock was set back?"""
    return bool(
        unit.run(
            "SELECT 1 FROM hf_jobs INDEXED BY hf_held"
            " WHERE ns = ? AND state = 0 AND holds <> 0 AND expires_at > ? LIMIT 1",
            (unit.namespace_id, unit.now),
        ).get
    )


def _bring_back(unit: Unit) -> None:
    if _astray(unit):
        unit.run(
            "UPDATE hf_jobs SET holds = 0 WHERE seq IN (SELECT seq FROM hf_jobs INDEXED BY hf_held"
            " WHERE ns = ? AND state = 0 AND holds <> 0 AND expires_at > ? LIMIT ?)",
            (unit.namespace_id, unit.now, HOLD_MAX),
        )


def _renew(unit: Unit, renewal: Renewal) -> Lease | None:
    lease, note = renewal.lease, renewal.note
    row = rows.fetch(unit, lease.id)
    if row is None or row[rows.TOKEN] != lease.token:
        return None
    lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
    unit.run(
        "UPDATE hf_jobs SET deadline = ?"
        " WHERE seq = ? AND token = ? AND state = 1 AND deadline > ?",
        (unit.boot + lease_ms, row[rows.SEQ], lease.token, unit.boot),
    )
    if unit.changes() != 1:
        return None
    job = rows.job_of(unit, row)
    if job is None:
        return None
    if note is not None and rows.keep_note(unit, row[rows.SEQ], note):
        parts = row[rows.PARTS] | PART_NOTES
        unit.run("UPDATE hf_jobs SET parts = ? WHERE seq = ?", (parts, row[rows.SEQ]))
        row = (*row[: rows.PARTS], parts, *row[rows.PARTS + 1 :])
    job = msgspec.structs.replace(job, deadline_at=unit.now + lease_ms)
    return Lease(job=rows.in_hand(unit, row, job), token=lease.token, lease_ms=lease_ms)
