"""Jobs that were put aside as expired, and come back when the wall clock was set back."""

from __future__ import annotations

from holdfast.engines.sqlite import lanes
from holdfast.engines.sqlite.unit import Unit

STEP = 20_000
_ASTRAY = (
    "FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds & 2 AND expires_at > ?"
)


def is_any_astray(unit: Unit) -> bool:
    """Was a job put aside that is not expired, because the wall clock was set back?"""
    if unit.now >= unit.aside_at:
        return False
    return any(
        unit.run(f"SELECT 1 {_ASTRAY} LIMIT 1", (line.id, unit.now)).get
        for line in unit.catalog.lines.values()
    )


def bring_back(unit: Unit) -> None:
    """In every namespace, because from then on nobody looks for them until they are put aside
    again."""
    if unit.now >= unit.aside_at:
        return
    brought = 0
    for (queue_id,) in unit.run("SELECT id FROM hf_queues").fetchall():
        found = unit.run(
            f"UPDATE hf_jobs SET holds = holds - 2 WHERE seq IN (SELECT seq {_ASTRAY} LIMIT ?)"
            " RETURNING lane",
            (queue_id, unit.now, STEP - brought),
        ).fetchall()
        lanes.refresh(unit, {lane for (lane,) in found if lane is not None})
        brought += len(found)
    if brought < STEP:
        unit.run("UPDATE hf_meta SET aside_at = ?", (unit.now,))
        unit.aside_at = unit.now
