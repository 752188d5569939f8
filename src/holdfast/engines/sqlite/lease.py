"""Taking due jobs without scanning: one seek per priority, then rows in their order.

A delayed job in front costs one seek, whatever stands behind it. Jobs met past their expiry are
put out of the hot index, to wait for the reaper, so that nobody meets them twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

import apsw

from holdfast.core.model import Job, Lease, LeaseRequest, State
from holdfast.engines.sqlite import rows, scout
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.schema import RANK_FIRST, READY
from holdfast.engines.sqlite.scout import Sight, Spot
from holdfast.engines.sqlite.unit import Unit
from holdfast.engines.tokens import make_token

HOLD_MAX = 20_000
"""So many expired jobs are put aside in one call at most; then it answers with what it has."""

PASS_MAX = 1_000
"""So many jobs of other tasks are passed over under the lock; a look without it has no bound."""

# What a lease does not overwrite.
_FIELDS = (
    "seq, queue, parts, rank, due_at, expires_at, attempt, crashes, releases, version,"
    " created_at, cancel, lease_ms, reason, id, task, key, tenant, grp, extra, payload"
)
_QUEUE, _RANK, _DUE_AT, _EXPIRES_AT, _TASK = 1, 3, 4, 5, 15
_ORDER = "ORDER BY rank, due_at, place"
_TAKE = f"SELECT {_FIELDS} {READY} AND rank > ? {_ORDER}"
_TAKE_FROM = f"SELECT {_FIELDS} {READY} AND (rank, due_at, place) >= (?, ?, ?) {_ORDER}"
_LOOK = f"SELECT rank, due_at {READY} AND rank > ? {_ORDER} LIMIT 1"
_BY_ID = f"SELECT {_FIELDS} FROM hf_jobs WHERE id = ? AND ns = ? AND state = 0"
_WRITE = """
UPDATE hf_jobs SET state = 1, holds = 0, attempt = attempt + 1, version = version + 1, token = ?,
  deadline = ? + coalesce(?, lease_ms, ?), leased_at = ?, worker = ?
WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0
"""


def look(unit: Unit, request: LeaseRequest, after: Spot | None = None) -> Sight:
    """Is anything to be leased, and when? Only reads. A long look goes on `after` the last one."""
    if request.ids:
        return Sight(_look_by_id(unit, request))
    lines = _lines(unit, request)
    if request.tasks is None:
        sight = _look_for_any(unit, lines)
    else:
        sight = scout.look_for(unit, [line.id for line in lines], request.tasks, after)
    if sight.next_ms != 0 and sight.go_on is None and _astray(unit):
        return Sight(0)
    return sight


def take(unit: Unit, request: LeaseRequest, spot: Spot | None = None) -> list[Lease]:
    """Lease what is due, best first; the attempt is counted in the same write.

    Before `spot` there was nothing for this request when it was looked for.
    """
    _bring_back(unit)
    hand = _Hand(unit, request)
    if request.ids:
        for row, line in _takeable_by_id(unit, request):
            hand.take([row], line)
            if len(hand.leases) >= request.limit:
                break
        return hand.leases
    lines = _lines(unit, request)
    if spot is not None:
        queue_id = spot.queue_id
        lines = dropwhile(lambda line: line.id != queue_id, lines)
    for line in lines:
        hand.take(hand.choose(line, spot), line)
        spot = None
        if hand.is_full:
            break
    return hand.leases


def _look_for_any(unit: Unit, lines: Iterator[Line]) -> Sight:
    next_at = None
    for line in lines:
        first = unit.run(_LOOK, (line.id, RANK_FIRST)).fetchone()
        while first is not None:
            rank, due_at = first
            if due_at <= unit.now:
                return Sight(0)
            # All behind it at this priority are later still: on to the next priority.
            next_at = due_at if next_at is None else min(next_at, due_at)
            first = unit.run(_LOOK, (line.id, rank)).fetchone()
    return Sight(None if next_at is None else next_at - unit.now)


def _due(unit: Unit, line: Line, spot: Spot | None) -> Iterator[Row]:
    """A queue's due jobs in their order, from the spot on if there is one."""
    start = (line.id, RANK_FIRST)
    found = unit.run(_TAKE, start) if spot is None else unit.run(_TAKE_FROM, spot)
    while True:
        for row in found:
            if row[4] > unit.now:
                rank = row[3]
                break
            yield row
        else:
            return
        found = unit.run(_TAKE, (line.id, rank))


def _lines(unit: Unit, request: LeaseRequest) -> Iterator[Line]:
    for name in dict.fromkeys(request.queues):
        line = unit.catalog.lines.get(name)
        if line is not None and not line.queue.paused:
            yield line


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
    name = unit.catalog.names.get(row[_QUEUE])
    line = None if name is None else unit.catalog.lines.get(name)
    return None if line is None or line.queue.paused else line


class _Hand:
    """What one call has leased so far, all of it under one token."""

    def __init__(self, unit: Unit, request: LeaseRequest) -> None:
        self._unit = unit
        self._request = request
        self._worker = request.worker or None
        self._token = 0
        self._passed = 0
        self.leases: list[Lease] = []

    @property
    def is_full(self) -> bool:
        return len(self.leases) >= self._request.limit or self._passed >= PASS_MAX

    def choose(self, line: Line, spot: Spot | None) -> list[Row]:
        """The best that are due; those past their expiry are put aside on the way."""
        now, tasks = self._unit.now, self._request.tasks
        want = self._request.limit - len(self.leases)
        found: list[Row] = []
        expired: list[int] = []
        for row in _due(self._unit, line, spot):
            if row[5] is not None and row[5] <= now:
                expired.append(row[0])
                if len(expired) >= HOLD_MAX:
                    break
            elif tasks is not None and row[15] not in tasks:
                self._passed += 1
                if self._passed >= PASS_MAX:
                    break
            else:
                found.append(row)
                if len(found) >= want:
                    break
        if expired:
            self._unit.run(
                "UPDATE hf_jobs SET holds = 1"
                " WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0 AND holds = 0",
                (str(expired),),
            )
        return found

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
        if unit.changes() != len(found):
            # Nobody else writes meanwhile: an index tells of rows that the table does not have so.
            raise apsw.CorruptError("waiting jobs in an index are not in the table")
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
