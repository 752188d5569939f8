"""The small versioned values beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Record
from holdfast.engines.base import Saved
from holdfast.engines.sqlite.unit import Unit


def load(unit: Unit, kind: str, after: str | None, limit: int) -> list[Record]:
    found = unit.run(
        "SELECT key, version, value, saved_at FROM hf_records"
        " WHERE ns = ? AND kind = ? AND key > ? ORDER BY key LIMIT ?",
        (unit.namespace_id, kind, after or "", limit),
    ).fetchall()
    return [
        Record(kind=kind, key=key, value=value, version=version, age_ms=max(0, unit.now - saved_at))
        for key, version, value, saved_at in found
    ]


def save(unit: Unit, records: Sequence[Record]) -> list[Saved]:
    return [_save(unit, record) for record in records]


def _save(unit: Unit, record: Record) -> Saved:
    """One conditional write on the version that was read."""
    name = (unit.namespace_id, record.kind, record.key)
    if record.value is None and record.version == 0:
        known = unit.run("SELECT 1 FROM hf_records WHERE ns = ? AND kind = ? AND key = ?", name).get
        return Saved.STALE if known else Saved.SAVED
    if record.value is None:
        unit.run(
            "DELETE FROM hf_records WHERE ns = ? AND kind = ? AND key = ? AND version = ?",
            (*name, record.version),
        )
    elif record.version == 0:
        unit.run(
            "INSERT INTO hf_records(ns, kind, key, version, value, saved_at)"
            " VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT DO NOTHING",
            (*name, record.value, unit.now),
        )
    else:
        unit.run(
            "UPDATE hf_records SET version = version + 1, value = ?, saved_at = ?"
            " WHERE ns = ? AND kind = ? AND key = ? AND version = ?",
            (record.value, unit.now, *name, record.version),
        )
    return Saved.SAVED if unit.changes() == 1 else Saved.STALE
