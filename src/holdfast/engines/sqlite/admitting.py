"""One new job's way into the store: its row, its key, its group, its lane and its parents."""

from __future__ import annotations

from collections.abc import Container, Sequence

from holdfast.core import codec, meeting
from holdfast.core.lifecycle import Parting
from holdfast.core.model import NO_OVERRIDES, STATES, NewJob, State
from holdfast.engines.sqlite import edges, flow, groups, lanes, rows
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import (
    FLOW_CHILDREN,
    FLOW_PARENTS,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
)
from holdfast.engines.sqlite.rows import Stand
from holdfast.engines.sqlite.schema import PART_AFTER, PART_PAYLOAD
from holdfast.engines.sqlite.unit import Unit

COLUMNS = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload) VALUES
"""
ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
KNOWN = " ON CONFLICT(id, ns) DO NOTHING"
INSERT_IN_FLOW = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload, flow, lane, holds)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(id, ns) DO NOTHING
"""


def is_plain(new: NewJob, line: Line) -> bool:
    """Does nothing but its time and priority decide when it starts?"""
    return new.group is None and not line.laned and not new.after


def values_of(unit: Unit, seq: int, new: NewJob, line: Line) -> tuple[object, ...]:
    now = unit.now
    payload = new.payload
    inline = len(payload) <= rows.INLINE_MAX
    plain = (
        new.content_type == codec.JSON
        and not new.labels
        and not new.headers
        and new.overrides is NO_OVERRIDES
        and new.after_on == "success"
        and new.parent_death == "cancel"
    )
    return (
        seq,
        unit.catalog.namespace_id,
        line.id,
        -new.priority,
        now + new.delay_ms,
        seq,
        None if new.expires_ms is None else now + new.expires_ms,
        (0 if inline else PART_PAYLOAD) | (PART_AFTER if new.after else 0),
        now,
        new.overrides.lease_ms,
        new.id,
        new.task,
        new.key,
        new.tenant,
        new.group,
        None if plain else rows.encode_extra(new),
        payload if inline else None,
    )


def stand_of(unit: Unit, new: NewJob, line: Line, *, strict: bool) -> Stand:
    """As it enters, but for its family; in a group it is behind until the group is asked."""
    lane = lanes.find(unit, flow.aftermath_of(unit), new, line, strict=strict)
    holds = HOLD_LANED if lane is not None else 0
    holds += HOLD_BEHIND if new.group is not None else 0
    return Stand(flow.bits_of(lane, line, new.group), lane, holds)


def admit(unit: Unit, new: NewJob, line: Line) -> None:
    """Nobody has its id or its key, and its parents are there."""
    seq = unit.numbers(1)
    ids = tuple(dict.fromkeys(new.after))
    waits_for, lost = _family(unit, new, ids)
    stand = stand_of(unit, new, line, strict=False)
    bits = stand.flow | (FLOW_PARENTS if ids else 0)
    if unit.forsaken and edges.has_children(unit, new.id):
        bits |= FLOW_CHILDREN
    holds = stand.holds + HOLD_PARENT * len(waits_for)
    unit.run(INSERT_IN_FLOW, (*values_of(unit, seq, new, line), bits, stand.lane, holds))
    assert unit.changes() == 1, "the id was looked for in this transaction"
    if len(new.payload) > rows.INLINE_MAX:
        keep_outside(unit, seq, new.payload)
    if new.key is not None:
        unit.run(
            "INSERT OR REPLACE INTO hf_keys(queue, key, ns, id, until) VALUES (?, ?, ?, ?, ?)",
            (line.id, new.key, unit.namespace_id, new.id, unit.now + new.key_window_ms),
        )
    if ids:
        rows.keep_after(unit, seq, ids)
        edges.add(unit, seq, waits_for)
    if new.group is not None:
        groups.refresh(unit, flow.aftermath_of(unit), line.id, new.group)
    if stand.lane is not None:
        flow.aftermath_of(unit).lanes.add(stand.lane)
    if lost is not None:
        flow.orphan(unit, seq, *lost)


def keep_outside(unit: Unit, seq: int, payload: bytes) -> None:
    unit.run("INSERT INTO hf_payloads(seq, data) VALUES (?, ?)", (seq, payload))


def is_known(unit: Unit, id: str) -> bool:
    row = rows.fetch(unit, id)
    if row is not None and row[rows.QUEUE] not in unit.catalog.names:
        # Left behind by a queue that is being dropped: it must not keep a new job out.
        flow.remove(unit, row)
        return False
    return row is not None


def holder_of(unit: Unit, new: NewJob, done: str | None = None) -> str | None:
    """The id of the job that holds this key: unfinished, or still within its window. `done` is
    about to be finished."""
    if new.key is None:
        return None
    held = unit.run(
        "SELECT k.id, k.until > ?3 OR (ifnull(j.state, 2) < 2 AND k.id IS NOT ?4) FROM hf_keys k"
        " LEFT JOIN hf_jobs j ON j.id = k.id AND j.ns = k.ns WHERE k.queue = ?1 AND k.key = ?2",
        (unit.catalog.lines[new.queue].id, new.key, unit.now, done),
    ).fetchone()
    return held[0] if held is not None and held[1] else None


def missing_parent(unit: Unit, new: NewJob, coming: Container[str] = ()) -> str | None:
    """The first that is neither there nor on its way."""
    if not new.after:
        return None
    there = edges.parents_of(unit, new.after)
    return next((id_ for id_ in new.after if id_ not in there and id_ not in coming), None)


def arrange(unit: Unit, jobs: Sequence[NewJob]) -> meeting.Arrangement:
    if not any(new.after for new in jobs):
        return list(range(len(jobs))), {}
    there = edges.parents_of(unit, [new.id for new in jobs if _is_storable(new.id)])
    return meeting.arrange(jobs, there)


def _is_storable(id: str) -> bool:
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _family(
    unit: Unit, new: NewJob, ids: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, State] | None]:
    """Those it waits for; or the first that ended as it must not, and how."""
    if not ids:
        return (), None
    states = edges.parents_of(unit, ids)
    waits_for = []
    for parent in ids:
        state = STATES[states[parent]]
        parting = Parting.HELD
        if state.finished:
            parting = flow.parting_of(new.after_on, new.parent_death, state)
        if parting is Parting.CANCELLED:
            return (), (parent, state)
        if parting is Parting.HELD:
            waits_for.append(parent)
    return tuple(waits_for), None
