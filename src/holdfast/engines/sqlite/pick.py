"""Which jobs of a queue with lanes one call takes, one after the other, and what that costs.

Nothing but lanes is compared: one that is full or empty is met once and then barred, however many
jobs stand in it. The rules are those of the memory engine, to the job.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from holdfast.core import flow
from holdfast.core.model import LeaseRequest
from holdfast.engines.sqlite import fair, groups, lanes
from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.flow_schema import ASLEEP, HOLD_PARENT, OPEN
from holdfast.engines.sqlite.in_order import Haul, InOrder
from holdfast.engines.sqlite.in_turn import InTurn, Turns
from holdfast.engines.sqlite.parking import Parks
from holdfast.engines.sqlite.picture import LaneAt
from holdfast.engines.sqlite.ranks import PASS_MAX, Rank, Reader
from holdfast.engines.sqlite.schema import RANK_FIRST, READY
from holdfast.engines.sqlite.scout import Spot
from holdfast.engines.sqlite.slots import Room, gates
from holdfast.engines.sqlite.unit import Unit

_NEXT_RANK = (
    "SELECT rank FROM hf_lanes INDEXED BY hf_lanes_first"
    " WHERE queue = ? AND bar = ? AND rank > ? AND due_at IS NOT NULL ORDER BY rank LIMIT 1"
)
_NEXT_PLAIN_RANK = f"SELECT rank {READY} AND rank > ? ORDER BY rank LIMIT 1"
_WAKE = (
    "UPDATE hf_lanes SET bar = 0 WHERE id IN (SELECT id FROM hf_lanes INDEXED BY hf_lanes_asleep"
    " WHERE queue = ? AND bar = -1 AND due_at <= ?)"
)


class Pick:
    """`choose`, then lease what was chosen, then `write`."""

    def __init__(self, unit: Unit, line: Line, request: LeaseRequest, spot: Spot | None) -> None:
        self._unit = unit
        self._line = line
        self._queue = line.queue
        self._request = request
        self._reader = Reader(unit, line.id, request.tasks, spot)
        self._room = Room(unit, line.queue)
        self._parks = Parks(unit, line.id, self._room)
        self._bars: list[int] = []
        # A limit of the whole queue leaves no job without a lane.
        limits = line.queue.limits
        self._has_plain = line.queue.fairness == "off" and all(
            each.task is not None for each in limits
        )
        self._ranks: list[Rank | InOrder | InTurn] = []
        self._haul = Haul()
        self._asleep: list[int] = []
        self._loud: frozenset[str] = frozenset()
        self._turns = Turns(0, line.queue.weights, flow.quantum(request.limit))

    @property
    def is_weary(self) -> bool:
        """It met more than one call may pass over."""
        return self._reader.passed >= PASS_MAX

    def choose(self, most: int) -> list[int]:
        """The seqs of at most so many jobs, in the order in which they are taken."""
        haul, queue = self._haul, self._queue
        haul.most = most
        haul.gates = gates(self._unit, queue)
        self._room.load(haul.gates)
        if self._room.full(tuple(haul.gates)) is not None:
            return []
        self._bars = [OPEN, *self._parks.open()]
        if queue.fairness == "shares":
            self._unit.run(_WAKE, (self._line.id, self._unit.now))
            self._turns.vclock = fair.vclock(self._unit, self._line.id)
        elif queue.fairness == "noisy":
            self._loud = fair.noisy(self._unit, self._line.id)
        if queue.aging_ms is not None:
            self._choose_by_age(queue.aging_ms)
            return haul.seqs
        for number in self._each_number():
            if queue.group_batch == 1:
                self._take_from_all(number)
            else:
                rank = self._rank(number)
                while haul.left and self._take_from(rank):
                    pass
            if not haul.left:
                break
        return haul.seqs

    def write(self) -> None:
        """Once the jobs are leased: lanes, slots and turns as they are now."""
        unit = self._unit
        self._reader.close()
        haul = self._haul
        if haul.expired:
            unit.run(
                "UPDATE hf_jobs SET holds = holds | 2"
                " WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0",
                (str(haul.expired),),
            )
            unit.note_aside()
        self._room.write()
        self._write_lanes()
        self._parks.write(haul.barred.values())
        turns = self._turns
        if turns.taken:
            fair.took_turns(unit, self._line.id, turns.taken, haul.tenants, turns.vclock)
        elif haul.tenants and self._queue.fairness != "off":
            fair.started(unit, self._line.id, haul.tenants)

    def _each_number(self) -> Iterator[int]:
        """The ranks at which something waits."""
        rank: int | None = RANK_FIRST
        run, queue_id = self._unit.run, self._line.id
        while rank is not None:
            after = rank
            found = [run(_NEXT_RANK, (queue_id, bar, after)).get for bar in self._bars]
            if self._has_plain:
                found.append(run(_NEXT_PLAIN_RANK, (queue_id, after)).get)
            rank = min((each for each in found if each is not None), default=None)
            if rank is not None:
                yield rank

    def _take_from_all(self, rank: int) -> None:
        """What is wanted of one priority, where jobs go one by one."""
        known, now = (self._reader, self._room, self._haul), self._unit.now
        if self._queue.fairness == "shares":
            in_turn = InTurn(*known, self._turns)
            self._ranks.append(in_turn)
            in_turn.take(self._by_turn(rank), now)
        else:
            in_order = InOrder(*known, self._loud)
            self._ranks.append(in_order)
            in_order.take(self._by_time(rank), now)

    def _by_turn(self, rank: int) -> Iterator[LaneAt]:
        vclock, asleep = self._turns.vclock, self._asleep
        by_turn = [self._reader.by_turn(bar, rank, vclock, asleep) for bar in self._bars]
        return heapq.merge(*by_turn, key=self._turns.stored()) if len(by_turn) > 1 else by_turn[0]

    def _by_time(self, rank: int) -> Iterator[LaneAt]:
        by_time = [self._reader.by_time(bar, rank) for bar in self._bars]
        if self._has_plain and (plain := self._reader.plain(rank)) is not None:
            by_time.append(iter([plain]))
        if len(by_time) == 1:
            return by_time[0]
        return heapq.merge(*by_time, key=lambda lane: lane.time)

    def _rank(self, number: int) -> Rank:
        self._ranks.append(rank := self._rank_of(number))
        return rank

    def _rank_of(self, rank: int) -> Rank:
        reader = self._reader
        if self._queue.fairness == "shares":
            return Rank(
                reader,
                self._by_turn(rank),
                key=lambda lane: (self._turns.of(lane), *lane.time),
                bound=self._turns.stored(),
                is_usable=self._is_usable,
                prepare=self._prepare,
                each=self._turns.each,
            )
        return Rank(
            reader,
            self._by_time(rank),
            key=lambda lane: (lane.tenant in self._loud, *lane.time),
            bound=lambda lane: (0, *lane.time),
            is_usable=self._is_usable,
            prepare=self._prepare,
        )

    def _choose_by_age(self, aging_ms: int) -> None:
        """The priority of the job that is best by age, each time; then by that one's rule."""
        ranks = [(number, self._rank(number)) for number in self._each_number()]
        while self._haul.left:
            best = None
            for number, rank in ranks:
                time = rank.best_time()
                if time is not None:
                    aged = (time[0] + number * aging_ms, number, *time)
                    best = (aged, rank) if best is None else min(best, (aged, rank))
            if best is None or not self._take_from(best[1]):
                return

    def _take_from(self, rank: Rank) -> bool:
        """The next job of this priority, or the next turn; False if there is none."""
        haul = self._haul
        lane = rank.first(haul.left)
        if lane is None or haul.is_shut:
            return False
        if self._queue.fairness != "shares":
            self._take(lane)
            return True
        turn, before = self._turns.of(lane), len(haul.seqs)
        for _ in range(self._turns.each):
            if not haul.left or not self._is_usable(lane):
                break
            self._take(lane)
        self._turns.serve(lane.tenant, turn, len(haul.seqs) - before)
        return True

    def _take(self, lane: LaneAt) -> None:
        """The first job of a lane, which may go, and those that go with it."""
        seq = lane.jobs[lane.at][2]
        lane.pass_on()
        self._count(seq, lane)
        if self._queue.group_batch > 1:
            self._take_followers(seq, lane)

    def _count(self, seq: int, lane: LaneAt) -> None:
        self._haul.take([seq], lane)
        self._room.take(lane.slots)

    def _take_followers(self, head: int, lane: LaneAt) -> None:
        """Those who come next in its strict group, as long as they are like it."""
        group = self._unit.run("SELECT grp FROM hf_jobs WHERE seq = ?", (head,)).get
        if group is None:
            return
        fields = "seq, due_at, expires_at, task, holds, lane"
        count = 1
        for seq, due_at, expires_at, task, holds, lane_id in groups.members(
            self._unit, self._line.id, group, fields
        ):
            if seq == head:
                continue
            tasks, now = self._request.tasks, self._unit.now
            if (
                count >= self._queue.group_batch
                or not self._haul.left
                or due_at > now
                or (expires_at is not None and expires_at <= now)
                or (tasks is not None and task not in tasks)
                or holds >= HOLD_PARENT
                or not lanes.are_alike(self._unit, lane.id or None, lane_id)
                or self._room.full(lane.slots) is not None
            ):
                break
            self._count(seq, lane)
            count += 1

    def _prepare(self, chunk: list[LaneAt]) -> None:
        self._room.load({slot for lane in chunk for slot in lane.slots})

    def _is_usable(self, lane: LaneAt) -> bool:
        """May its first job go? Those past their expiry are put aside on the way."""
        now = self._unit.now
        while True:
            if lane.at >= len(lane.jobs):
                if not lane.more:
                    return False
                self._reader.go_on(lane, self._haul.left)
                continue
            due_at, _, seq, expires_at = lane.jobs[lane.at]
            if due_at > now:
                return False
            if expires_at is None or expires_at > now:
                break
            self._haul.put_aside(seq)
            lane.pass_on()
        full = self._room.full(lane.slots)
        if full is not None:
            self._haul.bar(lane, full)
        return full is None

    def _write_lanes(self) -> None:
        unit, now = self._unit, self._unit.now
        known, unknown = [], []
        barred, turns, keep = self._haul.barred, self._turns.taken, unit.picture.keep
        for lane in (lane for rank in self._ranks for lane in rank.loaded if lane.id):
            bar = barred.get(lane.id, lane.bar)
            first: tuple[int | None, int | None] = (None, None)
            if lane.at < len(lane.jobs):
                first = lane.jobs[lane.at][:2]
                keep(lane)
            elif lane.more:
                unknown.append(lane.id)
                first = lane.first
            else:
                unit.picture.forget_lane(lane.id)
            is_ahead = first[0] is not None and first[0] > now
            if is_ahead and bar == OPEN and self._queue.fairness == "shares":
                bar = ASLEEP
            turn = turns.get(lane.tenant, lane.turn)
            if first != lane.first or bar != lane.bar:
                known.append((*first, bar, turn, lane.id))
        run = unit.connection.executemany
        run("UPDATE hf_lanes SET due_at = ?, place = ?, bar = ?, turn = ? WHERE id = ?", known)
        if unknown:
            lanes.refresh(unit, unknown)
        asleep = [(id_,) for id_ in self._asleep]
        run("UPDATE hf_lanes SET bar = -1 WHERE id = ? AND bar = 0", asleep)
