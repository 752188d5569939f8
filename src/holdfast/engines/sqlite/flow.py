"""What a change of a job means for its group, its lane, its slots, its tenant and its children.

The one general write goes through `keep` and `remove`; leasing and the completion of many at once
are the only other writers, and use the parts. Plain jobs pass without any of this.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from msgspec.structs import replace

from holdfast.core import lifecycle, limits
from holdfast.core.lifecycle import Change, Parting
from holdfast.core.model import STATES, AfterOn, Job, Note, ParentDeath, State
from holdfast.engines.sqlite import edges, fair, groups, lanes, rows, slots
from holdfast.engines.sqlite.aftermath import Aftermath
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import (
    FLOW_CHILDREN,
    FLOW_GROUP,
    FLOW_LANE,
    FLOW_PARENTS,
    FLOW_TENANT,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
)
from holdfast.engines.sqlite.rows import Row, Stand
from holdfast.engines.sqlite.unit import Unit

_LASTING = FLOW_PARENTS | FLOW_CHILDREN
Held = tuple[int, int | None, int, str | None, int | None]
"""Of a leased job: its queue, lane, flow, tenant, and since when."""


def keep(unit: Unit, row: Row, before: Job, change: Change, note: Note | None = None) -> None:
    """Write the change, and see to what it means."""
    job = change.job
    line = unit.catalog.lines[job.queue]
    if not row[rows.FLOW] and job.group is None and not line.laned:
        rows.keep(unit, row, before, change, note=note)
        return
    stand = _stand(unit, row, before, job)
    rows.keep(unit, row, before, change, stand=stand, note=note)
    _leave(unit, row, is_leased=job.state is State.LEASED)
    joined = set()
    if row[rows.GROUP] is not None and not before.state.finished:
        joined.add((row[rows.QUEUE], row[rows.GROUP]))
    if job.group is not None and not job.state.finished:
        joined.add((line.id, job.group))
    aftermath = aftermath_of(unit)
    for queue_id, group in joined:
        groups.refresh(unit, aftermath, queue_id, group)
    if stand.lane is not None and job.state is State.WAITING:
        aftermath.lanes.add(stand.lane)
    if stand.flow & FLOW_CHILDREN and job.state.finished and not before.state.finished:
        aftermath.ended.append((row[rows.SEQ], job.id, job.state))


def remove(unit: Unit, row: Row) -> None:
    """The job is gone, with all that it waited for."""
    rows.remove(unit, row[rows.SEQ], row[rows.PARTS])
    bits, state = row[rows.FLOW], STATES[row[rows.STATE]]
    if not bits:
        return
    _leave(unit, row, is_leased=False)
    aftermath = aftermath_of(unit)
    if bits & FLOW_PARENTS:
        edges.close_all(unit, row[rows.SEQ])
    is_there = row[rows.QUEUE] in unit.catalog.names
    if row[rows.GROUP] is not None and not state.finished and is_there:
        groups.refresh(unit, aftermath, row[rows.QUEUE], row[rows.GROUP])
    if bits & FLOW_CHILDREN:
        if state.finished:
            edges.forsake(unit, row[rows.ID])
        else:
            aftermath.ended.append((row[rows.SEQ], row[rows.ID], None))


def aftermath_of(unit: Unit) -> Aftermath:
    if unit.aftermath is None:
        unit.aftermath = Aftermath()
        unit.settle_up = settle_up
    return unit.aftermath


def settle_up(unit: Unit) -> None:
    """Before the commit: children are judged, slots given back, lanes told who is first."""
    aftermath = aftermath_of(unit)
    # Of those that ended together the oldest is told of first, and its children end first.
    aftermath.ended.sort(key=itemgetter(0))
    while aftermath.ended and aftermath.parted < limits.CASCADE_MAX:
        ended = {id_: state for _, id_, state in aftermath.ended}
        aftermath.ended.clear()
        _part(unit, aftermath, ended)
    if aftermath.freed:
        slots.give_back(unit, aftermath.freed)
        aftermath.freed.clear()
    if aftermath.busy:
        fair.ended(unit, aftermath.busy)
        aftermath.busy.clear()
    if aftermath.lanes:
        lanes.refresh(unit, aftermath.lanes)
        aftermath.lanes.clear()


def bits_of(lane: int | None, line: Line, group: str | None) -> int:
    """The flow bits of a waiting job, but for its family's."""
    bits = 0 if lane is None else FLOW_LANE
    if line.queue.fairness != "off":
        bits |= FLOW_TENANT
    return bits if group is None else bits | FLOW_GROUP


def give_back(unit: Unit, aftermath: Aftermath, held: Held) -> None:
    """A lease is over."""
    queue_id, lane, bits, tenant, leased_at = held
    if queue_id not in unit.catalog.names:
        # A queue that is being dropped takes its lanes and tenants along, but not its slots.
        if lane is not None:
            slots.give_back(unit, {lane: 1})
        return
    if lane is not None:
        aftermath.freed[lane] = aftermath.freed.get(lane, 0) + 1
    if bits & FLOW_TENANT:
        busy = aftermath.busy.setdefault((queue_id, tenant or ""), [0, 0])
        busy[0] += 1
        busy[1] += max(0, unit.now - (unit.now if leased_at is None else leased_at))


def _stand(unit: Unit, row: Row, before: Job, job: Job) -> Stand:
    bits, seq, line = row[rows.FLOW], row[rows.SEQ], unit.catalog.lines[job.queue]
    if job.state is State.LEASED:
        return Stand(bits, row[rows.LANE], 0)
    if job.state.finished:
        return Stand(bits & _LASTING)
    holds = HOLD_PARENT * edges.count_open(unit, seq) if bits & FLOW_PARENTS else 0
    lane = None
    if line.laned:
        lane = lanes.find(
            unit, aftermath_of(unit), _whole(unit, row, before, job), line, strict=False
        )
    # Behind until its group says otherwise.
    holds += HOLD_BEHIND if job.group is not None else 0
    holds += HOLD_LANED if lane is not None else 0
    return Stand(bits & _LASTING | bits_of(lane, line, job.group), lane, holds)


def _whole(unit: Unit, row: Row, before: Job, job: Job) -> Job:
    """With its payload, which a limit may count by, though no verdict looks at it."""
    if job.payload is not before.payload:
        return job
    payload = row[rows.PAYLOAD]
    return replace(job, payload=rows.outside(unit, row[rows.SEQ]) if payload is None else payload)


def _leave(unit: Unit, row: Row, *, is_leased: bool) -> None:
    """What the job held before it changed."""
    state, lane = row[rows.STATE], row[rows.LANE]
    if state == rows.WAITING and lane is not None and row[rows.QUEUE] in unit.catalog.names:
        aftermath_of(unit).lanes.add(lane)
    if state == rows.LEASED and not is_leased:
        tenant, leased_at = row[rows.TENANT], row[rows.LEASED_AT]
        held = (row[rows.QUEUE], lane, row[rows.FLOW], tenant, leased_at)
        give_back(unit, aftermath_of(unit), held)


def _part(unit: Unit, aftermath: Aftermath, parents: dict[str, State | None]) -> None:
    """Judge the children of those that ended, in that order, as far as the bound allows."""
    edges_ = edges.of_parents(unit, list(parents), limits.CASCADE_MAX - aftermath.parted)
    aftermath.parted += len(edges_)
    closed = []
    orphans = set()
    for parent, child, state, extra in edges_:
        wish = rows.NO_EXTRA if extra is None else rows.decode_extra(extra)
        parting = parting_of(wish.after_on, wish.parent_death, parents[parent])
        if child in orphans or parting is Parting.HELD:
            continue
        if parting is Parting.CANCELLED and state == rows.WAITING:
            orphan(unit, child, parent, parents[parent])
            orphans.add(child)
        else:
            closed.append((parent, child))
    aftermath.lanes.update(edges.close(unit, [edge for edge in closed if edge[1] not in orphans]))
    for parent, ended in parents.items():
        if ended is None:
            edges.forsake(unit, parent)


@lru_cache
def parting_of(after_on: AfterOn, parent_death: ParentDeath, ended: State | None) -> Parting:
    child = Job(id="", task="", queue="", after_on=after_on, parent_death=parent_death)
    return lifecycle.after_parent(child, ended)


def orphan(unit: Unit, seq: int, parent: str, ended: State | None) -> None:
    row = unit.run(rows.BY_SEQ, (seq,)).fetchone()
    job = rows.job_of(unit, row)
    edges.close_all(unit, seq)
    if job is not None:
        keep(unit, row, job, lifecycle.orphan(job, parent, ended, unit.now))
