"""What is counted beside the jobs, compared with the jobs themselves.

`suspect` only reads, in pages that come round to everything; `mend` looks again under the lock and
puts right what differs. In a store that was never harmed it finds nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.core.lifecycle import Parting
from holdfast.core.model import STATES, State
from holdfast.engines.sqlite import fair, flow, groups, lanes, relane, rows, walk
from holdfast.engines.sqlite.flow_schema import FLOW_TENANT
from holdfast.engines.sqlite.picture import read_slots
from holdfast.engines.sqlite.slots import Room
from holdfast.engines.sqlite.unit import Unit

_HEAD = (
    "SELECT due_at, place FROM hf_jobs INDEXED BY hf_aside WHERE queue = l.queue AND state = 0"
    " AND holds <> 0 AND holds = 1 AND lane = l.id ORDER BY due_at, place LIMIT 1"
)
_LANES = (
    f"SELECT id, due_at, place, bar, queue, (due_at, place) IS NOT ({_HEAD}) FROM hf_lanes l"
    " WHERE id > ? ORDER BY id LIMIT ?"
)
_GROUPS = (
    "SELECT queue, grp FROM hf_jobs INDEXED BY hf_grouped WHERE grp IS NOT NULL AND state < 2"
    " AND (queue, grp) > (?, ?) ORDER BY queue, grp LIMIT 1"
)
_EDGES = (
    "SELECT e.parent, e.child, p.state, c.extra, c.state FROM hf_edges e"
    " JOIN hf_jobs c ON c.seq = e.child LEFT JOIN hf_jobs p ON p.id = e.parent AND p.ns = e.ns"
    " WHERE e.ns = ? AND (e.parent, e.child) > (?, ?) ORDER BY e.parent, e.child LIMIT ?"
)


class Cursor(NamedTuple):
    """How far the walk has come in each of four."""

    lane: int = 0
    group: tuple[int, str] = (0, "")
    edge: tuple[str, int] = ("", 0)
    job: tuple[int, walk.Cursor] = (0, walk.START)


class Suspects(NamedTuple):
    slots: list[int]
    tenants: list[tuple[int, str]]
    lanes: list[int]
    groups: list[tuple[int, str]]
    parents: dict[str, State | None]
    strays: list[int]
    cursor: Cursor

    @property
    def any(self) -> bool:
        return any(map(bool, self[:-1]))


def suspect(unit: Unit, cursor: Cursor, limit: int) -> Suspects:
    wrong_lanes, lane = _lanes(unit, cursor.lane, limit)
    wrong_groups, group = _groups(unit, cursor.group, limit)
    parents, edge = _parents(unit, cursor.edge, limit)
    strays, job = _strays(unit, cursor.job, limit)
    return Suspects(
        list(_slots(unit)),
        list(_tenants(unit)),
        wrong_lanes,
        wrong_groups,
        parents,
        strays,
        Cursor(lane, group, edge, job),
    )


def mend(unit: Unit, found: Suspects) -> int:
    """How many were wrong indeed."""
    aftermath = flow.aftermath_of(unit)
    mended = 0
    if found.slots:
        used = _slots(unit)
        for slot in set(found.slots) & used.keys():
            unit.run("UPDATE hf_slots SET used = ? WHERE id = ?", (used[slot], slot))
            unit.run("UPDATE hf_parks SET wake_us = 0 WHERE slot = ?", (slot,))
            mended += 1
    if found.tenants:
        leased = _tenants(unit)
        for key in set(found.tenants) & leased.keys():
            unit.run(
                "INSERT INTO hf_tenants(leased, queue, tenant) VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET leased = excluded.leased",
                (leased[key], *key),
            )
            fair.forget(unit, key[0])
            mended += 1
    for lane in found.lanes:
        wrong, _ = _lanes(unit, lane - 1, 1)
        if wrong == [lane]:
            unit.run("UPDATE hf_lanes SET bar = 0 WHERE id = ?", (lane,))
            lanes.refresh(unit, [lane])
            mended += 1
    for group in found.groups:
        before = unit.connection.total_changes()
        groups.refresh(unit, aftermath, *group)
        mended += unit.connection.total_changes() > before
    for parent, ended in found.parents.items():
        aftermath.ended.append((0, parent, ended))
        mended += 1
    strays = relane.strays(unit, found.strays)
    relane.relane(unit, aftermath, strays)
    mended += len(strays)
    unit.rings = unit.rings or mended > 0
    return mended


def _slots(unit: Unit) -> dict[int, int]:
    """Slots whose count is not that of the leases which hold them, and what it should be."""
    held: Counter[int] = Counter()
    for text, count in unit.run(
        "SELECT l.slots, count(*) FROM hf_jobs j INDEXED BY hf_leased"
        " CROSS JOIN hf_lanes l ON l.id = j.lane WHERE j.ns = ? AND j.state = 1 GROUP BY l.id",
        (unit.namespace_id,),
    ):
        for slot in read_slots(text):
            held[slot] += count
    known = dict(
        unit.run(
            "SELECT id, used FROM hf_slots WHERE ns = ? AND (used <> 0 OR id IN"
            " (SELECT value FROM json_each(?)))",
            (unit.namespace_id, str(list(held))),
        ).fetchall()
    )
    return {slot: held[slot] for slot, used in known.items() if used != held[slot]}


def _tenants(unit: Unit) -> dict[tuple[int, str], int]:
    leased: Counter[tuple[int, str]] = Counter()
    for queue_id, tenant, count in unit.run(
        "SELECT queue, ifnull(tenant, ''), count(*) FROM hf_jobs INDEXED BY hf_leased"
        " WHERE ns = ? AND state = 1 AND flow & ? GROUP BY 1, 2",
        (unit.namespace_id, FLOW_TENANT),
    ):
        leased[queue_id, tenant] = count
    known: Counter[tuple[int, str]] = Counter()
    for queue_id in unit.catalog.names:
        for tenant, count in unit.run(
            "SELECT tenant, leased FROM hf_tenants WHERE queue = ? AND leased <> 0", (queue_id,)
        ):
            known[queue_id, tenant] = count
    return {
        key: leased[key]
        for key in leased.keys() | known.keys()
        if leased[key] != known[key] and key[0] in unit.catalog.names
    }


def _lanes(unit: Unit, after: int, limit: int) -> tuple[list[int], int]:
    """Lanes with a wrong head, or that wait for a slot which has room and nobody knows."""
    found = unit.run(_LANES, (after, limit)).fetchall()
    wrong = []
    for id_, due_at, _, bar, queue_id, is_off in found:
        name = unit.catalog.names.get(queue_id)
        if name is None:
            continue
        if is_off or (bar > 0 and due_at is not None and _is_forgotten(unit, name, queue_id, bar)):
            wrong.append(id_)
    return wrong, found[-1][0] if len(found) == limit else 0


def _is_forgotten(unit: Unit, name: str, queue_id: int, slot: int) -> bool:
    known = unit.run(
        "SELECT wake_us IS NULL FROM hf_parks WHERE queue = ? AND slot = ?", (queue_id, slot)
    ).fetchone()
    if known is None:
        return True
    room = Room(unit, unit.catalog.lines[name].queue)
    room.load([slot])
    return bool(known[0]) and room.full((slot,)) is None


def _groups(
    unit: Unit, after: tuple[int, str], limit: int
) -> tuple[list[tuple[int, str]], tuple[int, str]]:
    """Groups of which the first could go, but is not exposed."""
    wrong: list[tuple[int, str]] = []
    for _ in range(limit):
        found = unit.run(_GROUPS, after).fetchone()
        if found is None:
            return wrong, (0, "")
        after = found
        if found[0] in unit.catalog.names and groups.is_misplaced(unit, *found):
            wrong.append(found)
    return wrong, after


def _parents(
    unit: Unit, after: tuple[str, int], limit: int
) -> tuple[dict[str, State | None], tuple[str, int]]:
    """Those that have ended, though children still wait for them who should not."""
    found = unit.run(_EDGES, (unit.namespace_id, *after, limit)).fetchall()
    parents: dict[str, State | None] = {}
    for parent, _, code, extra, _ in found:
        ended = None if code is None else STATES[code]
        if ended is not None and not ended.finished:
            continue
        wish = rows.NO_EXTRA if extra is None else rows.decode_extra(extra)
        if flow.parting_of(wish.after_on, wish.parent_death, ended) is not Parting.HELD:
            parents[parent] = ended
    return parents, found[-1][:2] if len(found) == limit else ("", 0)


def _strays(
    unit: Unit, after: tuple[int, walk.Cursor], limit: int
) -> tuple[list[int], tuple[int, walk.Cursor]]:
    """Waiting jobs that are not in the lane their queue's settings ask for."""
    seqs: list[int] = []
    for queue_id in sorted(queue_id for queue_id in unit.catalog.names if queue_id >= after[0]):
        start = after[1] if queue_id == after[0] else walk.START
        found, cursor = walk.page(unit, queue_id, start, limit - len(seqs))
        seqs += found
        if cursor is not None:
            return relane.strays(unit, seqs), (queue_id, cursor)
    return relane.strays(unit, seqs), (0, walk.START)
