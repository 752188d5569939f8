"""Taking due jobs without scanning: one seek per priority, then rows in their order.

A delayed job in front costs one seek, whatever stands behind it. Jobs met past their expiry are
put out of the hot index, to wait for the reaper, so that nobody meets them twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core import limits
from holdfast.core.model import Job, Lease, LeaseRequest, State
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.unit import Unit
from holdfast.engines.tokens import make_token

HOLD_MAX = 20_000
"""So many expired jobs are put aside in one call at most; then it answers with what it has."""

_RANK_FIRST = -limits.PRIORITY_MAX - 1
# What a lease does not overwrite. In both statements the rank and the due time are at 3 and 4.
_FIELDS = (
    "seq, queue, parts, rank, due_at, expires_at, attempt, crashes, releases, version,"
    " created_at, cancel, lease_ms, reason, id, task, key, tenant, grp, extra, payload"
)
_QUEUE, _RANK, _DUE_AT, _EXPIRES_AT, _TASK = 1, 3, 4, 5, 15
_ORDER = "queue = ? AND state = 0 AND holds = 0 AND rank > ? ORDER BY rank, due_at, place"
_TAKE = f"SELECT {_FIELDS} FROM hf_jobs INDEXED BY hf_ready WHERE {_ORDER}"
_LOOK = f"SELECT task, seq, queue, rank, due_at FROM hf_jobs INDEXED BY hf_ready WHERE {_ORDER}"
_BY_ID = f"SELECT {_FIELDS} FROM hf_jobs WHERE id = ? AND ns = ? AND state = 0"
_WRITE = """
UPDATE hf_jobs SET state = 1, holds = 0, attempt = attempt + 1, version = version + 1, token = ?,
  deadline = ? + coalesce(?, lease_ms, ?), leased_at = ?, worker = ?
WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0
"""


def look(unit: Unit, request: LeaseRequest) -> int | None:
    """The time until something may be leased: 0 is now, None is not in sight. Only reads."""
    if request.ids:
        return _look_by_id(unit, request)
    line_up = _LineUp(unit)
    for line in _lines(unit, request):
        for passed, row in enumerate(line_up.due(_LOOK, line)):
            if request.tasks is None or row[0] in request.tasks:
                return 0
            if passed >= limits.SCAN_MAX:
                break
    if _astray(unit):
        return 0
    return None if line_up.next_at is None else line_up.next_at - unit.now


def take(unit: Unit, request: LeaseRequest) -> list[Lease]:
    """Lease what is due, best first; the attempt is counted in the same write."""
    _bring_back(unit)
    hand = _Hand(unit, request)
    if request.ids:
        for row, line in _takeable_by_id(unit, request):
            hand.take([row], line)
            if len(hand.leases) >= request.limit:
                break
        return hand.leases
    for line in _lines(unit, request):
        hand.take(_takeable(unit, line, request, len(hand.leases)), line)
        if len(hand.leases) >= request.limit:
            break
    return hand.leases


class _LineUp:
    """Walks a queue's due jobs in order, and remembers the earliest of those not yet due."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.next_at: int | None = None

    def due(self, statement: str, line: Line) -> Iterator[Row]:
        unit, now, rank = self._unit, self._unit.now, _RANK_FIRST
        while True:
            for row in unit.run(statement, (line.id, rank)):
                if row[4] > now:
                    # All behind it at this priority are later still: on to the next priority.
                    rank = row[_RANK]
                    if self.next_at is None or row[_DUE_AT] < self.next_at:
                        self.next_at = row[_DUE_AT]
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
        if row[5] is not None and row[5] <= now:
            expired.append(row[0])
            if len(expired) >= HOLD_MAX:
                break
        elif tasks is not None and row[15] not in tasks:
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
            (str(expired),),
        )
    return found


def _takeable_by_id(unit: Unit, request: LeaseRequest) -> Iterator[tuple[Row, Line]]:
    for id_ in dict.fromkeys(request.ids):
        row = unit.run(_BY_ID, (id_, unit.namespace_id)).fetchone()
        line = None if row is None else _line_of(unit, row)
        if row is not None and line is not None and _may_go(unit, row, request):
            yield row, line


def _look_by_id(unit: Unit, request: LeaseRequest) -> int | None:
    next_ms = None
    for id_ in dict.fromkeys(request.ids):
        row = unit.run(_BY_ID, (id_, unit.namespace_id)).fetchone()
        if row is None or _line_of(unit, row) is None:
            continue
        if _may_go(unit, row, request):
            return 0
        ahead_ms = row[_DUE_AT] - unit.now
        if ahead_ms > 0 and (next_ms is None or ahead_ms < next_ms):
            next_ms = ahead_ms
    return next_ms


def _may_go(unit: Unit, row: Row, request: LeaseRequest) -> bool:
    expires_at = row[_EXPIRES_AT]
    return (
        row[_DUE_AT] <= unit.now
        and (expires_at is None or expires_at > unit.now)
        and (request.tasks is None or row[_TASK] in request.tasks)
    )


def _line_of(unit: Unit, row: Row) -> Line | None:
    """The job's queue, unless it is paused or gone."""
    name = unit.catalog.name_of(unit.connection, row[_QUEUE])
    line = None if name is None else unit.catalog.lines.get(name)
    return None if line is None or line.queue.paused else line


class _Hand:
    """What one call has leased so far, all of it under one token."""

    def __init__(self, unit: Unit, request: LeaseRequest) -> None:
        self._unit = unit
        self._request = request
        self._worker = request.worker or None
        self._token = 0
        self.leases: list[Lease] = []

    def take(self, found: list[Row], line: Line) -> None:
        if not found:
            return
        unit, request = self._unit, self._request
        self._token = self._token or make_token(unit.numbers(1))
        unit.run(
            _WRITE,
            (
                self._token,
                unit.boot,
                request.lease_ms,
                line.queue.lease_ms,
                unit.now,
                self._worker,
                str([row[0] for row in found]),
            ),
        )
        assert unit.changes() == len(found), "a waiting row changed inside our own transaction"
        self.leases += [self._lease(row, line) for row in found]

    def _lease(self, row: Row, line: Line) -> Lease:
        """The row as the statement has left it."""
        unit, token = self._unit, self._token
        lease_ms = self._request.lease_ms
        if lease_ms is None:
            lease_ms = row[12] or line.queue.lease_ms
        extra = rows.NO_EXTRA if row[19] is None else rows.decode_extra(row[19])
        job = Job(
            id=row[14],
            task=row[15],
            queue=line.queue.name,
            payload=row[20] if row[20] is not None else rows.outside(unit, row[0]),
            content_type=extra.content_type,
            priority=-row[3],
            state=State.LEASED,
            seq=row[0],
            version=row[9] + 1,
            attempt=row[6] + 1,
            crashes=row[7],
            releases=row[8],
            created_at=row[10],
            due_at=row[4],
            expires_at=row[5],
            leased_at=unit.now,
            deadline_at=unit.now + lease_ms,
            token=token,
            worker=self._worker,
            cancel_requested=row[11] != 0,
            reason=rows.reason_of(row[13]),
            key=row[16],
            tenant=row[17],
            group=row[18],
            labels=extra.labels,
            headers=extra.headers,
            overrides=extra.overrides,
            origin=extra.origin,
        )
        if row[2]:
            job = rows.in_hand(unit, row[0], row[2], job)
        return Lease(job=job, token=token, lease_ms=lease_ms)


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
