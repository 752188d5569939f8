"""Lanes, slots and tenants that nobody needs any more are let go, a few at a time."""

from __future__ import annotations

import msgspec

from holdfast.core import flow
from holdfast.core.flow import CREDIT
from holdfast.engines.sqlite import fair
from holdfast.engines.sqlite.unit import Unit

KINDS_MAX = 64
"""A queue whose jobs are held in more ways than these keeps its empty lanes for now."""

_EMPTY = (
    "SELECT id FROM hf_lanes l WHERE queue = ?1 AND due_at IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM json_each(?2) h CROSS JOIN hf_jobs j INDEXED BY hf_aside"
    " WHERE j.queue = ?1 AND j.state = 0 AND j.holds <> 0 AND j.holds = h.value AND j.lane = l.id)"
    " AND id NOT IN (SELECT value FROM json_each(?3)) LIMIT ?4"
)


# Where edges are too many to look at, some may have lost their parent: then nothing changes.
_FORSAKEN = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM hf_edges LIMIT 10000)) = 10000 OR EXISTS"
    " (SELECT 1 FROM hf_edges e WHERE NOT EXISTS"
    " (SELECT 1 FROM hf_jobs p WHERE p.id = e.parent AND p.ns = e.ns))"
)


def prune(unit: Unit, limit: int) -> None:
    leased = unit.run(
        "SELECT DISTINCT lane FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state = 1 AND lane IS NOT NULL",
        (unit.namespace_id,),
    ).fetchall()
    in_use = str([lane for (lane,) in leased])
    for line in unit.catalog.lines.values():
        kinds = _kinds_held(unit, line.id)
        if len(kinds) <= KINDS_MAX:
            found = unit.run(_EMPTY, (line.id, str(kinds), in_use, limit)).fetchall()
            unit.connection.executemany("DELETE FROM hf_lanes WHERE id = ?", found)
        _prune_tenants(unit, line.id, limit)
    _prune_slots(unit, limit)
    if unit.forsaken and not unit.run(_FORSAKEN).get:
        unit.run("UPDATE hf_meta SET forsaken = 0")


def _kinds_held(unit: Unit, queue_id: int) -> list[int]:
    kinds: list[int] = []
    holds = 0
    while len(kinds) <= KINDS_MAX:
        holds = unit.run(
            "SELECT min(holds) FROM hf_jobs INDEXED BY hf_aside"
            " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds > ?",
            (queue_id, holds),
        ).get
        if holds is None:
            break
        kinds.append(holds)
    return kinds


def _prune_tenants(unit: Unit, queue_id: int, limit: int) -> None:
    """One with no lane, no lease, no credit to lose and nothing of late to answer for."""
    vclock = unit.run("SELECT vclock FROM hf_flows WHERE queue = ?", (queue_id,)).get or 0
    found = unit.run(
        "SELECT tenant, busy_ms, busy_at FROM hf_tenants t WHERE queue = ?1 AND leased = 0"
        " AND turn <= ?2 AND NOT EXISTS (SELECT 1 FROM hf_lanes l WHERE l.queue = ?1"
        " AND l.tenant = t.tenant) LIMIT ?3",
        (queue_id, vclock - CREDIT, limit),
    ).fetchall()
    idle = [
        (queue_id, tenant)
        for tenant, busy_ms, busy_at in found
        if round(flow.decayed(busy_ms, unit.now - busy_at) * 1_000) == 0
    ]
    unit.connection.executemany("DELETE FROM hf_tenants WHERE queue = ? AND tenant = ?", idle)
    fair.forget(unit, queue_id)


def _prune_slots(unit: Unit, limit: int) -> None:
    """Not while a rate is spent, which would come back full."""
    found = unit.run(
        "SELECT id FROM hf_slots WHERE ns = ? AND used = 0 AND free_us <= ? LIMIT ?",
        (unit.namespace_id, unit.boot * 1_000, limit),
    ).fetchall()
    if not found:
        return
    needed = {
        slot
        for (slot,) in unit.run(
            "SELECT DISTINCT s.value FROM hf_lanes, json_each(hf_lanes.slots) s"
        )
    }
    idle = [(slot,) for (slot,) in found if slot not in needed]
    unit.connection.executemany("DELETE FROM hf_slots WHERE id = ?", idle)
    ids = msgspec.json.encode([slot for (slot,) in idle]).decode()
    unit.run("DELETE FROM hf_parks WHERE slot IN (SELECT value FROM json_each(?))", (ids,))
