"""The lanes of queues with limits or fairness: which one a job is in, and who is first there.

A lane is of one priority: a line of jobs by (due_at, place). Its row says who is first, so that
whoever leases compares lanes and not jobs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core import lanes
from holdfast.core.flow import SlotKey
from holdfast.core.lanes import Lane
from holdfast.core.model import Job, NewJob
from holdfast.engines.sqlite.aftermath import Aftermath, LaneName
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.picture import read_slots
from holdfast.engines.sqlite.unit import Unit

_FIRST = (
    "SELECT due_at, place FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = hf_lanes.queue AND state = 0 AND holds <> 0 AND holds = 1"
    " AND lane = hf_lanes.id ORDER BY due_at, place LIMIT 1"
)
# One that sleeps or was empty is open: whoever leases bars it again if it must not go.
_REFRESH = (
    f"UPDATE hf_lanes SET (due_at, place) = ({_FIRST}),"
    " bar = iif(bar = -1 OR due_at IS NULL, 0, bar) WHERE id = ?"
)
_BY_NAME = "SELECT id FROM hf_lanes WHERE queue = ? AND tenant = ? AND name = ? AND rank = ?"
_UNKNOWN = (-1,)


def find(
    unit: Unit, aftermath: Aftermath, job: NewJob | Job, line: Line, *, strict: bool
) -> int | None:
    """The lane the job waits in, made if there is none yet; None where it needs none."""
    lane = lanes.lane_of(job, line.queue, strict=strict) if line.laned else None
    if lane is None:
        return None
    known = _name(lane, line, job.priority)
    id_ = aftermath.lane_ids.get(known)
    if id_ is None:
        id_ = unit.run(_BY_NAME, known).get
        if id_ is None:
            id_ = _make(unit, lane, line, known)
        aftermath.lane_ids[known] = id_
    return id_


def is_of(unit: Unit, job: Job, line: Line, id: int | None) -> bool:
    """Is this the lane that the job should wait in, or None where it needs none?"""
    lane = lanes.lane_of(job, line.queue)
    if lane is None or id is None:
        return lane is None and id is None
    return bool(unit.run(_BY_NAME, _name(lane, line, job.priority)).get == id)


def _name(lane: Lane, line: Line, priority: int) -> LaneName:
    slots = [(slot.limit, slot.key) for slot in lane.slots]
    name = msgspec.json.encode((lane.task, lane.tenant, slots)).decode()
    return line.id, lane.tenant or "", name, -priority


def _make(unit: Unit, lane: Lane, line: Line, known: LaneName) -> int:
    queue_id, tenant, name, rank = known
    slots = [_slot(unit, slot) for slot in lane.slots]
    turn = 0
    if line.queue.fairness == "shares":
        turn = unit.run(
            "SELECT turn FROM hf_tenants WHERE queue = ? AND tenant = ?", (queue_id, tenant)
        ).get
    # A number that was never used: jobs may still name a lane that was pruned.
    id_ = unit.numbers(1)
    unit.run(
        "INSERT INTO hf_lanes(id, queue, rank, turn, tenant, task, slots, name)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, queue_id, rank, turn or 0, tenant, lane.task, str(slots), name),
    )
    return id_


def _slot(unit: Unit, slot: SlotKey) -> int:
    key = (unit.namespace_id, slot.limit, slot.key)
    id_: int | None = unit.run(
        "SELECT id FROM hf_slots WHERE ns = ? AND name = ? AND key = ?", key
    ).get
    if id_ is None:
        id_ = unit.numbers(1)
        unit.run("INSERT INTO hf_slots(id, ns, name, key) VALUES (?, ?, ?, ?)", (id_, *key))
    return id_


def slots_of(unit: Unit, lane: int) -> tuple[int, ...]:
    """The slots of a lane, which a leased job of it holds."""
    known = unit.picture.lane_slots.get(lane)
    return load_slots(unit, [lane])[lane] if known is None else known


def load_slots(unit: Unit, ids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The slots of these lanes."""
    picture = unit.picture
    slots = {id_: picture.lane_slots.get(id_, _UNKNOWN) for id_ in ids}
    unknown = [id_ for id_, known in slots.items() if known is _UNKNOWN]
    if unknown:
        found = unit.run(
            "SELECT id, slots FROM hf_lanes WHERE id IN (SELECT value FROM json_each(?))",
            (str(unknown),),
        )
        texts = dict(found.fetchall())
        for id_ in unknown:
            slots[id_] = read_slots(texts.get(id_, "[]"))
            picture.keep_slots(id_, slots[id_])
    return slots


def are_alike(unit: Unit, one: int | None, other: int | None) -> bool:
    """The same lane, but for its priority?"""
    if one == other or one is None or other is None:
        return one == other
    names = unit.run("SELECT count(DISTINCT name) FROM hf_lanes WHERE id IN (?, ?)", (one, other))
    return bool(names.get == 1)


def refresh(unit: Unit, ids: Iterable[int]) -> None:
    picture, given = unit.picture, [(id_,) for id_ in ids]
    for (id_,) in given:
        picture.forget_lane(id_)
    unit.connection.executemany(_REFRESH, given)
