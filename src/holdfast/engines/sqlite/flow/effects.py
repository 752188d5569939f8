"""Effects of a job's change on its group, lane, slots, tenant and children.

General changes go through `write_change` and `delete_job`. The other writers are enqueue, leasing
and the completion of many jobs at once, which call the parts they need. A plain job needs none of
this.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from msgspec.structs import replace

from holdfast.core import bounds, lifecycle
from holdfast.core.lifecycle import Change, ParentEffect
from holdfast.core.model import AfterOn, Job, Note, ParentDeath, State
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import dependencies, fairness, groups, lanes
from holdfast.engines.sqlite.flow.limits import release_slots
from holdfast.engines.sqlite.rows import FlowColumns, Row
from holdfast.engines.sqlite.schema import (
    FLOW_CHILDREN,
    FLOW_GROUP,
    FLOW_LANE,
    FLOW_PARENTS,
    FLOW_TENANT,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
)
from holdfast.engines.sqlite.transaction import QueueRow, Transaction

_FAMILY = FLOW_PARENTS | FLOW_CHILDREN
LeasedColumns = tuple[int, int | None, int, str | None, int | None]
"""(queue id, lane, flow, tenant, leased_at) of a leased job."""


def write_change(
    transaction: Transaction, row: Row, before: Job, change: Change, note: Note | None = None
) -> None:
    """Write a change of a job, and its effects."""
    queue_row = transaction.queues[change.job.queue]
    job = lifecycle.with_queue_expiry(change.job, queue_row.settings)
    if job is not change.job:
        change = change._replace(job=job)
    if not row[rows.FLOW] and job.group is None and not queue_row.has_lanes:
        rows.write_change(transaction, row, before, change, note=note)
        return
    columns = _flow_columns(transaction, row, before, job)
    rows.write_change(transaction, row, before, change, columns=columns, note=note)
    _release_place(transaction, row, is_leased=job.state is State.LEASED)
    changed_groups = set()
    if row[rows.GROUP] is not None and not before.has_ended:
        changed_groups.add((row[rows.QUEUE], row[rows.GROUP]))
    if job.group is not None and not job.has_ended:
        changed_groups.add((queue_row.id, job.group))
    for queue_id, group in changed_groups:
        groups.refresh(transaction, queue_id, group)
    if columns.lane is not None and job.state is State.WAITING:
        transaction.effects.lanes.add(columns.lane)
    if columns.flow & FLOW_CHILDREN and job.has_ended and not before.has_ended:
        transaction.effects.ended.append((row[rows.SEQ], job.id, job.state))


def delete_job(transaction: Transaction, row: Row) -> None:
    """Delete a job with its edges, and apply the effects."""
    rows.delete(transaction, row[rows.SEQ], row[rows.PARTS])
    bits, has_ended = row[rows.FLOW], row[rows.STATE] >= rows.DONE
    if not bits:
        return
    _release_place(transaction, row, is_leased=False)
    if bits & FLOW_PARENTS:
        dependencies.close_all(transaction, row[rows.SEQ])
    has_queue = row[rows.QUEUE] in transaction.queue_names
    if row[rows.GROUP] is not None and not has_ended and has_queue:
        groups.refresh(transaction, row[rows.QUEUE], row[rows.GROUP])
    if bits & FLOW_CHILDREN:
        if has_ended:
            dependencies.note_lost_parent(transaction, row[rows.ID])
        else:
            transaction.effects.ended.append((row[rows.SEQ], row[rows.ID], None))


def apply_deferred(transaction: Transaction) -> None:
    """Before the commit: release or cancel children, free slots, refresh lanes."""
    deferred = transaction.effects
    # The children of the oldest job come first.
    deferred.ended.sort(key=itemgetter(0))
    while deferred.ended and deferred.cascaded < bounds.CASCADE_MAX:
        ended = {id_: state for _, id_, state in deferred.ended}
        deferred.ended.clear()
        _cascade(transaction, ended)
    if deferred.freed:
        release_slots(transaction, deferred.freed)
        deferred.freed.clear()
    if deferred.busy:
        fairness.note_ended(transaction, deferred.busy)
        deferred.busy.clear()
    if deferred.lanes:
        lanes.refresh(transaction, deferred.lanes)
        deferred.lanes.clear()


def flow_bits(lane: int | None, queue_row: QueueRow, group: str | None) -> int:
    """The flow bits of a waiting job, without those of its parents and children."""
    bits = 0 if lane is None else FLOW_LANE
    if queue_row.settings.fairness != "off":
        bits |= FLOW_TENANT
    return bits if group is None else bits | FLOW_GROUP


def end_lease(transaction: Transaction, leased: LeasedColumns) -> None:
    """Record that a lease ended: its slots become free, its tenant is charged for the time."""
    queue_id, lane, bits, tenant, leased_at = leased
    if queue_id not in transaction.queue_names:
        # A dropped queue's lanes and tenants are deleted with it, but slots are shared.
        if lane is not None:
            release_slots(transaction, {lane: 1})
        return
    deferred = transaction.deferred or transaction.effects
    if lane is not None:
        deferred.freed[lane] = deferred.freed.get(lane, 0) + 1
    if bits & FLOW_TENANT:
        busy = deferred.busy.setdefault((queue_id, tenant or ""), [0, 0])
        busy[0] += 1
        busy[1] += max(0, transaction.now - (transaction.now if leased_at is None else leased_at))


def cancel_orphan(transaction: Transaction, seq: int, parent: str, ended: State | None) -> None:
    """Cancel a job because its parent ended in this state, or was deleted (None)."""
    row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
    job = rows.to_job(transaction, row)
    dependencies.close_all(transaction, seq)
    if job is not None:
        write_change(transaction, row, job, lifecycle.orphan(job, parent, ended, transaction.now))


@lru_cache
def parent_effect(
    after_on: AfterOn, parent_death: ParentDeath, ended: State | None
) -> ParentEffect:
    """Whether a child with these settings is held, released or cancelled when a parent ends."""
    child = Job(id="", task="", queue="", after_on=after_on, parent_death=parent_death)
    return lifecycle.after_parent(child, ended)


def _flow_columns(transaction: Transaction, row: Row, before: Job, job: Job) -> FlowColumns:
    bits, seq, queue_row = row[rows.FLOW], row[rows.SEQ], transaction.queues[job.queue]
    if job.state is State.LEASED:
        return FlowColumns(bits, row[rows.LANE], 0)
    if job.state.finished:
        return FlowColumns(bits & _FAMILY)
    holds = HOLD_PARENT * dependencies.count_open(transaction, seq) if bits & FLOW_PARENTS else 0
    lane = None
    if queue_row.has_lanes:
        with_payload = _with_payload(transaction, row, before, job)
        lane = lanes.find_lane(transaction, with_payload, queue_row, strict=False)
    # It is behind until its group is refreshed.
    holds += HOLD_BEHIND if job.group is not None else 0
    holds += HOLD_LANED if lane is not None else 0
    return FlowColumns(bits & _FAMILY | flow_bits(lane, queue_row, job.group), lane, holds)


def _with_payload(transaction: Transaction, row: Row, before: Job, job: Job) -> Job:
    """Read the payload, which the verdict did not need: a limit's key may depend on it."""
    if job.payload is not before.payload:
        return job
    payload = row[rows.PAYLOAD]
    return replace(
        job, payload=rows.large_payload(transaction, row[rows.SEQ]) if payload is None else payload
    )


def _release_place(transaction: Transaction, row: Row, *, is_leased: bool) -> None:
    """Give up the place in a lane, or the lease, that the job had before the change."""
    state, lane = row[rows.STATE], row[rows.LANE]
    if state == rows.WAITING and lane is not None and row[rows.QUEUE] in transaction.queue_names:
        transaction.effects.lanes.add(lane)
    if state == rows.LEASED and not is_leased:
        tenant, leased_at = row[rows.TENANT], row[rows.LEASED_AT]
        end_lease(transaction, (row[rows.QUEUE], lane, row[rows.FLOW], tenant, leased_at))


def _cascade(transaction: Transaction, parents: dict[str, State | None]) -> None:
    """Release or cancel the children of ended parents, in that order, up to CASCADE_MAX edges."""
    deferred = transaction.effects
    edges = dependencies.children_of(
        transaction, list(parents), bounds.CASCADE_MAX - deferred.cascaded
    )
    deferred.cascaded += len(edges)
    closed = []
    cancelled = set()
    for parent, child, state, extra in edges:
        stored = rows.NO_EXTRA if extra is None else rows.decode_extra(extra)
        effect = parent_effect(stored.after_on, stored.parent_death, parents[parent])
        if child in cancelled or effect is ParentEffect.HELD:
            continue
        if effect is ParentEffect.CANCELLED and state == rows.WAITING:
            cancel_orphan(transaction, child, parent, parents[parent])
            cancelled.add(child)
        else:
            closed.append((parent, child))
    deferred.lanes.update(
        dependencies.close(transaction, [edge for edge in closed if edge[1] not in cancelled])
    )
    for parent, ended in parents.items():
        if ended is None:
            dependencies.note_lost_parent(transaction, parent)
