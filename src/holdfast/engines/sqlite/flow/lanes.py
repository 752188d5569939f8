"""Lanes: the lane a job belongs to, its row in `hf_lanes`, and moving jobs when settings change.

A lane is the jobs of one queue, priority, tenant and set of slots, ordered by (due_at, place). Its
row stores the position of its first job, so that leasing compares lanes instead of jobs. New limits
or fairness move the waiting jobs of a queue in bounded steps; the transaction that writes the
settings marks the queue, so that leasing finishes the steps first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from holdfast.core.lanes import Lane, fields_of, is_same_flow, lane_of
from holdfast.core.limits import SlotKey
from holdfast.core.model import Job, NewJob, Queue
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.flow import fairness
from holdfast.engines.sqlite.schema import FLOW_LANE, FLOW_TENANT, HOLD_LANED
from holdfast.engines.sqlite.transaction import LaneKey, QueueRow, Transaction, read_slots

RELANE_STEP = 1_000
"""Jobs moved to new lanes in one step."""

WalkCursor = list[Any]
"""A kind of jobs, and the last position done in its index. Stored in `hf_flows.sorting`."""

_FIRST = (
    "SELECT due_at, place FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = hf_lanes.queue AND state = 0 AND holds <> 0 AND holds = 1"
    " AND lane = hf_lanes.id ORDER BY due_at, place LIMIT 1"
)
# A lane that was asleep or empty is opened: leasing bars it again if it cannot be used.
_REFRESH = (
    f"UPDATE hf_lanes SET (due_at, place) = ({_FIRST}),"
    " bar = iif(bar = -1 OR due_at IS NULL, 0, bar) WHERE id = ?"
)
_BY_KEY = "SELECT id FROM hf_lanes WHERE queue = ? AND tenant = ? AND name = ? AND rank = ?"
_UNKNOWN = (-1,)
_LOWEST = -(2**62)
WALK_START: WalkCursor = ["laned", 2**62, _LOWEST, 0, 0]
_HELD = "FROM hf_jobs INDEXED BY hf_aside WHERE queue = ? AND state = 0 AND holds <> 0"
_NEXT_HOLDS = f"SELECT max(holds) {_HELD} AND holds < ?"
_PAGES = {
    "nowhere": (
        f"SELECT seq, holds, due_at, place {_HELD} AND holds = ? AND lane IS NULL"
        " AND (due_at, place) > (?, ?) ORDER BY due_at, place LIMIT ?"
    ),
    "laned": (
        f"SELECT seq, holds, lane, due_at, place {_HELD} AND holds = ?"
        " AND (lane, due_at, place) > (?, ?, ?) ORDER BY lane, due_at, place LIMIT ?"
    ),
    "ready": (
        "SELECT seq, rank, due_at, place FROM hf_jobs INDEXED BY hf_ready WHERE queue = ?"
        " AND state = 0 AND holds = 0 AND (rank, due_at, place) > (?, ?, ?)"
        " ORDER BY rank, due_at, place LIMIT ?"
    ),
}
_LEASED = (
    "SELECT seq, tenant FROM hf_jobs INDEXED BY hf_leased WHERE ns = ? AND state IN (1, 5)"
    " AND state = 1 AND queue = ? AND flow & ? = 0 LIMIT ?"
)
_ROW_FIELDS = {"queue", "task", "tenant", "group"}
"""Fields of a limit's key that a job's row holds. A label is only looked up in the payload, which
must then be read, if the job does not have it."""

_LEASES: WalkCursor = ["leased"]


def find_lane(
    transaction: Transaction, job: NewJob | Job, queue_row: QueueRow, *, strict: bool
) -> int | None:
    """The id of the lane for a job, created if new; None if the job needs no lane."""
    lane = lane_of(job, queue_row.settings, strict=strict) if queue_row.has_lanes else None
    if lane is None:
        return None
    key = _lane_key(lane, queue_row, job.priority)
    lane_ids = transaction.effects.lane_ids
    id_ = lane_ids.get(key)
    if id_ is None:
        id_ = transaction.run(_BY_KEY, key).get
        if id_ is None:
            id_ = _create_lane(transaction, lane, queue_row, key)
        lane_ids[key] = id_
    return id_


def is_lane_of(transaction: Transaction, job: Job, queue_row: QueueRow, id: int | None) -> bool:
    """True if this is the lane for the job, or None if it needs no lane."""
    lane = lane_of(job, queue_row.settings)
    if lane is None or id is None:
        return lane is None and id is None
    return bool(transaction.run(_BY_KEY, _lane_key(lane, queue_row, job.priority)).get == id)


def slots_of(transaction: Transaction, lane: int) -> tuple[int, ...]:
    """The slots that a leased job of this lane holds."""
    known = transaction.lane_cache.lane_slots.get(lane)
    return load_slots(transaction, [lane])[lane] if known is None else known


def load_slots(transaction: Transaction, ids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The slots of these lanes, from the cache where possible."""
    cache = transaction.lane_cache
    slots = {id_: cache.lane_slots.get(id_, _UNKNOWN) for id_ in ids}
    unknown = [id_ for id_, known in slots.items() if known is _UNKNOWN]
    if unknown:
        found = transaction.run(
            "SELECT id, slots FROM hf_lanes WHERE id IN (SELECT value FROM json_each(?))",
            (str(unknown),),
        )
        texts = dict(found.fetchall())
        for id_ in unknown:
            slots[id_] = read_slots(texts.get(id_, "[]"))
            cache.keep_slots(id_, slots[id_])
    return slots


def are_alike(transaction: Transaction, one: int | None, other: int | None) -> bool:
    """True if the lanes differ in nothing but their priority."""
    if one == other or one is None or other is None:
        return one == other
    names = transaction.run(
        "SELECT count(DISTINCT name) FROM hf_lanes WHERE id IN (?, ?)", (one, other)
    )
    return bool(names.get == 1)


def refresh(transaction: Transaction, ids: Iterable[int]) -> None:
    """Store the first job of each lane again, after its jobs changed."""
    cache, values = transaction.lane_cache, [(id_,) for id_ in ids]
    for (id_,) in values:
        cache.forget_lane(id_)
    transaction.connection.executemany(_REFRESH, values)


def _lane_key(lane: Lane, queue_row: QueueRow, priority: int) -> LaneKey:
    slots = [(slot.limit, slot.key) for slot in lane.slots]
    name = msgspec.json.encode((lane.task, lane.tenant, slots)).decode()
    return queue_row.id, lane.tenant or "", name, -priority


def _create_lane(transaction: Transaction, lane: Lane, queue_row: QueueRow, key: LaneKey) -> int:
    queue_id, tenant, name, rank = key
    slots = [_slot_id(transaction, slot) for slot in lane.slots]
    turn = 0
    if queue_row.settings.fairness == "shares":
        turn = transaction.run(
            "SELECT turn FROM hf_tenants WHERE queue = ? AND tenant = ?", (queue_id, tenant)
        ).get
    # A new number: jobs may still refer to a lane that was pruned.
    id_ = transaction.allocate(1)
    transaction.run(
        "INSERT INTO hf_lanes(id, queue, rank, turn, tenant, task, slots, name)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, queue_id, rank, turn or 0, tenant, lane.task, str(slots), name),
    )
    return id_


def _slot_id(transaction: Transaction, slot: SlotKey) -> int:
    key = (transaction.namespace_id, slot.limit, slot.key)
    id_: int | None = transaction.run(
        "SELECT id FROM hf_slots WHERE ns = ? AND name = ? AND key = ?", key
    ).get
    if id_ is None:
        id_ = transaction.allocate(1)
        transaction.run("INSERT INTO hf_slots(id, ns, name, key) VALUES (?, ?, ?, ?)", (id_, *key))
    return id_


def begin_relane(transaction: Transaction, queue_row: QueueRow, queue: Queue) -> None:
    """Mark the queue if the new settings change its lanes. New numbers of a limit apply at once."""
    before = queue_row.settings
    transaction.run("UPDATE hf_parks SET wake_us = 0 WHERE queue = ?", (queue_row.id,))
    same = is_same_flow(before, queue) and before.fairness == queue.fairness
    if same and not queue_row.needs_relane:
        return
    # Only fairness by shares uses turns; which slots are full is checked again.
    transaction.run(
        "UPDATE hf_lanes SET bar = 0, turn = iif(?1, ifnull((SELECT turn FROM hf_tenants t"
        " WHERE t.queue = hf_lanes.queue AND t.tenant = hf_lanes.tenant), 0), 0)"
        " WHERE queue = ?2",
        (queue.fairness == "shares", queue_row.id),
    )
    transaction.run("DELETE FROM hf_parks WHERE queue = ?", (queue_row.id,))
    _mark(transaction, queue_row.id, WALK_START)


def relane_step(transaction: Transaction, queue: str | int) -> bool:
    """Move the next jobs of a queue, by name or id; False if all jobs are in the right lanes."""
    name = queue if isinstance(queue, str) else transaction.queue_names.get(queue)
    queue_row = None if name is None else transaction.queues.get(name)
    if queue_row is None or not queue_row.needs_relane:
        return False
    queue_id = queue_row.id
    text = transaction.run("SELECT sorting FROM hf_flows WHERE queue = ?", (queue_id,)).get
    cursor = msgspec.json.decode(text)
    if cursor == _LEASES:
        return _count_leased(transaction, queue_row)
    seqs, cursor = waiting_page(transaction, queue_id, cursor, RELANE_STEP)
    relane(transaction, seqs)
    _mark(transaction, queue_id, _LEASES if cursor is None else cursor)
    return True


def _count_leased(transaction: Transaction, queue_row: QueueRow) -> bool:
    """Under fairness, count leases from before the change under their tenants too."""
    found: list[tuple[int, str | None]] = []
    if queue_row.settings.fairness != "off":
        found = transaction.run(
            _LEASED, (transaction.namespace_id, queue_row.id, FLOW_TENANT, RELANE_STEP)
        ).fetchall()
    for seq, tenant in found:
        transaction.run("UPDATE hf_jobs SET flow = flow | ? WHERE seq = ?", (FLOW_TENANT, seq))
        transaction.run(
            "INSERT INTO hf_tenants(queue, tenant, leased) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET leased = leased + 1",
            (queue_row.id, tenant or ""),
        )
    fairness.forget_usage(transaction, queue_row.id)
    if len(found) == RELANE_STEP:
        return True
    transaction.run("UPDATE hf_flows SET sorting = NULL WHERE queue = ?", (queue_row.id,))
    transaction.bump_revision()
    transaction.notifies = True
    return False


def drop_flow_rows(transaction: Transaction, queue_id: int, limit: int) -> bool:
    """Delete some flow rows of a dropped queue; True if there are more. Slots are shared."""
    fairness.forget_usage(transaction, queue_id)
    for table, column in (("hf_lanes", "id"), ("hf_tenants", "tenant"), ("hf_parks", "slot")):
        transaction.run(
            f"DELETE FROM {table} WHERE queue = ?1 AND {column} IN"  # sql: our own names
            f" (SELECT {column} FROM {table} WHERE queue = ?1 LIMIT ?2)",
            (queue_id, limit),
        )
        if transaction.changes() >= limit:
            return True
    transaction.run("DELETE FROM hf_flows WHERE queue = ?", (queue_id,))
    return False


def _mark(transaction: Transaction, queue_id: int, cursor: WalkCursor) -> None:
    transaction.run(
        "INSERT INTO hf_flows(queue, sorting) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET sorting = excluded.sorting",
        (queue_id, msgspec.json.encode(cursor).decode()),
    )


def waiting_page(
    transaction: Transaction, queue_id: int, cursor: WalkCursor | None, limit: int
) -> tuple[list[int], WalkCursor | None]:
    """The next waiting jobs of a queue, and where to continue; None at the end.

    Pages are in descending order of `holds`, ready jobs last: an ending only lowers a job's
    `holds`, so the job is still ahead. Code that raises `holds` in a marked queue moves the job
    itself.
    """
    seqs: list[int] = []
    while cursor is not None and len(seqs) < limit:
        kind, *after = cursor
        left = limit - len(seqs)
        found = transaction.run(_PAGES[kind], (queue_id, *after, left)).fetchall()
        seqs += [seq for seq, *_ in found]
        cursor = (
            [kind, *found[-1][1:]]
            if len(found) == left
            else _next_kind(transaction, queue_id, cursor)
        )
    return seqs, cursor


def _next_kind(transaction: Transaction, queue_id: int, cursor: WalkCursor) -> WalkCursor | None:
    kind, holds, *_ = cursor
    if kind == "ready":
        return None
    if kind == "nowhere":
        return ["laned", holds, _LOWEST, 0, 0]
    fewer = transaction.run(_NEXT_HOLDS, (queue_id, holds)).get
    return ["ready", _LOWEST, 0, 0] if fewer is None else ["nowhere", fewer, _LOWEST, 0]


def relane(transaction: Transaction, seqs: Collection[int]) -> None:
    """Move each of these waiting jobs into the lane that its queue's settings require."""
    for seq in seqs:
        row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
        job = None if row is None else rows.to_job(transaction, row)
        if job is None or row[rows.STATE] != rows.WAITING:
            continue
        queue_row = transaction.queues[job.queue]
        lane = find_lane(transaction, job, queue_row, strict=False)
        bits = _flow_bits(row, queue_row, lane)
        if (lane, bits) == (row[rows.LANE], row[rows.FLOW]):
            continue
        holds = row[rows.HOLDS] & ~HOLD_LANED | (HOLD_LANED if lane is not None else 0)
        transaction.run(
            "UPDATE hf_jobs SET lane = ?, flow = ?, holds = ? WHERE seq = ?",
            (lane, bits, holds, seq),
        )
        transaction.effects.lanes |= {each for each in (lane, row[rows.LANE]) if each is not None}


def misplaced(transaction: Transaction, seqs: Collection[int]) -> list[int]:
    """The jobs among these that wait in the wrong lane. Only reads; skips marked queues."""
    found = []
    for seq in seqs:
        row = transaction.run(rows.BY_SEQ, (seq,)).fetchone()
        name = None if row is None else transaction.queue_names.get(row[rows.QUEUE])
        if name is None or row[rows.STATE] != rows.WAITING:
            continue
        queue_row, lane = transaction.queues[name], row[rows.LANE]
        if queue_row.needs_relane:
            continue
        is_right = lane is None
        if queue_row.has_lanes:
            job = rows.to_job(transaction, row, payload=None if _needs_payload(queue_row) else b"")
            is_right = job is not None and is_lane_of(transaction, job, queue_row, lane)
        if not is_right or row[rows.FLOW] != _flow_bits(row, queue_row, lane):
            found.append(seq)
    return found


def _flow_bits(row: rows.Row, queue_row: QueueRow, lane: int | None) -> int:
    bits: int = row[rows.FLOW] & ~(FLOW_LANE | FLOW_TENANT)
    bits |= FLOW_LANE if lane is not None else 0
    return bits | (FLOW_TENANT if queue_row.settings.fairness != "off" else 0)


def _needs_payload(queue_row: QueueRow) -> bool:
    """True if a limit's key may depend on the payload, which is slow to read."""
    return any(set(fields_of(limit.key)) - _ROW_FIELDS for limit in queue_row.settings.limits)
