"""Whole jobs out of a file and into one: see `core.moving.Mover`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.core import moving
from holdfast.core.model import Job, Note, Receipt, State, Status
from holdfast.core.moving import HeldKey, Stretch, Whole
from holdfast.engines.sqlite import edges, flow, groups, lanes, rows
from holdfast.engines.sqlite.admitting import is_known, keep_outside
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import (
    FLOW_CHILDREN,
    FLOW_PARENTS,
    HOLD_BEHIND,
    HOLD_LANED,
    HOLD_PARENT,
)
from holdfast.engines.sqlite.rows import Stand
from holdfast.engines.sqlite.schema import (
    PART_AFTER,
    PART_ALONE,
    PART_EVENTS,
    PART_NOTES,
    PART_PAYLOAD,
    PART_RESULT,
)
from holdfast.engines.sqlite.unit import Unit

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
    """`read` and `write` run a function in a transaction of the engine's."""

    def __init__(self, read: Work, write: Work) -> None:
        self._read = read
        self._write = write

    async def jobs(self, *, after: int, limit: int, bytes_max: int) -> Stretch:
        look = partial(_jobs, after=after, limit=limit, bytes_max=bytes_max)
        stretch: Stretch = await self._read(look)
        return stretch

    async def adopt(self, wholes: Sequence[Whole]) -> list[Receipt]:
        grows_bytes = sum(moving.bytes_of(whole.job) for whole in wholes)
        receipts: list[Receipt] = await self._write(
            partial(_adopt_all, wholes=wholes), grows_bytes=grows_bytes
        )
        return receipts

    async def keys(self, queue: str, *, after: str, limit: int) -> list[HeldKey]:
        held: list[HeldKey] = await self._read(
            partial(_keys, queue=queue, after=after, limit=limit)
        )
        return held

    async def hold(self, keys: Sequence[HeldKey]) -> None:
        await self._write(partial(_hold, keys=keys), grows_bytes=200 * len(keys))


def _jobs(unit: Unit, after: int, limit: int, bytes_max: int) -> Stretch:
    wholes: list[Whole] = []
    size = read = 0
    last = after
    # Row by row: together they may be more than fits in memory.
    for row in unit.run(_OLDEST, (unit.namespace_id, after, limit)):
        read, last = read + 1, row[rows.SEQ]
        brief = rows.job_of(unit, row)
        if brief is None:
            continue
        job = rows.whole(unit, row, brief)
        awaits: tuple[str, ...] = ()
        if row[rows.FLOW] & FLOW_PARENTS:
            awaits = tuple(edges.open_parents(unit, row[rows.SEQ]))
        wholes.append(Whole(job, awaits))
        size += moving.bytes_of(job)
        if size >= bytes_max:
            return Stretch(tuple(wholes), last)
    return Stretch(tuple(wholes), last if read >= limit else None)


def _adopt_all(unit: Unit, wholes: Sequence[Whole]) -> list[Receipt]:
    unit.rings = True
    joined: dict[tuple[int, str], None] = {}
    receipts = []
    for whole in wholes:
        job = whole.job
        line = unit.catalog.lines.get(job.queue)
        refused = moving.refusal(job, is_known_queue=line is not None)
        if refused is not None:
            receipts.append(refused)
            continue
        if is_known(unit, job.id):
            receipts.append(Receipt(id=job.id, status=Status.DUPLICATE))
            continue
        assert line is not None
        _adopt(unit, whole, line)
        if job.group is not None and job.state is State.WAITING:
            joined[line.id, job.group] = None
        receipts.append(Receipt(id=job.id, status=Status.NEW))
    if joined:
        flow.aftermath_of(unit).lanes.update(groups.expose_first(unit, joined))
    return receipts


def _adopt(unit: Unit, whole: Whole, line: Line) -> None:
    job, seq = whole.job, unit.numbers(1)
    stand = _stand(unit, whole, line)
    unit.run(_ADOPT, (seq, unit.namespace_id, line.id, *_values(job), *stand))
    if len(job.payload) > rows.INLINE_MAX:
        keep_outside(unit, seq, job.payload)
    if len(job.result or b"") > rows.INLINE_MAX:
        unit.run("INSERT INTO hf_results(seq, data) VALUES (?, ?)", (seq, job.result))
    rows.keep_note(
        unit, seq, Note(progress=job.progress, checkpoint=job.checkpoint, output=job.output)
    )
    unit.connection.executemany(
        "INSERT INTO hf_events(seq, n, body) VALUES (?, ?, ?)",
        [(seq, n, _ENCODER.encode(event)) for n, event in enumerate(job.events, start=1)],
    )
    if job.after:
        rows.keep_after(unit, seq, job.after)
    if whole.awaits:
        edges.add(unit, seq, whole.awaits)
        there = edges.parents_of(unit, whole.awaits)
        for parent in whole.awaits:
            if parent not in there:
                edges.forsake(unit, parent)
    if stand.lane is not None:
        flow.aftermath_of(unit).lanes.add(stand.lane)


def _stand(unit: Unit, whole: Whole, line: Line) -> Stand:
    """In a group it is behind until the group is asked. Children may have come before it."""
    job = whole.job
    bits = FLOW_PARENTS if job.after else 0
    bits |= FLOW_CHILDREN if edges.has_children(unit, job.id) else 0
    if job.state is not State.WAITING:
        return Stand(bits)
    lane = None
    if line.laned:
        lane = lanes.find(unit, flow.aftermath_of(unit), job, line, strict=False)
    holds = HOLD_PARENT * len(whole.awaits)
    holds += HOLD_LANED if lane is not None else 0
    holds += HOLD_BEHIND if job.group is not None else 0
    return Stand(bits | flow.bits_of(lane, line, job.group), lane, holds)


def _values(job: Job) -> tuple[object, ...]:
    """From the state to the fingerprint."""
    payload, result = job.payload, job.result
    return (
        rows.CODES[job.state], -job.priority, job.due_at, job.expires_at, _parts(job), job.attempt,
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
    )


def _keys(unit: Unit, queue: str, after: str, limit: int) -> list[HeldKey]:
    line = unit.catalog.lines.get(queue)
    if line is None:
        return []
    found = unit.run(_KEYS, (line.id, after, limit)).fetchall()
    return [HeldKey(queue, key, id_, until) for key, id_, until in found]


def _hold(unit: Unit, keys: Sequence[HeldKey]) -> None:
    lines = unit.catalog.lines
    unit.connection.executemany(
        "INSERT OR REPLACE INTO hf_keys(queue, key, ns, id, until) VALUES (?, ?, ?, ?, ?)",
        [
            (lines[held.queue].id, held.key, unit.namespace_id, held.id, held.until_at)
            for held in keys
        ],
    )
