"""One priority of a queue whose tenants take turns: the usual case, without a word too many."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from holdfast.core import flow
from holdfast.core.flow import CREDIT
from holdfast.engines.sqlite.in_order import Haul
from holdfast.engines.sqlite.picture import LaneAt
from holdfast.engines.sqlite.ranks import CHUNK_MAX, Reader
from holdfast.engines.sqlite.slots import Room

_LAST: tuple[int, ...] = (2**63,)


class Turns:
    """Whose turn it is. A tenant has one turn, in however many lanes."""

    __slots__ = ("_weights", "each", "taken", "vclock")

    def __init__(self, vclock: int, weights: Mapping[str, int], each: int) -> None:
        self._weights = weights
        self.vclock = vclock
        self.each = each
        self.taken: dict[str, int] = {}
        """The new turns of those who were served."""

    def of(self, lane: LaneAt) -> int:
        turn, least = self.taken.get(lane.tenant, lane.turn), self.vclock - CREDIT
        return max(least, turn)

    def stored(self) -> Callable[[LaneAt], tuple[int, ...]]:
        """Where a lane stood when lanes began to be read, whatever was served since: none that is
        read later stood before it."""
        least = self.vclock - CREDIT
        return lambda lane: (max(lane.turn, least), *lane.time)

    def serve(self, tenant: str, turn: int, count: int) -> None:
        self.taken[tenant] = flow.turn_after(turn, count, self._weights.get(tenant, 1))
        self.vclock = max(self.vclock, turn)


class InTurn:
    def __init__(self, reader: Reader, room: Room, haul: Haul, turns: Turns) -> None:
        self._reader = reader
        self._room = room
        self._haul = haul
        self._turns = turns
        self._heap: list[tuple[int, int, int, int, LaneAt]] = []
        self._upcoming: LaneAt | None = None
        self._bound_of = turns.stored()
        self._bound = _LAST
        self.loaded: list[LaneAt] = []

    def take(self, lanes: Iterator[LaneAt], now: int) -> None:
        """From these, which come by the turns of their tenants."""
        haul, heap, turns = self._haul, self._heap, self._turns
        self._upcoming = next(lanes, None)
        while haul.left:
            if not heap or self._bound < heap[0]:
                self._load(lanes, now)
                if not heap:
                    break
            before, due_at, place, id_, lane = heap[0]
            turn = turns.of(lane)
            if turn != before:
                # Served in another of its lanes meanwhile.
                heapq.heapreplace(heap, (turn, due_at, place, id_, lane))
                continue
            full = self._room.full(lane.slots)
            if full is not None:
                haul.bar(lane, full)
                heapq.heappop(heap)
                continue
            self._serve(lane, turn, now)
            if lane.at < len(lane.jobs) and (job := lane.jobs[lane.at])[0] <= now:
                heapq.heapreplace(heap, (turns.of(lane), job[0], job[1], id_, lane))
            else:
                heapq.heappop(heap)

    def _serve(self, lane: LaneAt, turn: int, now: int) -> None:
        """Its next jobs, as many as a turn has. Where the first had expired, there is none yet:
        who comes next may stand further back."""
        haul = self._haul
        goes = min(self._turns.each, haul.left, self._room.least(lane.slots))
        seqs: list[int] = []
        while lane.at < len(lane.jobs) and goes > 0:
            due_at, _, seq, expires_at = lane.jobs[lane.at]
            if due_at > now:
                break
            lane.at += 1
            if lane.at == len(lane.jobs) and lane.more:
                self._reader.go_on(lane, haul.left)
            if expires_at is None or expires_at > now:
                seqs.append(seq)
                goes -= 1
                continue
            haul.put_aside(seq)
            if not seqs or haul.is_shut:
                break
        if seqs:
            haul.take(seqs, lane)
            self._room.take(lane.slots, len(seqs))
            self._turns.serve(lane.tenant, turn, len(seqs))

    def _load(self, lanes: Iterator[LaneAt], now: int) -> None:
        """More of them, until the next one cannot come before those that were read."""
        heap, upcoming, turns = self._heap, self._upcoming, self._turns
        while upcoming is not None and (not heap or self._bound_of(upcoming) < heap[0]):
            most = min(CHUNK_MAX, -(-self._haul.left // turns.each))
            chunk = [upcoming, *islice(lanes, most - 1)]
            upcoming = next(lanes, None)
            # One more than may be wanted: who is first in the end must be known.
            self._reader.begin(chunk, turns.each + 1)
            self._room.load({slot for lane in chunk for slot in lane.slots})
            for lane in chunk:
                if lane.jobs and (job := lane.jobs[0])[0] <= now:
                    heapq.heappush(heap, (turns.of(lane), job[0], job[1], lane.id, lane))
            self.loaded += chunk
        self._upcoming = upcoming
        self._bound = _LAST if upcoming is None else self._bound_of(upcoming)
