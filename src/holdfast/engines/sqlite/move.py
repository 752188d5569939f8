"""Exports and imports complete jobs of a file: see `core.transfer.Mover`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.core import transfer
from holdfast.core.model import Job, Note, Receipt, State, Status
from holdfast.core.transfer import HeldKey, Stretch, Whole
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.enqueue import is_known
from holdfast.engines.sqlite.flow import dependencies, effects, groups, lanes
from holdfast.engines.sqlite.rows import FlowColumns
from holdfast.engines.sqlite.schema import (
    FLOW_CHILDREN,
    FLOW_PARENTS,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
    PART_AFTER,
    PART_ALONE,
    PART_EVENTS,
    PART_NOTES,
    PART_PAYLOAD,
    PART_QUEUE_EXPIRY,
    PART_RESULT,
)
from holdfast.engines.sqlite.transaction import QueueRow, Transaction

_OLDEST = (
    f"SELECT {rows.COLUMNS} FROM hf_jobs NOT INDEXED WHERE ns = ? AND seq > ? ORDER BY seq LIMIT ?"
)
_ADOPT = """
INSERT INTO hf_jobs(seq, place, ns, queue, state, rank, due_at, expires_at, parts, attempt, crashes,
  releases, version, leased_at, created_at, finished_at, cancel, lease_ms, worker, reason, id, task,
  key, tenant, grp, extra, payload, result, fingerprint, flow, lane, holds)
VALUES (?1, ?1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
  ?, ?)
"""
_KEYS = "SELECT key, id, until FROM hf_keys WHERE queue = ? AND key > ? ORDER BY key LIMIT ?"
_ENCODER = msgspec.json.Encoder()

Work = Callable[..., Awaitable[Any]]


class SQLiteMover:
    """Reads and inserts whole jobs; `read` and `write` run a function in a transaction."""

    def __init__(self, read: Work, write: Work) -> None:
        self._read = read
        self._write = write

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        """The next jobs in the order of arrival, up to `bytes_max` in size."""
        look = partial(_jobs, after=after, limit=limit, bytes_max=bytes_max)
        stretch: Stretch = await self._read(look)
        return stretch

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        """Insert the jobs unchanged; known ids are duplicates."""
        grows_bytes = sum(transfer.bytes_of(whole.job) for whole in wholes)
        receipts: list[Receipt] = await self._write(
            partial(_adopt_all, wholes=wholes), grows_bytes=grows_bytes
        )
        return receipts

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        """The keys held in a queue, in order."""
        held: list[HeldKey] = await self._read(
            partial(_keys, queue=queue, after=after, limit=limit)
        )
        return held

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        """Store held keys."""
        await self._write(partial(_hold, keys=keys), grows_bytes=200 * len(keys))


def _jobs(transaction: Transaction, after: int, limit: int, bytes_max: int) -> Stretch:
    wholes: list[Whole] = []
    size = read = 0
    last = after
    # Row by row: all of them together may not fit in memory.
    for row in transaction.run(_OLDEST, (transaction.namespace_id, after, limit)):
        read, last = read + 1, row[rows.SEQ]
        brief = rows.to_job(transaction, row)
        if brief is None:
            continue
        job = rows.with_details(transaction, row, brief)
        awaits: tuple[str, ...] = ()
        if row[rows.FLOW] & FLOW_PARENTS:
            awaits = tuple(dependencies.open_parents(transaction, row[rows.SEQ]))
        wholes.append(Whole(job, awaits))
        size += transfer.bytes_of(job)
        if size >= bytes_max:
            return Stretch(tuple(wholes), last)
    return Stretch(tuple(wholes), last if read >= limit else None)


def _adopt_all(transaction: Transaction, wholes: Sequence[Whole]) -> list[Receipt]:
    transaction.notifies = True
    joined: dict[tuple[int, str], None] = {}
    receipts = []
    for whole in wholes:
        job = whole.job
        queue_row = transaction.queues.get(job.queue)
        refused = transfer.refusal(job, is_known_queue=queue_row is not None)
        if refused is not None:
            receipts.append(refused)
            continue
        if is_known(transaction, job.id):
            receipts.append(Receipt(id=job.id, status=Status.DUPLICATE))
            continue
        assert queue_row is not None
        _adopt(transaction, whole, queue_row)
        if job.group is not None and job.state is State.WAITING:
            joined[queue_row.id, job.group] = None
        receipts.append(Receipt(id=job.id, status=Status.NEW))
    if joined:
        transaction.effects.lanes.update(groups.expose_first(transaction, joined))
    return receipts


def _adopt(transaction: Transaction, whole: Whole, queue_row: QueueRow) -> None:
    job, seq = whole.job, transaction.allocate(1)
    columns = _flow_columns(transaction, whole, queue_row)
    transaction.run(_ADOPT, (seq, transaction.namespace_id, queue_row.id, *_values(job), *columns))
    if len(job.payload) > rows.INLINE_MAX:
        rows.write_large_payload(transaction, seq, job.payload)
    if len(job.result or b"") > rows.INLINE_MAX:
        transaction.run("INSERT INTO hf_results(seq, data) VALUES (?, ?)", (seq, job.result))
    rows.write_note(
        transaction, seq, Note(progress=job.progress, checkpoint=job.checkpoint, output=job.output)
    )
    transaction.connection.executemany(
        "INSERT INTO hf_events(seq, n, body) VALUES (?, ?, ?)",
        [(seq, n, _ENCODER.encode(event)) for n, event in enumerate(job.events, start=1)],
    )
    if job.after:
        rows.write_after(transaction, seq, job.after)
    if whole.awaits:
        dependencies.add(transaction, seq, whole.awaits)
        known = dependencies.states_of(transaction, whole.awaits)
        for parent in whole.awaits:
            if parent not in known:
                dependencies.note_lost_parent(transaction, parent)
    if columns.lane is not None:
        transaction.effects.lanes.add(columns.lane)


def _flow_columns(transaction: Transaction, whole: Whole, queue_row: QueueRow) -> FlowColumns:
    """The flow columns of a moved job. It is held as behind until its group is checked. Its
    children may have been moved before it.
    """
    job = whole.job
    bits = FLOW_PARENTS if job.after else 0
    bits |= FLOW_CHILDREN if dependencies.has_children(transaction, job.id) else 0
    if job.state is not State.WAITING:
        return FlowColumns(bits)
    lane = lanes.find_lane(transaction, job, queue_row, strict=False)
    holds = HOLD_PARENT * len(whole.awaits)
    holds += HOLD_LANED if lane is not None else 0
    holds += HOLD_BEHIND if job.group is not None else 0
    return FlowColumns(bits | effects.flow_bits(lane, queue_row, job.group), lane, holds)


def _values(job: Job) -> tuple[object, ...]:
    """The columns of `_ADOPT` from the state to the fingerprint."""
    payload, result = job.payload, job.result
    return (
        job.state_code, -job.priority, job.due_at, job.expires_at, _parts(job), job.attempt,
        job.crashes, job.releases, job.version, job.leased_at, job.created_at, job.finished_at,
        int(job.cancel_requested), job.overrides.lease_ms, job.worker,
        None if job.reason is None else job.reason.value, job.id, job.task, job.key, job.tenant,
        job.group, rows.encode_extra(job), payload if len(payload) <= rows.INLINE_MAX else None,
        result if result is None or len(result) <= rows.INLINE_MAX else None, job.fingerprint,
    )  # fmt: skip


def _parts(job: Job) -> int:
    noted = (job.progress, job.checkpoint, job.output) != (None, None, None)
    return (
        PART_PAYLOAD * (len(job.payload) > rows.INLINE_MAX)
        | PART_RESULT * (len(job.result or b"") > rows.INLINE_MAX)
        | PART_NOTES * noted
        | PART_EVENTS * bool(job.events)
        | PART_AFTER * bool(job.after)
        | PART_ALONE * job.alone
        | PART_QUEUE_EXPIRY * job.queue_expiry
    )


def _keys(transaction: Transaction, queue: str, after: str, limit: int) -> list[HeldKey]:
    queue_row = transaction.queues.get(queue)
    if queue_row is None:
        return []
    found = transaction.run(_KEYS, (queue_row.id, after, limit)).fetchall()
    return [HeldKey(queue, key, id_, until) for key, id_, until in found]


def _hold(transaction: Transaction, keys: Sequence[HeldKey]) -> None:
    queues = transaction.queues
    transaction.connection.executemany(
        "INSERT OR REPLACE INTO hf_keys(queue, key, ns, id, until) VALUES (?, ?, ?, ?, ?)",
        [
            (queues[held.queue].id, held.key, transaction.namespace_id, held.id, held.until_at)
            for held in keys
        ],
    )
