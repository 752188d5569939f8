"""Leasing just the jobs with some ids: in the order asked, under the same laws as any other."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.sqlite import fair, flow, lanes
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import FLOW_TENANT, HOLD_BEHIND
from holdfast.engines.sqlite.hand import DUE_AT, EXPIRES_AT, FIELDS, QUEUE, TASK, TENANT, Hand
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.scout import Sight
from holdfast.engines.sqlite.slots import Room
from holdfast.engines.sqlite.unit import Unit

_BY_ID = f"SELECT {FIELDS}, flow, lane, holds FROM hf_jobs WHERE id = ? AND ns = ? AND state = 0"
_FLOW, _LANE, _HOLDS = -3, -2, -1


def take_by_id(unit: Unit, request: LeaseRequest) -> list[Lease]:
    hand = Hand(unit, request)
    rooms: dict[int, Room] = {}
    for row, line in _asked(unit, request):
        if line.unsorted or not _may_go(unit, row, request):
            continue
        room = rooms.setdefault(line.id, Room(unit, line.queue))
        slots = _slots(unit, row)
        room.load(slots)
        if room.full(slots) is not None:
            continue
        room.take(slots)
        hand.take([row], line)
        if row[_LANE] is not None:
            flow.aftermath_of(unit).lanes.add(row[_LANE])
        if row[_FLOW] & FLOW_TENANT:
            fair.started(unit, line.id, {row[TENANT] or "": 1})
        # Queues may share slots: each sees what was taken for the one before.
        room.write()
        del rooms[line.id]
        if not hand.left:
            break
    return hand.leases


def look_by_id(unit: Unit, request: LeaseRequest) -> Sight:
    next_ms = None
    for row, line in _asked(unit, request):
        if line.unsorted:
            return Sight(0, unsorted=line.id)
        slots = _slots(unit, row)
        room = Room(unit, line.queue)
        room.load(slots)
        full = room.full(slots)
        if _may_go(unit, row, request) and full is None:
            return Sight(0)
        if row[_HOLDS] >= HOLD_BEHIND:
            continue
        wake_us = 0 if full is None else room.wake_us(full)
        if wake_us is not None:
            ahead_ms = max(row[DUE_AT] - unit.now, wake_us // 1_000 - unit.boot)
            if ahead_ms > 0 and (next_ms is None or ahead_ms < next_ms):
                next_ms = ahead_ms
    return Sight(next_ms)


def _asked(unit: Unit, request: LeaseRequest) -> Iterator[tuple[Row, Line]]:
    """Those that wait in a queue which is there and not paused."""
    for id_ in dict.fromkeys(request.ids):
        row = unit.run(_BY_ID, (id_, unit.namespace_id)).fetchone()
        name = None if row is None else unit.catalog.names.get(row[QUEUE])
        line = None if name is None else unit.catalog.lines.get(name)
        if line is not None and not line.queue.paused:
            yield row, line


def _may_go(unit: Unit, row: Row, request: LeaseRequest) -> bool:
    expires_at = row[EXPIRES_AT]
    return (
        row[_HOLDS] < HOLD_BEHIND
        and row[DUE_AT] <= unit.now
        and (expires_at is None or expires_at > unit.now)
        and (request.tasks is None or row[TASK] in request.tasks)
    )


def _slots(unit: Unit, row: Row) -> tuple[int, ...]:
    lane = row[_LANE]
    return () if lane is None else lanes.slots_of(unit, lane)
