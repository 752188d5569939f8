"""Jobs into their new lanes when a queue's limits or its fairness change: in bounded steps, marked
in the transaction that writes the settings, so that whoever leases knows when it is not done."""

from __future__ import annotations

import msgspec

from holdfast.core import lanes as core_lanes
from holdfast.core.model import Queue
from holdfast.engines.sqlite import fair, flow, relane, walk
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import FLOW_TENANT
from holdfast.engines.sqlite.unit import Unit

STEP = 1_000
_LEASED = (
    "SELECT seq, tenant FROM hf_jobs INDEXED BY hf_leased WHERE ns = ? AND state = 1"
    " AND queue = ? AND flow & ? = 0 LIMIT ?"
)
_LEASES: walk.Cursor = ["leased"]


def begin(unit: Unit, line: Line, queue: Queue) -> None:
    """With the new settings: mark the queue, if its lanes change. New numbers count at once."""
    before = line.queue
    unit.run("UPDATE hf_parks SET wake_us = 0 WHERE queue = ?", (line.id,))
    same = core_lanes.is_same_flow(before, queue) and before.fairness == queue.fairness
    if same and not line.unsorted:
        return
    # Turns order lanes by shares alone, and nobody knows yet which slots are full.
    unit.run(
        "UPDATE hf_lanes SET bar = 0, turn = iif(?1, ifnull((SELECT turn FROM hf_tenants t"
        " WHERE t.queue = hf_lanes.queue AND t.tenant = hf_lanes.tenant), 0), 0)"
        " WHERE queue = ?2",
        (queue.fairness == "shares", line.id),
    )
    unit.run("DELETE FROM hf_parks WHERE queue = ?", (line.id,))
    _mark(unit, line.id, walk.START)


def go_on(unit: Unit, queue: str | int) -> bool:
    """One step in the queue of this name or number; False when all is sorted."""
    name = queue if isinstance(queue, str) else unit.catalog.names.get(queue)
    line = None if name is None else unit.catalog.lines.get(name)
    if line is None or not line.unsorted:
        return False
    queue_id = line.id
    text = unit.run("SELECT sorting FROM hf_flows WHERE queue = ?", (queue_id,)).get
    cursor = msgspec.json.decode(text)
    if cursor == _LEASES:
        return _count_leased(unit, line)
    seqs, cursor = walk.page(unit, queue_id, cursor, STEP)
    relane.relane(unit, flow.aftermath_of(unit), seqs)
    _mark(unit, queue_id, _LEASES if cursor is None else cursor)
    return True


def _count_leased(unit: Unit, line: Line) -> bool:
    """Under fairness every lease counts under its tenant, those from before too."""
    found: list[tuple[int, str | None]] = []
    if line.queue.fairness != "off":
        found = unit.run(_LEASED, (unit.namespace_id, line.id, FLOW_TENANT, STEP)).fetchall()
    for seq, tenant in found:
        unit.run("UPDATE hf_jobs SET flow = flow | ? WHERE seq = ?", (FLOW_TENANT, seq))
        unit.run(
            "INSERT INTO hf_tenants(queue, tenant, leased) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET leased = leased + 1",
            (line.id, tenant or ""),
        )
    fair.forget(unit, line.id)
    if len(found) == STEP:
        return True
    unit.run("UPDATE hf_flows SET sorting = NULL WHERE queue = ?", (line.id,))
    unit.bump_revision()
    unit.rings = True
    return False


def drop(unit: Unit, queue_id: int, limit: int) -> bool:
    """Some of what a queue's flow left behind; is there more? Slots are not a queue's own."""
    fair.forget(unit, queue_id)
    for table, column in (("hf_lanes", "id"), ("hf_tenants", "tenant"), ("hf_parks", "slot")):
        unit.run(
            f"DELETE FROM {table} WHERE queue = ?1 AND {column} IN"  # sql: our own names
            f" (SELECT {column} FROM {table} WHERE queue = ?1 LIMIT ?2)",
            (queue_id, limit),
        )
        if unit.changes() >= limit:
            return True
    unit.run("DELETE FROM hf_flows WHERE queue = ?", (queue_id,))
    return False


def _mark(unit: Unit, queue_id: int, cursor: walk.Cursor) -> None:
    unit.run(
        "INSERT INTO hf_flows(queue, sorting) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET sorting = excluded.sorting",
        (queue_id, msgspec.json.encode(cursor).decode()),
    )
