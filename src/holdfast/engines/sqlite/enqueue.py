"""Enqueue: simple jobs in a few multi-row statements, all others one by one."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from holdfast.core import checks, lifecycle
from holdfast.core.dependencies import Arrangement, arrange, can_enqueue_follow_ups
from holdfast.core.lanes import lane_of
from holdfast.core.lifecycle import ParentEffect, apply_key_policy, is_key_held
from holdfast.core.model import NO_OVERRIDES, STATES, NewJob, Queue, Receipt, State, Status
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import dependencies, effects, groups, lanes
from holdfast.engines.sqlite.rows import FlowColumns
from holdfast.engines.sqlite.schema import (
    FLOW_CHILDREN,
    FLOW_PARENTS,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
    PART_AFTER,
    PART_PAYLOAD,
    PART_QUEUE_EXPIRY,
)
from holdfast.engines.sqlite.transaction import QueueRow, Transaction
from holdfast.errors import UsageError

_COLUMNS = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload) VALUES
"""
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_IF_NEW = " ON CONFLICT(id, ns) DO NOTHING"
_WIDTH = _ROW.count("?")
_CHUNK = 25
_INSERT_IN_FLOW = """
INSERT INTO hf_jobs(seq, ns, queue, rank, due_at, place, expires_at, parts, created_at, lease_ms,
  id, task, key, tenant, grp, extra, payload, flow, lane, holds)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(id, ns) DO NOTHING
"""


def enqueue(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Insert the jobs; one receipt for each, in the order given."""
    transaction.notifies = True
    queues = transaction.queues
    is_awaited = transaction.has_lost_parents and dependencies.are_awaited(
        transaction, [new.id for new in jobs]
    )
    if (
        not transaction.is_dropping
        and not is_awaited
        and all(map(_is_simple, jobs, repeat(queues)))
    ):
        receipts = _enqueue_many(transaction, jobs)
        if receipts is not None:
            return receipts
    depths: dict[int, int] = {}
    order, circular = _arrange(transaction, jobs)
    by_place: dict[int, Receipt] = {}
    for place in order:
        new = jobs[place]
        queue_row = queues.get(new.queue)
        try:
            checks.check_new(new, queue_row.settings if queue_row else None)
            assert queue_row is not None
            by_place[place] = _enqueue_one(transaction, new, queue_row, depths, circular.get(place))
        except UsageError as error:
            by_place[place] = checks.refusal(new.id, error)
    return [by_place[place] for place in range(len(jobs))]


def enqueue_follow_ups(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    """Insert the follow-up jobs of a completed job; known ids and held keys are skipped."""
    for place in _arrange(transaction, jobs)[0]:
        new = jobs[place]
        if not is_known(transaction, new.id) and _find_holder(transaction, new) is None:
            _insert_one(transaction, new, transaction.queues[new.queue])


def accepts_follow_ups(transaction: Transaction, jobs: Sequence[NewJob], done: str) -> bool:
    """True if all these follow-ups would be accepted once the job `done` is finished."""
    return not jobs or can_enqueue_follow_ups(
        jobs,
        _arrange(transaction, jobs),
        queue_of=lambda name: transaction.queues[name].settings,
        is_known=lambda id_: is_known(transaction, id_),
        is_held=lambda new: _find_holder(transaction, new, done) is not None,
        is_orphan=lambda new, coming: _missing_parent(transaction, new, coming) is not None,
    )


def is_known(transaction: Transaction, id: str) -> bool:
    """True if a job has this id. One left behind by a dropped queue is deleted and not counted."""
    row = rows.fetch(transaction, id)
    if row is not None and row[rows.QUEUE] not in transaction.queue_names:
        effects.delete_job(transaction, row)
        return False
    return row is not None


def _is_simple(new: NewJob, queues: dict[str, QueueRow]) -> bool:
    """True if only the job's id decides whether it is accepted."""
    if new.key is not None or new.after:
        return False
    queue_row = queues.get(new.queue)
    return queue_row is None or (
        queue_row.settings.accepting and queue_row.settings.max_depth is None
    )


def _enqueue_many(transaction: Transaction, jobs: Sequence[NewJob]) -> list[Receipt] | None:
    """Insert simple jobs together; a seq that is missing afterwards was refused or a duplicate.

    None, with nothing written, if their order matters: a limit refuses one that may be a
    duplicate, or two have the same id.
    """
    queues = transaction.queues
    first = transaction.allocate(len(jobs))
    values: list[object] = []
    in_flow: list[tuple[tuple[object, ...], FlowColumns]] = []
    joined: dict[tuple[int, str], None] = {}
    refused: dict[int, Receipt] = {}
    for seq, new in enumerate(jobs, start=first):
        queue_row = queues.get(new.queue)
        try:
            checks.check_new(new, queue_row.settings if queue_row else None)
            assert queue_row is not None
        except UsageError as error:
            refused[seq] = checks.refusal(new.id, error)
            continue
        if new.group is None and not queue_row.has_lanes:
            values += _values(transaction, seq, new, queue_row)
            continue
        try:
            columns = _flow_columns(transaction, new, queue_row, strict=True)
        except UsageError:
            return None
        in_flow.append((_values(transaction, seq, new, queue_row), columns))
        if new.group is not None:
            joined[queue_row.id, new.group] = None
    if values and in_flow and len({new.id for new in jobs}) < len(jobs):
        return None
    absent: set[int] = set()
    if _insert(transaction, values) + _insert_in_flow(transaction, in_flow) != len(jobs):
        # The range is bounded, because lanes were given later numbers.
        found = transaction.run(
            "SELECT seq FROM hf_jobs WHERE seq >= ? AND seq < ?", (first, first + len(jobs))
        ).fetchall()
        absent = set(range(first, first + len(jobs))) - {seq for (seq,) in found}
    if joined:
        transaction.effects.lanes.update(groups.expose_first(transaction, joined))
    for seq, new in enumerate(jobs, start=first):
        if len(new.payload) > rows.INLINE_MAX and seq not in absent:
            rows.write_large_payload(transaction, seq, new.payload)
    if not absent:
        return [
            Receipt(id=new.id, status=Status.NEW, seq=seq)
            for seq, new in enumerate(jobs, start=first)
        ]
    return [
        refused.get(seq)
        or (
            Receipt(id=new.id, status=Status.DUPLICATE)
            if seq in absent
            else Receipt(id=new.id, status=Status.NEW, seq=seq)
        )
        for seq, new in enumerate(jobs, start=first)
    ]


def _insert(transaction: Transaction, values: list[object]) -> int:
    """Insert rows, several with one statement; returns how many were new."""
    before = transaction.connection.total_changes()
    for start in range(0, len(values), _CHUNK * _WIDTH):
        chunk = values[start : start + _CHUNK * _WIDTH]
        transaction.run(_insert_statement(len(chunk) // _WIDTH), chunk)
    return transaction.connection.total_changes() - before


@lru_cache(_CHUNK)
def _insert_statement(rows: int) -> str:
    return _COLUMNS + ", ".join([_ROW] * rows) + _IF_NEW  # sql: the same row many times


def _insert_in_flow(
    transaction: Transaction, jobs: list[tuple[tuple[object, ...], FlowColumns]]
) -> int:
    """Insert rows with flow columns; returns how many were new."""
    if not jobs:
        return 0
    before = transaction.connection.total_changes()
    transaction.connection.executemany(
        _INSERT_IN_FLOW, [(*values, *columns) for values, columns in jobs]
    )
    transaction.effects.lanes.update(
        columns.lane for _, columns in jobs if columns.lane is not None
    )
    return transaction.connection.total_changes() - before


def _values(
    transaction: Transaction, seq: int, new: NewJob, queue_row: QueueRow
) -> tuple[object, ...]:
    """The columns of `_COLUMNS`."""
    now, queue = transaction.now, queue_row.settings
    has_expiry = new.expires_ms is not None or queue.expires_ms is not None
    payload = new.payload
    inline = len(payload) <= rows.INLINE_MAX
    plain = (
        not new.labels
        and not new.headers
        and new.overrides is NO_OVERRIDES
        and new.after_on == "success"
        and new.parent_death == "cancel"
    )
    return (
        seq,
        transaction.namespace_id,
        queue_row.id,
        -new.priority,
        now + new.delay_ms,
        seq,
        _expires_at(new, queue, now) if has_expiry else None,
        (0 if inline else PART_PAYLOAD)
        | (PART_AFTER if new.after else 0)
        | (PART_QUEUE_EXPIRY if has_expiry and new.expires_ms is None else 0),
        now,
        new.overrides.lease_ms,
        new.id,
        new.task,
        new.key,
        new.tenant,
        new.group,
        rows.encode_type(new.content_type) if plain else rows.encode_extra(new),
        payload if inline else None,
    )


def _expires_at(new: NewJob, queue: Queue, now: int) -> int | None:
    return lifecycle.with_queue_expiry(lifecycle.admit(new, 0, now), queue).expires_at


def _flow_columns(
    transaction: Transaction, new: NewJob, queue_row: QueueRow, *, strict: bool
) -> FlowColumns:
    """Lane and group of a new job, without its parents. It is held as behind until its group is
    checked.
    """
    lane = lanes.find_lane(transaction, new, queue_row, strict=strict)
    holds = HOLD_LANED if lane is not None else 0
    holds += HOLD_BEHIND if new.group is not None else 0
    return FlowColumns(effects.flow_bits(lane, queue_row, new.group), lane, holds)


def _enqueue_one(
    transaction: Transaction,
    new: NewJob,
    queue_row: QueueRow,
    depths: dict[int, int],
    circle: str | None,
) -> Receipt:
    queue = queue_row.settings
    if is_known(transaction, new.id):
        return Receipt(id=new.id, status=Status.DUPLICATE)
    if circle is not None:
        raise checks.circular(new.id, circle)
    holder = _find_holder(transaction, new)
    if holder is not None:
        _update_holder(transaction, holder.id, new, queue)
        return Receipt(id=holder.id, status=Status.DUPLICATE, seq=holder.seq)
    parent = _missing_parent(transaction, new)
    if parent is not None:
        raise checks.unknown_parent(new.id, parent)
    lane_of(new, queue, strict=True)
    if queue.max_depth is not None and queue_row.id not in depths:
        depths[queue_row.id] = _depth(transaction, queue_row, queue.max_depth)
    waiting = depths.get(queue_row.id, 0)
    checks.check_room(queue, waiting)
    seq = _insert_one(transaction, new, queue_row)
    # A child of a failed parent was cancelled at once and does not wait: count again.
    depths.pop(queue_row.id, None) if new.after else depths.update({queue_row.id: waiting + 1})
    return Receipt(id=new.id, status=Status.NEW, seq=seq)


def _arrange(transaction: Transaction, jobs: Sequence[NewJob]) -> Arrangement:
    """The order in which to insert the jobs, parents first, and the jobs in a dependency cycle."""
    if not any(new.after for new in jobs):
        return list(range(len(jobs))), {}
    known = dependencies.states_of(transaction, [new.id for new in jobs if _is_storable(new.id)])
    return arrange(jobs, known)


def _is_storable(id: str) -> bool:
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return True


class _KeyHolder(NamedTuple):
    """The job that holds a key; `seq` is None if it is already deleted."""

    id: str
    seq: int | None


def _find_holder(
    transaction: Transaction, new: NewJob, done: str | None = None
) -> _KeyHolder | None:
    """The job that holds this key. The job `done` counts as finished."""
    if new.key is None:
        return None
    found = transaction.run(
        "SELECT k.id, j.seq, k.until, ifnull(j.state, 2) < 2 AND k.id IS NOT ?3 FROM hf_keys k"
        " LEFT JOIN hf_jobs j ON j.id = k.id AND j.ns = k.ns WHERE k.queue = ?1 AND k.key = ?2",
        (transaction.queues[new.queue].id, new.key, done),
    ).fetchone()
    if found is None:
        return None
    id_, seq, until, unfinished = found
    is_held = is_key_held(new, until=until, now=transaction.now, unfinished=bool(unfinished))
    return _KeyHolder(id_, seq) if is_held else None


def _update_holder(transaction: Transaction, holder: str, new: NewJob, queue: Queue) -> None:
    """Apply the new job's key policy to the waiting job that holds its key."""
    row = rows.fetch(transaction, holder)
    if row is None or row[rows.STATE] != rows.WAITING or new.key_policy == "keep":
        return
    job = rows.to_job(transaction, row)
    change = apply_key_policy(job, new, queue, transaction.now) if job else None
    if job is not None and change is not None:
        effects.write_change(transaction, row, job, change)


def _missing_parent(
    transaction: Transaction, new: NewJob, coming: Container[str] = ()
) -> str | None:
    """The first parent that neither exists nor is among the ids `coming` in the same batch."""
    if not new.after:
        return None
    known = dependencies.states_of(transaction, new.after)
    return next((id_ for id_ in new.after if id_ not in known and id_ not in coming), None)


def _depth(transaction: Transaction, queue_row: QueueRow, most: int) -> int:
    """The number of waiting jobs, held ones included, counted up to `most`."""
    ready: int = transaction.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_ready"
        " WHERE queue = ?1 AND state = 0 AND holds = 0 LIMIT ?2)",
        (queue_row.id, most),
    ).get
    if ready >= most:
        return ready
    held: int = transaction.run(
        "SELECT count(*) FROM (SELECT 1 FROM hf_jobs INDEXED BY hf_aside"
        " WHERE queue = ?1 AND state = 0 AND holds <> 0 LIMIT ?2)",
        (queue_row.id, most),
    ).get
    return ready + held


def _insert_one(transaction: Transaction, new: NewJob, queue_row: QueueRow) -> int:
    """Insert a job whose id and key are free and whose parents exist; returns its seq."""
    seq = transaction.allocate(1)
    ids = tuple(dict.fromkeys(new.after))
    waits_for, failed = _open_parents(transaction, new, ids)
    columns = _flow_columns(transaction, new, queue_row, strict=False)
    bits = columns.flow | (FLOW_PARENTS if ids else 0)
    if transaction.has_lost_parents and dependencies.has_children(transaction, new.id):
        bits |= FLOW_CHILDREN
    holds = columns.holds + HOLD_PARENT * len(waits_for)
    values = _values(transaction, seq, new, queue_row)
    transaction.run(_INSERT_IN_FLOW, (*values, bits, columns.lane, holds))
    assert transaction.changes() == 1, "the id was checked in this transaction"
    if len(new.payload) > rows.INLINE_MAX:
        rows.write_large_payload(transaction, seq, new.payload)
    if new.key is not None:
        until = transaction.now + new.key_window_ms
        transaction.run(
            "INSERT OR REPLACE INTO hf_keys(queue, key, ns, id, until) VALUES (?, ?, ?, ?, ?)",
            (queue_row.id, new.key, transaction.namespace_id, new.id, until),
        )
    if ids:
        rows.write_after(transaction, seq, ids)
        dependencies.add(transaction, seq, waits_for)
    if new.group is not None:
        groups.refresh(transaction, queue_row.id, new.group)
    if columns.lane is not None:
        transaction.effects.lanes.add(columns.lane)
    if failed is not None:
        effects.cancel_orphan(transaction, seq, *failed)
    return seq


def _open_parents(
    transaction: Transaction, new: NewJob, ids: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, State] | None]:
    """The parents it waits for; or the first whose end cancels it, with that state."""
    if not ids:
        return (), None
    states = dependencies.states_of(transaction, ids)
    waits_for = []
    for parent in ids:
        state = STATES[states[parent]]
        effect = ParentEffect.HELD
        if state.finished:
            effect = effects.parent_effect(new.after_on, new.parent_death, state)
        if effect is ParentEffect.CANCELLED:
            return (), (parent, state)
        if effect is ParentEffect.HELD:
            waits_for.append(parent)
    return tuple(waits_for), None
