"""The order in which the lanes of one priority give jobs to a call, and the reader of those lanes.

`TimeOrder` and `TurnOrder` are the common cases, written for speed: jobs by time, or tenants in
turn. `GeneralOrder` serves group batches and aging, where each choice depends on the jobs chosen
before. All of them read lanes lazily, bar lanes without capacity and hold expired jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from holdfast.core.fairness import CREDIT, turn_after
from holdfast.engines.sqlite.flow.limits import SlotCapacity
from holdfast.engines.sqlite.rows import QueuePosition
from holdfast.engines.sqlite.schema import READY
from holdfast.engines.sqlite.transaction import (
    DUE_AT,
    ID,
    LANE_COLUMNS,
    PLACE,
    TASK,
    LaneCursor,
    Transaction,
)

CHUNK_MAX = 128
READ_MIN = 32
PASS_MAX = 1_000
"""Jobs of other tasks skipped under the lock in one call; a check without the lock has no bound."""

TURNS_MAX = 8

EXPIRED_MAX = 20_000
"""Expired jobs held in one call; the call then returns what it has."""

_NEXT_JOBS = (
    "SELECT due_at, place, seq, expires_at FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ? AND state = 0 AND holds <> 0 AND holds = 1 AND lane = ?"
    " AND (due_at, place) > (?, ?) ORDER BY due_at, place LIMIT ?"
)
_FIRST_JOBS = (
    "SELECT l.value, j.due_at, j.place, j.seq, j.expires_at FROM json_each(?1) l"
    " CROSS JOIN hf_jobs j ON j.seq IN (SELECT seq FROM hf_jobs INDEXED BY hf_aside"
    " WHERE queue = ?2 AND state = 0 AND holds <> 0 AND holds = 1 AND lane = l.value"
    " ORDER BY due_at, place LIMIT ?3)"
)
_PLAIN_JOBS = (
    f"SELECT due_at, place, seq, expires_at, task {READY} AND rank = ?"
    " AND (due_at, place) > (?, ?) AND due_at <= ? ORDER BY due_at, place LIMIT ?"
)
_FROM_LANES = (
    "FROM hf_lanes INDEXED BY hf_lanes_first"
    " WHERE queue = ? AND bar = ? AND rank = ? AND due_at IS NOT NULL"
)
_LANES = f"SELECT {LANE_COLUMNS} {_FROM_LANES}"
_BY_TIME = f"{_LANES} ORDER BY turn, due_at, place"
_OF_TURN = f"{_LANES} AND turn = ? ORDER BY due_at, place"
_LATER_TURNS = f"{_LANES} AND turn > ? ORDER BY turn, due_at, place"
_NEXT_TURN = f"SELECT turn {_FROM_LANES} AND turn > ? AND turn <= ? ORDER BY turn LIMIT 1"
_LEVEL_TURNS = (
    "UPDATE hf_lanes SET turn = 0 WHERE queue = ? AND bar = ? AND rank = ?"
    " AND due_at IS NOT NULL AND turn > 0 AND turn <= ?"
)
_LAST = (True, 2**63, 0)
_LAST_TURN: tuple[int, ...] = (2**63,)


class Selection:
    """The jobs one call has chosen so far, and the full lanes and expired jobs it has met."""

    __slots__ = ("barred", "expired", "is_closed", "limit", "queue_slots", "seqs", "tenants")

    def __init__(self) -> None:
        self.limit: int = 0
        self.queue_slots: list[int] = []
        """Slots that every job of the queue needs: when one is full, the call is over."""
        self.is_closed: bool = False
        self.seqs: list[int] = []
        self.expired: list[int] = []
        self.barred: dict[int, int] = {}
        """The slot without capacity, by lane."""
        self.tenants: dict[str, int] = {}
        """The number of chosen jobs, by tenant."""

    @property
    def left(self) -> int:
        """The number of jobs the call may still choose."""
        return 0 if self.is_closed else self.limit - len(self.seqs)

    def take(self, seqs: list[int], lane: LaneCursor) -> None:
        """Choose these jobs of a lane."""
        self.seqs += seqs
        self.tenants[lane.tenant] = self.tenants.get(lane.tenant, 0) + len(seqs)

    def bar(self, lane: LaneCursor, slot: int) -> None:
        """Bar a lane because this slot has no capacity."""
        if slot in self.queue_slots:
            self.is_closed = True
        else:
            self.barred[lane.id] = slot

    def hold_expired(self, seq: int) -> None:
        """Hold an expired job, for the reaper."""
        self.expired.append(seq)
        if len(self.expired) >= EXPIRED_MAX:
            self.is_closed = True


class CallTurns:
    """The turns of tenants during one call. A tenant has one turn, in however many lanes."""

    __slots__ = ("_weights", "quantum", "taken", "vclock")

    def __init__(self, vclock: int, weights: Mapping[str, int], quantum: int) -> None:
        self._weights = weights
        self.vclock: int = vclock
        self.quantum: int = quantum
        self.taken: dict[str, int] = {}
        """The new turns of tenants that were served."""

    def of(self, lane: LaneCursor) -> int:
        """The effective turn of a lane's tenant now."""
        turn, least = self.taken.get(lane.tenant, lane.turn), self.vclock - CREDIT
        return max(least, turn)

    def stored(self) -> Callable[[LaneCursor], tuple[int, ...]]:
        """The sort key of lanes as stored when the call began: lanes read later never come
        earlier.
        """
        least = self.vclock - CREDIT
        return lambda lane: (max(lane.turn, least), *lane.time)

    def serve(self, tenant: str, turn: int, count: int) -> None:
        """Advance a tenant's turn after `count` of its jobs were chosen."""
        self.taken[tenant] = turn_after(turn, count, self._weights.get(tenant, 1))
        self.vclock = max(self.vclock, turn)


class TimeOrder:
    """Jobs of one priority by time, those of noisy tenants last."""

    def __init__(
        self,
        reader: LaneReader,
        capacity: SlotCapacity,
        selection: Selection,
        noisy: frozenset[str],
    ) -> None:
        self._reader = reader
        self._capacity = capacity
        self._selection = selection
        self._noisy = noisy
        self._heap: list[tuple[bool, int, int, int, LaneCursor]] = []
        self._upcoming: LaneCursor | None = None
        self._bound = _LAST
        self.loaded: list[LaneCursor] = []

    def take(self, lanes: Iterator[LaneCursor], now: int) -> None:
        """Choose jobs from these lanes, which come by the times of their first jobs."""
        selection, heap, free = self._selection, self._heap, self._capacity.left
        seqs, tenants = selection.seqs, selection.tenants
        self._upcoming = next(lanes, None)
        left = selection.left
        while left > 0:
            if not heap or self._bound < heap[0]:
                self._load(lanes, left, now)
                if not heap:
                    break
            lane = heap[0][4]
            _, _, seq, expires_at = lane.jobs[lane.at]
            if expires_at is not None and expires_at <= now:
                selection.hold_expired(seq)
                left = selection.left
                self._advance(lane, left, now)
                continue
            for slot in lane.slots:
                if free[slot] <= 0:
                    selection.bar(lane, slot)
                    left = selection.left
                    heapq.heappop(heap)
                    break
            else:
                for slot in lane.slots:
                    free[slot] -= 1
                tenants[lane.tenant] = tenants.get(lane.tenant, 0) + 1
                seqs.append(seq)
                left -= 1
                self._advance(lane, left, now)

    def _advance(self, lane: LaneCursor, left: int, now: int) -> None:
        """Go to the next job of the first lane, and sort the lane in again."""
        lane.at = at = lane.at + 1
        if at == len(lane.jobs) and lane.more:
            self._reader.read_more(lane, left)
        if at < len(lane.jobs) and (job := lane.jobs[at])[0] <= now:
            entry = (lane.tenant in self._noisy, job[0], job[1], lane.id, lane)
            heapq.heapreplace(self._heap, entry)
        else:
            heapq.heappop(self._heap)

    def _load(self, lanes: Iterator[LaneCursor], wanted: int, now: int) -> None:
        """Read lanes until the next one cannot precede those that were read."""
        heap, upcoming = self._heap, self._upcoming
        while upcoming is not None and (not heap or (False, *upcoming.time) < heap[0]):
            chunk = [upcoming, *islice(lanes, min(CHUNK_MAX, wanted) - 1)]
            upcoming = next(lanes, None)
            # One more than may be wanted: the lane's first job after the call must be known.
            self._reader.begin(chunk, 1 + -(-wanted // len(chunk)))
            self._capacity.load({slot for lane in chunk for slot in lane.slots})
            for lane in chunk:
                if lane.jobs and (job := lane.jobs[0])[0] <= now:
                    entry = (lane.tenant in self._noisy, job[0], job[1], lane.id, lane)
                    heapq.heappush(heap, entry)
            self.loaded += chunk
        self._upcoming = upcoming
        # Noisy tenants come after the lanes that were not read yet.
        self._bound = _LAST if upcoming is None else (False, *upcoming.time)


class TurnOrder:
    """Jobs of one priority by the turns of their tenants."""

    def __init__(
        self, reader: LaneReader, capacity: SlotCapacity, selection: Selection, turns: CallTurns
    ) -> None:
        self._reader = reader
        self._capacity = capacity
        self._selection = selection
        self._turns = turns
        self._heap: list[tuple[int, int, int, int, LaneCursor]] = []
        self._upcoming: LaneCursor | None = None
        self._bound_of = turns.stored()
        self._bound = _LAST_TURN
        self.loaded: list[LaneCursor] = []

    def take(self, lanes: Iterator[LaneCursor], now: int) -> None:
        """Choose jobs from these lanes, which come by the turns of their tenants."""
        selection, heap, turns = self._selection, self._heap, self._turns
        self._upcoming = next(lanes, None)
        while selection.left:
            if not heap or self._bound < heap[0]:
                self._load(lanes, now)
                if not heap:
                    break
            before, due_at, place, id_, lane = heap[0]
            turn = turns.of(lane)
            if turn != before:
                # The tenant was served from another of its lanes meanwhile.
                heapq.heapreplace(heap, (turn, due_at, place, id_, lane))
                continue
            full = self._capacity.full(lane.slots)
            if full is not None:
                selection.bar(lane, full)
                heapq.heappop(heap)
                continue
            self._serve(lane, turn, now)
            if lane.at < len(lane.jobs) and (job := lane.jobs[lane.at])[0] <= now:
                heapq.heapreplace(heap, (turns.of(lane), job[0], job[1], id_, lane))
            else:
                heapq.heappop(heap)

    def _serve(self, lane: LaneCursor, turn: int, now: int) -> None:
        """Choose the lane's next jobs, as many as a turn has.

        If the first has expired, none is chosen: the next one may come after other lanes.
        """
        selection = self._selection
        count = min(self._turns.quantum, selection.left, self._capacity.least(lane.slots))
        seqs: list[int] = []
        while lane.at < len(lane.jobs) and count > 0:
            due_at, _, seq, expires_at = lane.jobs[lane.at]
            if due_at > now:
                break
            lane.at += 1
            if lane.at == len(lane.jobs) and lane.more:
                self._reader.read_more(lane, selection.left)
            if expires_at is None or expires_at > now:
                seqs.append(seq)
                count -= 1
                continue
            selection.hold_expired(seq)
            if not seqs or selection.is_closed:
                break
        if seqs:
            selection.take(seqs, lane)
            self._capacity.take(lane.slots, len(seqs))
            self._turns.serve(lane.tenant, turn, len(seqs))

    def _load(self, lanes: Iterator[LaneCursor], now: int) -> None:
        """Read lanes until the next one cannot precede those that were read."""
        heap, upcoming, turns = self._heap, self._upcoming, self._turns
        while upcoming is not None and (not heap or self._bound_of(upcoming) < heap[0]):
            most = min(CHUNK_MAX, -(-self._selection.left // turns.quantum))
            chunk = [upcoming, *islice(lanes, most - 1)]
            upcoming = next(lanes, None)
            # One more than may be wanted: the lane's first job after the call must be known.
            self._reader.begin(chunk, turns.quantum + 1)
            self._capacity.load({slot for lane in chunk for slot in lane.slots})
            for lane in chunk:
                if lane.jobs and (job := lane.jobs[0])[0] <= now:
                    heapq.heappush(heap, (turns.of(lane), job[0], job[1], lane.id, lane))
            self.loaded += chunk
        self._upcoming = upcoming
        self._bound = _LAST_TURN if upcoming is None else self._bound_of(upcoming)


class GeneralOrder:
    """Jobs of one priority, one at a time; the caller takes them.

    `key` is the position of a lane now, `bound` the earliest position that it and the lanes after
    it in the store can have. A lane gives `quantum` jobs at a time, or as many as come first (0).
    """

    def __init__(
        self,
        reader: LaneReader,
        capacity: SlotCapacity,
        selection: Selection,
        lanes: Iterator[LaneCursor],
        *,
        key: Callable[[LaneCursor], tuple[int, ...]],
        bound: Callable[[LaneCursor], tuple[int, ...]],
        quantum: int = 0,
    ) -> None:
        self._reader = reader
        self._capacity = capacity
        self._selection = selection
        self._lanes = lanes
        self._now = reader.now
        self._key = key
        self._bound = bound
        self._quantum = quantum
        self._heap: list[tuple[tuple[int, ...], int, LaneCursor]] = []
        self._times: list[tuple[tuple[int, int], int, LaneCursor]] | None = None
        self._upcoming = next(lanes, None)
        self.loaded: list[LaneCursor] = []

    def first(self, wanted: int) -> LaneCursor | None:
        """The lane whose first job is next; None if no job can start."""
        heap = self._heap
        while True:
            while self._upcoming is not None and (
                not heap or self._bound(self._upcoming) < heap[0][0]
            ):
                self._load(wanted)
            if not heap:
                return None
            key, _, lane = heap[0]
            if lane.is_done or not self.is_usable(lane):
                lane.is_done = True
                heapq.heappop(heap)
            elif (now := self._key(lane)) != key:
                heapq.heapreplace(heap, (now, lane.id, lane))
            else:
                return lane

    def best_time(self) -> tuple[int, int] | None:
        """(due_at, place) of the job that has waited longest of those that can start."""
        if self._times is None:
            while self._upcoming is not None:
                self._load(CHUNK_MAX)
            self._times = sorted((lane.time, lane.id, lane) for lane in self.loaded)
        times = self._times
        while times:
            time, _, lane = times[0]
            if lane.is_done or not self.is_usable(lane):
                lane.is_done = True
                heapq.heappop(times)
            elif lane.time != time:
                heapq.heapreplace(times, (lane.time, lane.id, lane))
            else:
                return time
        return None

    def is_usable(self, lane: LaneCursor) -> bool:
        """True if the lane's first job can start. Expired jobs are held on the way."""
        while True:
            if lane.at >= len(lane.jobs):
                if not lane.more:
                    return False
                self._reader.read_more(lane, self._selection.left)
                continue
            due_at, _, seq, expires_at = lane.jobs[lane.at]
            if due_at > self._now:
                return False
            if expires_at is None or expires_at > self._now:
                break
            self._selection.hold_expired(seq)
            lane.advance()
        full = self._capacity.full(lane.slots)
        if full is not None:
            self._selection.bar(lane, full)
        return full is None

    def _load(self, wanted: int) -> None:
        chunk: list[LaneCursor] = []
        most = min(CHUNK_MAX, max(1, -(-wanted // (self._quantum or 1))))
        while self._upcoming is not None and len(chunk) < most:
            chunk.append(self._upcoming)
            self._upcoming = next(self._lanes, None)
        # One more than may be wanted: the lane's first job after the call must be known.
        count = 1 + -(-wanted // len(chunk))
        self._reader.begin(chunk, self._quantum + 1 if self._quantum else count)
        self._capacity.load({slot for lane in chunk for slot in lane.slots})
        for lane in chunk:
            heapq.heappush(self._heap, (self._key(lane), lane.id, lane))
        self.loaded += chunk


class LaneReader:
    """Reads a queue's lanes and their jobs for one call; close it before the commit.

    Lanes come in the order of their first jobs; the jobs of a lane are read a few at a time. Jobs
    that need no lane are read as one more lane, with id 0.
    """

    def __init__(
        self,
        transaction: Transaction,
        queue_id: int,
        tasks: frozenset[str] | None,
        start: QueuePosition | None,
    ) -> None:
        self._transaction = transaction
        self.now: int = transaction.now
        self._queue_id = queue_id
        self._tasks = tasks
        self._start = start
        self._cursors: list[Any] = []
        self._recall = transaction.lane_cache.recall
        self._begun = 0
        self.passed: int = 0
        """The number of skipped jobs of other tasks."""

    def close(self) -> None:
        """Close all cursors: an open one would keep its snapshot, and the next call would fail."""
        for cursor in self._cursors:
            cursor.close(True)

    def by_time(self, bar: int, rank: int) -> Iterator[LaneCursor]:
        """The lanes with a due job, by (due_at, place) of that job."""
        now, tasks = self._transaction.now, self._tasks
        for row in self._select(_BY_TIME, (self._queue_id, bar, rank)):
            if row[DUE_AT] > now:
                return
            if tasks is None or row[TASK] in tasks:
                yield self._recall(row)

    def by_turn(self, bar: int, rank: int, vclock: int, asleep: list[int]) -> Iterator[LaneCursor]:
        """The lanes by (effective turn, due_at, place). Lanes whose first job is not due are added
        to `asleep`."""
        key, floor = (self._queue_id, bar, rank), max(0, vclock - CREDIT)
        early = [self._select(_OF_TURN, (*key, turn)) for turn in self._early_turns(key, floor)]
        for found in (
            early[0]
            if len(early) == 1
            else heapq.merge(*early, key=lambda row: row[DUE_AT : PLACE + 1]),
            self._select(_LATER_TURNS, (*key, floor)),
        ):
            for row in found:
                if row[DUE_AT] > self._transaction.now:
                    asleep.append(row[ID])
                elif self._tasks is None or row[TASK] in self._tasks:
                    yield self._recall(row)

    def plain(self, rank: int) -> LaneCursor | None:
        """The jobs that need no lane, from the start of the call's search on."""
        start = self._start
        if start is not None and rank < start.rank:
            return None
        first = (-1, -1)
        if start is not None and rank == start.rank:
            first = (start.due_at, start.place - 1)
        lane = LaneCursor((0, 0, *first, "", "", "[]", rank))
        self._read_plain(lane, 1)
        if not lane.jobs:
            return None
        lane.time = lane.jobs[0][:2]
        return lane

    def begin(self, lanes: list[LaneCursor], count: int) -> None:
        """Read the first `count` jobs of each lane that has none cached, in one statement."""
        self._begun += len(lanes)
        by_id = {lane.id: lane for lane in lanes if lane.id and not lane.jobs}
        if not by_id:
            return
        found = self._transaction.run(_FIRST_JOBS, (str(list(by_id)), self._queue_id, count))
        for id_, due_at, place, seq, expires_at in found:
            by_id[id_].jobs.append((due_at, place, seq, expires_at))
        for lane in by_id.values():
            lane.jobs.sort()
            lane.more = len(lane.jobs) == count

    def read_more(self, lane: LaneCursor, wanted: int) -> None:
        """Read the next jobs of a lane: its part of those wanted, and some for later calls."""
        count = max(READ_MIN, 1 + wanted // max(1, self._begun))
        if not lane.id:
            self._read_plain(lane, count)
            if lane.at < len(lane.jobs):
                lane.time = lane.jobs[lane.at][:2]
            return
        after = lane.jobs[-1][:2] if lane.jobs else (-1, -1)
        values = (self._queue_id, lane.id, *after, count)
        found = self._transaction.run(_NEXT_JOBS, values).fetchall()
        lane.jobs += found
        lane.more = len(found) == count
        if found and lane.at == len(lane.jobs) - len(found):
            lane.time = found[0][:2]

    def _select(self, statement: str, values: tuple[int, ...]) -> Any:
        self._cursors.append(self._transaction.run(statement, values))
        return self._cursors[-1]

    def _early_turns(self, key: tuple[int, int, int], floor: int) -> list[int]:
        """The turns up to `floor`, which count as equal; if there are many, they are set to 0."""
        turns: list[int] = []
        turn = -1
        while (turn := self._transaction.run(_NEXT_TURN, (*key, turn, floor)).get) is not None:
            turns.append(turn)
            if len(turns) > TURNS_MAX:
                self._transaction.run(_LEVEL_TURNS, (*key, floor))
                return [0]
        return turns

    def _read_plain(self, lane: LaneCursor, count: int) -> None:
        after = lane.jobs[-1][:2] if lane.jobs else lane.first
        now, found = self._transaction.now, 0
        lane.more = False
        # The cursor of plain jobs has its rank in `bar`.
        for *job, task in self._transaction.run(
            _PLAIN_JOBS, (self._queue_id, lane.bar, *after, now, count + PASS_MAX)
        ):
            if self._tasks is None or task in self._tasks:
                lane.jobs.append(tuple(job))
                found += 1
                if found == count:
                    lane.more = True
                    return
            else:
                self.passed += 1
                if self.passed >= PASS_MAX:
                    return
