"""What one call has leased so far: the write that leases, and the leases it hands out."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.core.model import Job, Lease, LeaseRequest, State
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.unit import Unit
from holdfast.engines.tokens import make_token

# What a lease does not overwrite.
FIELDS = (
    "seq, queue, parts, rank, due_at, expires_at, attempt, crashes, releases, version,"
    " created_at, cancel, lease_ms, reason, id, task, key, tenant, grp, extra, payload"
)
SEQ, QUEUE, RANK, DUE_AT, EXPIRES_AT, TASK, TENANT, GROUP = 0, 1, 3, 4, 5, 15, 17, 18
_BY_SEQS = (
    f"SELECT {FIELDS} FROM (SELECT value AS at FROM json_each(?)) CROSS JOIN hf_jobs ON seq = at"
)
_WRITE = """
UPDATE hf_jobs SET state = 1, holds = 0, attempt = attempt + 1, version = version + 1, token = ?,
  deadline = ? + coalesce(?, lease_ms, ?), leased_at = ?, worker = ?
WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0
"""
_DAMAGE = apsw.CorruptError("waiting jobs in an index are not in the table")


class Hand:
    """All of it under one token."""

    def __init__(self, unit: Unit, request: LeaseRequest) -> None:
        self._unit = unit
        self._request = request
        self._worker = request.worker or None
        self._token = 0
        self.leases: list[Lease] = []

    @property
    def left(self) -> int:
        return self._request.limit - len(self.leases)

    def take_all(self, seqs: Sequence[int], line: Line) -> None:
        """These in this order."""
        if seqs:
            found = self._unit.run(_BY_SEQS, (str(list(seqs)),)).fetchall()
            if len(found) != len(seqs):
                raise _DAMAGE
            self.take(found, line)

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
            raise _DAMAGE
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
            redrives=extra.redrives,
            key=row[16],
            tenant=row[17],
            group=row[18],
            labels=extra.labels,
            headers=extra.headers,
            overrides=extra.overrides,
            after_on=extra.after_on,
            parent_death=extra.parent_death,
            origin=extra.origin,
        )
        if row[2]:
            job = rows.in_hand(unit, row[0], row[2], job)
        return Lease(job=job, token=token, lease_ms=lease_ms)
