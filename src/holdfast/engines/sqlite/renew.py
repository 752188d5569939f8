"""Deadlines pushed and notes kept, by whoever still holds the lease in time."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.model import Lease, Renewal
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.schema import PART_NOTES
from holdfast.engines.sqlite.unit import Unit


def renew(unit: Unit, renewals: Iterable[Renewal]) -> list[Lease | None]:
    return [_renew(unit, renewal) for renewal in renewals]


def _renew(unit: Unit, renewal: Renewal) -> Lease | None:
    lease, note = renewal.lease, renewal.note
    row = rows.fetch(unit, lease.id)
    if row is None or row[rows.TOKEN] != lease.token:
        return None
    seq, parts = row[rows.SEQ], row[rows.PARTS]
    lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
    unit.run(
        "UPDATE hf_jobs SET deadline = ?"
        " WHERE seq = ? AND token = ? AND state = 1 AND deadline > ?",
        (unit.boot + lease_ms, seq, lease.token, unit.boot),
    )
    if unit.changes() != 1:
        return None
    job = rows.job_of(unit, row)
    if job is None:
        return None
    if note is not None and rows.keep_note(unit, seq, note):
        parts |= PART_NOTES
        unit.run("UPDATE hf_jobs SET parts = ? WHERE seq = ?", (parts, seq))
    job = rows.in_hand(unit, seq, parts, replace(job, deadline_at=unit.now + lease_ms))
    return Lease(job=job, token=lease.token, lease_ms=lease_ms)
