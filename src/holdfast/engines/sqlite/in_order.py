"""One priority of a queue whose jobs go by time alone, or noisy tenants last: the usual case, and
so without a word too many. What is full, empty or expired on the way is noted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from holdfast.engines.sqlite.picture import LaneAt
from holdfast.engines.sqlite.ranks import CHUNK_MAX, Reader
from holdfast.engines.sqlite.slots import Room

HOLD_MAX = 20_000
"""So many expired jobs are put aside in one call at most; then it answers with what it has."""

_LAST = (True, 2**63, 0)


class Haul:
    """What one call has taken so far, and what it has met."""

    __slots__ = ("barred", "expired", "gates", "is_shut", "most", "seqs", "tenants")

    def __init__(self) -> None:
        self.most = 0
        self.gates: list[int] = []
        """The slots that every job needs: when one is full, the call is over."""
        self.is_shut = False
        self.seqs: list[int] = []
        self.expired: list[int] = []
        self.barred: dict[int, int] = {}
        """Lanes, each with the slot that had no room."""
        self.tenants: dict[str, int] = {}

    @property
    def left(self) -> int:
        return 0 if self.is_shut else self.most - len(self.seqs)

    def take(self, seqs: list[int], lane: LaneAt) -> None:
        self.seqs += seqs
        self.tenants[lane.tenant] = self.tenants.get(lane.tenant, 0) + len(seqs)

    def bar(self, lane: LaneAt, slot: int) -> None:
        if slot in self.gates:
            self.is_shut = True
        else:
            self.barred[lane.id] = slot

    def put_aside(self, seq: int) -> None:
        self.expired.append(seq)
        if len(self.expired) >= HOLD_MAX:
            self.is_shut = True


class InOrder:
    def __init__(self, reader: Reader, room: Room, haul: Haul, loud: frozenset[str]) -> None:
        self._reader = reader
        self._room = room
        self._haul = haul
        self._loud = loud
        self._heap: list[tuple[bool, int, int, int, LaneAt]] = []
        self._upcoming: LaneAt | None = None
        self._bound = _LAST
        self.loaded: list[LaneAt] = []

    def take(self, lanes: Iterator[LaneAt], now: int) -> None:
        """From these, which come by the times of their first jobs."""
        haul, heap, room = self._haul, self._heap, self._room.left
        seqs, tenants = haul.seqs, haul.tenants
        self._upcoming = next(lanes, None)
        left = haul.left
        while left > 0:
            if not heap or self._bound < heap[0]:
                self._load(lanes, left, now)
                if not heap:
                    break
            lane = heap[0][4]
            _, _, seq, expires_at = lane.jobs[lane.at]
            if expires_at is not None and expires_at <= now:
                haul.put_aside(seq)
                left = haul.left
                self._pass_on(lane, left, now)
                continue
            for slot in lane.slots:
                if room[slot] <= 0:
                    haul.bar(lane, slot)
                    left = haul.left
                    heapq.heappop(heap)
                    break
            else:
                for slot in lane.slots:
                    room[slot] -= 1
                tenants[lane.tenant] = tenants.get(lane.tenant, 0) + 1
                seqs.append(seq)
                left -= 1
                self._pass_on(lane, left, now)

    def _pass_on(self, lane: LaneAt, left: int, now: int) -> None:
        """From the first of all to the next of its lane, wherever that stands."""
        lane.at = at = lane.at + 1
        if at == len(lane.jobs) and lane.more:
            self._reader.go_on(lane, left)
        if at < len(lane.jobs) and (job := lane.jobs[at])[0] <= now:
            entry = (lane.tenant in self._loud, job[0], job[1], lane.id, lane)
            heapq.heapreplace(self._heap, entry)
        else:
            heapq.heappop(self._heap)

    def _load(self, lanes: Iterator[LaneAt], wanted: int, now: int) -> None:
        """More of them, until the next one cannot come before those that were read."""
        heap, upcoming = self._heap, self._upcoming
        while upcoming is not None and (not heap or (False, *upcoming.time) < heap[0]):
            chunk = [upcoming, *islice(lanes, min(CHUNK_MAX, wanted) - 1)]
            upcoming = next(lanes, None)
            # One more than may be wanted: who is first in the end must be known.
            self._reader.begin(chunk, 1 + -(-wanted // len(chunk)))
            self._room.load({slot for lane in chunk for slot in lane.slots})
            for lane in chunk:
                if lane.jobs and (job := lane.jobs[0])[0] <= now:
                    entry = (lane.tenant in self._loud, job[0], job[1], lane.id, lane)
                    heapq.heappush(heap, entry)
            self.loaded += chunk
        self._upcoming = upcoming
        # Noisy tenants go behind those of lanes that were not read yet.
        self._bound = _LAST if upcoming is None else (False, *upcoming.time)
