"""Taking due jobs without scanning: one seek per priority, then rows in their order.

A delayed job in front costs one seek, whatever stands behind it. Jobs met past their expiry are
put out of the hot index, to wait for the reaper, so that nobody meets them twice. A queue with
lanes is `pick`'s.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import dropwhile

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.sqlite import aside, groups, scout
from holdfast.engines.sqlite.by_id import look_by_id, take_by_id
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import HOLD_PARENT
from holdfast.engines.sqlite.hand import (
    DUE_AT,
    EXPIRES_AT,
    FIELDS,
    GROUP,
    RANK,
    SEQ,
    TASK,
    Hand,
)
from holdfast.engines.sqlite.in_order import HOLD_MAX
from holdfast.engines.sqlite.outlook import look_at_lanes
from holdfast.engines.sqlite.pick import Pick
from holdfast.engines.sqlite.ranks import PASS_MAX
from holdfast.engines.sqlite.rows import Row
from holdfast.engines.sqlite.schema import RANK_FIRST, READY
from holdfast.engines.sqlite.scout import Sight, Spot
from holdfast.engines.sqlite.unit import Unit

_ORDER = "ORDER BY rank, due_at, place"
_TAKE = f"SELECT {FIELDS} {READY} AND rank > ? {_ORDER}"
_TAKE_FROM = f"SELECT {FIELDS} {READY} AND (rank, due_at, place) >= (?, ?, ?) {_ORDER}"
_TAKE_RANK = f"SELECT {FIELDS} {READY} AND rank = ? AND (due_at, place) >= (?, ?) {_ORDER}"
_LOOK = f"SELECT rank, due_at {READY} AND rank > ? {_ORDER} LIMIT 1"
_PUT_ASIDE = (
    "UPDATE hf_jobs SET holds = 2 WHERE seq IN ("
    f"SELECT seq {READY} AND rank = ? AND due_at <= ? AND expires_at <= ? LIMIT ?)"
)


def look(unit: Unit, request: LeaseRequest, after: Spot | None = None) -> Sight:
    """Is anything to be leased, and when? Only reads. A long look goes on `after` the last one."""
    if request.ids:
        return look_by_id(unit, request)
    lines = list(_lines(unit, request))
    for line in lines:
        if line.unsorted:
            return Sight(0, unsorted=line.id)
    laned = [look_at_lanes(unit, line, request.tasks) for line in lines if line.laned]
    if request.tasks is None:
        sight = Sight(0) if 0 in laned else _look_for_any(unit, lines)
    else:
        open_ = [line.id for line in lines if line.queue.fairness == "off"]
        sight = scout.look_for(unit, open_, request.tasks, after)
        if 0 in laned:
            # What is in lanes may come before what the walk found, or would find.
            sight = Sight(0, spot=sight.spot)
    if sight.next_ms == 0:
        return sight
    times = [ms for ms in (sight.next_ms, *laned) if ms is not None]
    if sight.go_on is None and aside.is_any_astray(unit):
        return Sight(0)
    return sight._replace(next_ms=min(times, default=None))


def take(unit: Unit, request: LeaseRequest, spot: Spot | None = None) -> list[Lease]:
    """Lease what is due, best first; the attempt is counted in the same write.

    Before `spot` there was nothing for this request when it was looked for, but in lanes.
    """
    aside.bring_back(unit)
    if request.ids:
        return take_by_id(unit, request)
    hand = Hand(unit, request)
    for line, on in _from_spot(list(_lines(unit, request)), spot):
        is_weary = False
        if line.unsorted:
            continue
        if line.laned:
            picked = Pick(unit, line, request, on)
            seqs = picked.choose(hand.left)
            hand.take_all(seqs, line)
            picked.write()
            is_weary = picked.is_weary
        else:
            found, is_weary = _choose(unit, request, line, on, hand.left)
            hand.take(found, line)
        if not hand.left or is_weary:
            break
    return hand.leases


def _from_spot(lines: list[Line], spot: Spot | None) -> Iterator[tuple[Line, Spot | None]]:
    """The queues with something for us: those before the spot have none, but in their lanes."""
    if spot is None:
        yield from ((line, None) for line in lines)
        return
    queue_id = spot.queue_id
    after = list(dropwhile(lambda line: line.id != queue_id, lines))
    for line in lines[: len(lines) - len(after)]:
        if line.laned:
            yield line, None
    for line in after:
        yield line, spot if line.id == queue_id else None


def _look_for_any(unit: Unit, lines: list[Line]) -> Sight:
    next_at = None
    for line in lines:
        first = unit.run(_LOOK, (line.id, RANK_FIRST)).fetchone()
        while first is not None:
            rank, due_at = first
            if due_at <= unit.now:
                return Sight(0)
            # All behind it at this priority are later still: on to the next priority.
            next_at = due_at if next_at is None else min(next_at, due_at)
            first = unit.run(_LOOK, (line.id, rank)).fetchone()
    return Sight(None if next_at is None else next_at - unit.now)


def _due(unit: Unit, line: Line, spot: Spot | None) -> Iterator[Row]:
    """A queue's due jobs in their order, from the spot on if there is one."""
    start = (line.id, RANK_FIRST)
    found = unit.run(_TAKE, start) if spot is None else unit.run(_TAKE_FROM, spot)
    while True:
        for row in found:
            if row[4] > unit.now:
                rank = row[3]
                break
            yield row
        else:
            return
        found = unit.run(_TAKE, (line.id, rank))


def _due_by_age(unit: Unit, line: Line, spot: Spot | None, aging_ms: int) -> Iterator[Row]:
    """The same where each `aging_ms` of waiting counts as one more of priority: within one
    priority that changes nothing, so the priorities' lines are merged."""

    def due_of(rank: int) -> Iterator[Row]:
        on = spot if spot is not None and spot.rank == rank else None
        first = (-1, -1) if on is None else (on.due_at, on.place)
        for row in unit.run(_TAKE_RANK, (line.id, rank, *first)):
            if row[DUE_AT] > unit.now:
                return
            yield row

    ranks = []
    rank = RANK_FIRST if spot is None else spot.rank - 1
    while (first := unit.run(_LOOK, (line.id, rank)).fetchone()) is not None:
        rank = first[0]
        ranks.append(due_of(rank))
    return heapq.merge(
        *ranks, key=lambda row: (row[DUE_AT] + row[RANK] * aging_ms, row[RANK], row[DUE_AT])
    )


def _lines(unit: Unit, request: LeaseRequest) -> Iterator[Line]:
    for name in dict.fromkeys(request.queues):
        line = unit.catalog.lines.get(name)
        if line is not None and not line.queue.paused:
            yield line


def _choose(
    unit: Unit, request: LeaseRequest, line: Line, spot: Spot | None, want: int
) -> tuple[list[Row], bool]:
    """The best that are due, and whether more was met than one call may pass over. Those past
    their expiry are put aside on the way."""
    now, tasks, passed, put_aside = unit.now, request.tasks, 0, 0
    queue, found = line.queue, list[Row]()
    aging_ms = queue.aging_ms
    while True:
        due = _due(unit, line, spot) if not aging_ms else _due_by_age(unit, line, spot, aging_ms)
        expired = None
        for row in due if want > 0 else ():
            if row[5] is not None and row[5] <= now:
                expired = row
                break
            if tasks is not None and row[15] not in tasks:
                passed += 1
                if passed >= PASS_MAX:
                    break
                continue
            found.append(row)
            if row[GROUP] is not None and queue.group_batch > 1:
                room = want - len(found)
                found += _followers(unit, line, row, tasks, room)
            if len(found) >= want:
                break
        if expired is None:
            return found, passed >= PASS_MAX
        # All of them at once, and from the beginning again: that is rare, and they are many.
        found, passed = [], 0
        values = (line.id, expired[RANK], now, now, HOLD_MAX)
        unit.run(_PUT_ASIDE, values)
        put_aside += unit.changes()
        unit.note_aside()
        if put_aside >= HOLD_MAX:
            return [], True


def _followers(
    unit: Unit, line: Line, head: Row, tasks: frozenset[str] | None, room: int
) -> list[Row]:
    """Those who come next in its strict group, as long as they may go with it."""
    found: list[Row] = []
    most = min(room, line.queue.group_batch - 1)
    for row in groups.members(unit, line.id, head[GROUP], f"{FIELDS}, holds"):
        if row[SEQ] == head[SEQ]:
            continue
        expires_at = row[EXPIRES_AT]
        if (
            len(found) >= most
            or row[DUE_AT] > unit.now
            or (expires_at is not None and expires_at <= unit.now)
            or (tasks is not None and row[TASK] not in tasks)
            or row[-1] >= HOLD_PARENT
        ):
            break
        found.append(row)
    return found
