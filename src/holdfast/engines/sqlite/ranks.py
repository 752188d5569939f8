"""The lanes of one queue at one priority, as one call goes through them: which comes first.

Lanes come from the store in the order of their first jobs and are merged here; jobs are read from
a lane a few at a time. A queue's jobs that need no lane are one more line beside them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core.flow import CREDIT
from holdfast.engines.sqlite.picture import LaneAt
from holdfast.engines.sqlite.schema import READY
from holdfast.engines.sqlite.scout import Spot
from holdfast.engines.sqlite.unit import Unit

CHUNK_MAX = 128
READ_MIN = 32
PASS_MAX = 1_000
"""So many jobs of other tasks are passed over under the lock; a look without it has no bound."""

TURNS_MAX = 8

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
_LANES = f"SELECT id, turn, due_at, place, tenant, task, slots, bar {_FROM_LANES}"
_BY_TIME = f"{_LANES} ORDER BY turn, due_at, place"
_OF_TURN = f"{_LANES} AND turn = ? ORDER BY due_at, place"
_LATER_TURNS = f"{_LANES} AND turn > ? ORDER BY turn, due_at, place"
_NEXT_TURN = f"SELECT turn {_FROM_LANES} AND turn > ? AND turn <= ? ORDER BY turn LIMIT 1"
_LEVEL_TURNS = (
    "UPDATE hf_lanes SET turn = 0 WHERE queue = ? AND bar = ? AND rank = ?"
    " AND due_at IS NOT NULL AND turn > 0 AND turn <= ?"
)


class Reader:
    """Reads a queue's lanes and their jobs for one call."""

    def __init__(
        self, unit: Unit, queue_id: int, tasks: frozenset[str] | None, spot: Spot | None
    ) -> None:
        self._unit = unit
        self._queue_id = queue_id
        self._tasks = tasks
        self._spot = spot
        self._cursors: list[Any] = []
        self._recall = unit.picture.recall
        self._begun = 0
        self.passed = 0

    def close(self) -> None:
        """A cursor left open would hold its snapshot past the transaction, and the next one would
        be refused."""
        for cursor in self._cursors:
            cursor.close(True)

    def by_time(self, bar: int, rank: int) -> Iterator[LaneAt]:
        """Those with a due job, by (due_at, place)."""
        now, tasks = self._unit.now, self._tasks
        for row in self._walk(_BY_TIME, (self._queue_id, bar, rank)):
            if row[2] > now:
                return
            if tasks is None or row[5] in tasks:
                yield self._recall(row)

    def by_turn(self, bar: int, rank: int, vclock: int, asleep: list[int]) -> Iterator[LaneAt]:
        """By (the turn that counts, due_at, place). Those whose first job is not due are noted."""
        known, floor = (self._queue_id, bar, rank), max(0, vclock - CREDIT)
        lines = [self._walk(_OF_TURN, (*known, turn)) for turn in self._turns(known, floor)]
        for found in (
            lines[0] if len(lines) == 1 else heapq.merge(*lines, key=lambda row: row[2:4]),
            self._walk(_LATER_TURNS, (*known, floor)),
        ):
            for row in found:
                if row[2] > self._unit.now:
                    asleep.append(row[0])
                elif self._tasks is None or row[5] in self._tasks:
                    yield self._recall(row)

    def _walk(self, statement: str, values: tuple[int, ...]) -> Any:
        self._cursors.append(self._unit.run(statement, values))
        return self._cursors[-1]

    def _turns(self, known: tuple[int, int, int], floor: int) -> list[int]:
        """The turns that count alike, being further back than any credit: hardly ever many."""
        turns: list[int] = []
        turn = -1
        while (turn := self._unit.run(_NEXT_TURN, (*known, turn, floor)).get) is not None:
            turns.append(turn)
            if len(turns) > TURNS_MAX:
                self._unit.run(_LEVEL_TURNS, (*known, floor))
                return [0]
        return turns

    def plain(self, rank: int) -> LaneAt | None:
        """The line of those that need no lane; before the spot there was nothing for us."""
        spot = self._spot
        if spot is not None and rank < spot.rank:
            return None
        first = (-1, -1)
        if spot is not None and rank == spot.rank:
            first = (spot.due_at, spot.place - 1)
        line = LaneAt((0, 0, *first, "", "", "[]", rank))
        self._read_plain(line, 1)
        if not line.jobs:
            return None
        line.time = line.jobs[0][:2]
        return line

    def begin(self, lanes: list[LaneAt], count: int) -> None:
        """The first `count` jobs of each of which none is known: in one statement, because lanes
        are many."""
        self._begun += len(lanes)
        by_id = {lane.id: lane for lane in lanes if lane.id and not lane.jobs}
        if not by_id:
            return
        found = self._unit.run(_FIRST_JOBS, (str(list(by_id)), self._queue_id, count))
        for id_, due_at, place, seq, expires_at in found:
            by_id[id_].jobs.append((due_at, place, seq, expires_at))
        for lane in by_id.values():
            lane.jobs.sort()
            lane.more = len(lane.jobs) == count

    def go_on(self, lane: LaneAt, wanted: int) -> None:
        """The next jobs of one: its part of those that are wanted, and some for later calls."""
        count = max(READ_MIN, 1 + wanted // max(1, self._begun))
        if not lane.id:
            self._read_plain(lane, count)
            if lane.at < len(lane.jobs):
                lane.time = lane.jobs[lane.at][:2]
            return
        after = lane.jobs[-1][:2] if lane.jobs else (-1, -1)
        found = self._unit.run(_NEXT_JOBS, (self._queue_id, lane.id, *after, count)).fetchall()
        lane.jobs += found
        lane.more = len(found) == count
        if found and lane.at == len(lane.jobs) - len(found):
            lane.time = found[0][:2]

    def _read_plain(self, line: LaneAt, count: int) -> None:
        after = line.jobs[-1][:2] if line.jobs else line.first
        now, found = self._unit.now, 0
        line.more = False
        for *job, task in self._unit.run(
            _PLAIN_JOBS, (self._queue_id, line.bar, *after, now, count + PASS_MAX)
        ):
            if self._tasks is None or task in self._tasks:
                line.jobs.append(tuple(job))
                found += 1
                if found == count:
                    line.more = True
                    return
            else:
                self.passed += 1
                if self.passed >= PASS_MAX:
                    return


class Rank:
    """One priority. `key` says where a lane stands now, `bound` how early it and those after it
    in the store could stand; `is_usable` whether its first job may go. All that were just read are
    handed to `prepare` before. A lane gives `each` at a time, or as many as come first."""

    def __init__(
        self,
        reader: Reader,
        lanes: Iterator[LaneAt],
        *,
        key: Callable[[LaneAt], tuple[int, ...]],
        bound: Callable[[LaneAt], tuple[int, ...]],
        is_usable: Callable[[LaneAt], bool],
        prepare: Callable[[list[LaneAt]], None],
        each: int = 0,
    ) -> None:
        self.loaded: list[LaneAt] = []
        self._reader = reader
        self._lanes = lanes
        self._key = key
        self._bound = bound
        self._is_usable = is_usable
        self._prepare = prepare
        self._each = each
        self._heap: list[tuple[tuple[int, ...], int, LaneAt]] = []
        self._times: list[tuple[tuple[int, int], int, LaneAt]] | None = None
        self._next = next(lanes, None)

    def first(self, wanted: int) -> LaneAt | None:
        """The lane whose first job goes next, if one may go."""
        heap = self._heap
        while True:
            while self._next is not None and (not heap or self._bound(self._next) < heap[0][0]):
                self._load(wanted)
            if not heap:
                return None
            key, _, lane = heap[0]
            if lane.is_out or not self._is_usable(lane):
                lane.is_out = True
                heapq.heappop(heap)
            elif (now := self._key(lane)) != key:
                heapq.heapreplace(heap, (now, lane.id, lane))
            else:
                return lane

    def best_time(self) -> tuple[int, int] | None:
        """Of the job that has waited longest of all that may go, in whichever lane."""
        if self._times is None:
            while self._next is not None:
                self._load(CHUNK_MAX)
            self._times = sorted((lane.time, lane.id, lane) for lane in self.loaded)
        times = self._times
        while times:
            time, _, lane = times[0]
            if lane.is_out or not self._is_usable(lane):
                lane.is_out = True
                heapq.heappop(times)
            elif lane.time != time:
                heapq.heapreplace(times, (lane.time, lane.id, lane))
            else:
                return time
        return None

    def _load(self, wanted: int) -> None:
        chunk: list[LaneAt] = []
        most = min(CHUNK_MAX, max(1, -(-wanted // (self._each or 1))))
        while self._next is not None and len(chunk) < most:
            chunk.append(self._next)
            self._next = next(self._lanes, None)
        # One more than may be wanted: who is first in the end must be known.
        count = 1 + -(-wanted // len(chunk))
        self._reader.begin(chunk, self._each + 1 if self._each else count)
        self._prepare(chunk)
        for lane in chunk:
            heapq.heappush(self._heap, (self._key(lane), lane.id, lane))
        self.loaded += chunk
