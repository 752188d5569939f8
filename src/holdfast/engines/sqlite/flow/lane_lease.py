"""Leases from a queue with lanes: when a job can start, which jobs a call takes, what it writes.

Only lanes are compared: a full or empty lane is met once and then barred, however many jobs it has.
The rules are exactly those of the memory engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from holdfast.core.fairness import quantum
from holdfast.core.model import LeaseRequest
from holdfast.engines.lease import SKIPPED_MANY
from holdfast.engines.sqlite.flow import fairness, groups, lanes
from holdfast.engines.sqlite.flow.lane_order import (
    PASS_MAX,
    CallTurns,
    GeneralOrder,
    LaneReader,
    Selection,
    TimeOrder,
    TurnOrder,
)
from holdfast.engines.sqlite.flow.limits import ParkedLanes, SlotCapacity, queue_wide_slots
from holdfast.engines.sqlite.rows import QueuePosition
from holdfast.engines.sqlite.schema import ASLEEP, HOLD_PARENT, OPEN, RANK_FIRST, READY
from holdfast.engines.sqlite.transaction import LaneCursor, QueueRow, Transaction

_LANES = "FROM hf_lanes INDEXED BY hf_lanes_first WHERE queue = ?1 AND due_at IS NOT NULL"
_WANTED = "(?3 IS NULL OR task IN (SELECT value FROM json_each(?3)))"
_DUE = f"SELECT 1 {_LANES} AND bar = 0 AND due_at <= ?2 AND {_WANTED} LIMIT 1"
_LATER = f"SELECT min(due_at) {_LANES} AND bar = 0 AND due_at > ?2 AND {_WANTED}"
_SKIPPED = f"SELECT count(*) FROM (SELECT 1 {_LANES} AND bar = 0 AND due_at <= ?2 LIMIT ?3)"
_FIRST_OF_RANK = (
    f"SELECT rank, due_at {_LANES} AND bar = 0 AND rank > ?2 ORDER BY rank, turn, due_at LIMIT 1"
)
_PARKED = (
    "SELECT 1 FROM hf_parks p CROSS JOIN hf_lanes l INDEXED BY hf_lanes_first"
    " ON l.queue = p.queue AND l.bar = p.slot AND l.due_at IS NOT NULL"
    " WHERE p.queue = ?1 AND p.wake_us <= ?2 AND l.due_at <= ?3"
    " AND (?4 IS NULL OR l.task IN (SELECT value FROM json_each(?4))) LIMIT 1"
)
_NEXT_WAKE = (
    "SELECT min(wake_us) FROM hf_parks INDEXED BY hf_parks_wake WHERE queue = ? AND wake_us > ?"
)
_NEXT_ASLEEP = (
    "SELECT min(due_at) FROM hf_lanes INDEXED BY hf_lanes_asleep WHERE queue = ? AND bar = -1"
)
_NEXT_RANK = (
    "SELECT rank FROM hf_lanes INDEXED BY hf_lanes_first"
    " WHERE queue = ? AND bar = ? AND rank > ? AND due_at IS NOT NULL ORDER BY rank LIMIT 1"
)
_NEXT_PLAIN_RANK = f"SELECT rank {READY} AND rank > ? ORDER BY rank LIMIT 1"
_WAKE = (
    "UPDATE hf_lanes SET bar = 0 WHERE id IN (SELECT id FROM hf_lanes INDEXED BY hf_lanes_asleep"
    " WHERE queue = ? AND bar = -1 AND due_at <= ?)"
)


def next_in_lanes_ms(
    transaction: Transaction, queue_row: QueueRow, tasks: frozenset[str] | None
) -> int | None:
    """The time until a job in a lane may start; 0 is now, None if only a change can help.

    Only reads, without the lock. It may once return 0 although no job can start: the lease then
    bars the lane.
    """
    full_ms = _full_ms(transaction, queue_row)
    if full_ms != 0:
        return full_ms
    wanted = None if tasks is None else msgspec.json.encode(sorted(tasks)).decode()
    now, now_us = transaction.now, transaction.boot * 1_000
    times = []
    if queue_row.settings.fairness == "shares" or wanted is not None:
        # Under shares the next lease puts open lanes without a due job to sleep.
        if transaction.run(_DUE, (queue_row.id, now, wanted)).get:
            return 0
        later = transaction.run(_LATER, (queue_row.id, now, wanted)).get
        times += [] if later is None else [later - now]
    else:
        rank = RANK_FIRST
        while (
            first := transaction.run(_FIRST_OF_RANK, (queue_row.id, rank)).fetchone()
        ) is not None:
            rank, due_at = first
            if due_at <= now:
                return 0
            times.append(due_at - now)
    asleep = transaction.run(_NEXT_ASLEEP, (queue_row.id,)).get
    if asleep is not None and asleep <= now:
        return 0
    if transaction.run(_PARKED, (queue_row.id, now_us, now, wanted)).get:
        return 0
    times += [] if asleep is None else [asleep - now]
    wake_us = transaction.run(_NEXT_WAKE, (queue_row.id, now_us)).get
    if wake_us is not None:
        times.append(max(1, -(-(wake_us - now_us) // 1_000)))
    return min(times, default=None)


def lanes_skipped(transaction: Transaction, queue_row: QueueRow) -> int:
    """The number of open lanes with a due job, at most SKIPPED_MANY; if no job can be leased, they
    are all of other tasks."""
    found = transaction.run(_SKIPPED, (queue_row.id, transaction.now, SKIPPED_MANY))
    return int(found.get)


def _full_ms(transaction: Transaction, queue_row: QueueRow) -> int | None:
    """The time until the slots that every job needs have capacity; None: when a lease ends."""
    needed = queue_wide_slots(transaction, queue_row.settings)
    if not needed:
        return 0
    capacity = SlotCapacity(transaction, queue_row.settings)
    capacity.load(needed)
    full = capacity.full(tuple(needed))
    if full is None:
        return 0
    wake_us = capacity.wake_us(full)
    return None if wake_us is None else max(1, wake_us // 1_000 - transaction.boot)


class LaneChooser:
    """Chooses jobs of one queue for one call: `choose`, then lease them, then `write`."""

    def __init__(
        self,
        transaction: Transaction,
        queue_row: QueueRow,
        request: LeaseRequest,
        start: QueuePosition | None,
    ) -> None:
        self._transaction = transaction
        self._queue_id = queue_row.id
        self._queue = queue_row.settings
        self._request = request
        self._reader = LaneReader(transaction, queue_row.id, request.tasks, start)
        self._capacity = SlotCapacity(transaction, self._queue)
        self._parked = ParkedLanes(transaction, queue_row.id, self._capacity)
        self._bars: list[int] = []
        # A limit of the whole queue puts every job into a lane.
        self._has_plain = self._queue.fairness == "off" and all(
            limit.task is not None for limit in self._queue.limits
        )
        self._orders: list[GeneralOrder | TimeOrder | TurnOrder] = []
        self._selection = Selection()
        self._asleep: list[int] = []
        self._noisy: frozenset[str] = frozenset()
        self._turns = CallTurns(0, self._queue.weights, quantum(request.limit))

    @property
    def is_exhausted(self) -> bool:
        """True if the call has skipped as many jobs as it may."""
        return self._reader.passed >= PASS_MAX

    def choose(self, limit: int) -> list[int]:
        """The seqs of at most `limit` jobs, in the order in which they are leased."""
        selection, queue = self._selection, self._queue
        selection.limit = limit
        selection.queue_slots = queue_wide_slots(self._transaction, queue)
        self._capacity.load(selection.queue_slots)
        if self._capacity.full(tuple(selection.queue_slots)) is not None:
            return []
        self._bars = [OPEN, *self._parked.open()]
        if queue.fairness == "shares":
            self._transaction.run(_WAKE, (self._queue_id, self._transaction.now))
            self._turns.vclock = fairness.vclock(self._transaction, self._queue_id)
        elif queue.fairness == "noisy":
            self._noisy = fairness.noisy_tenants(self._transaction, self._queue_id)
        if queue.aging_ms is not None:
            self._choose_by_age(queue.aging_ms)
            return selection.seqs
        for rank in self._ranks():
            if queue.group_batch == 1:
                self._take_all(rank)
            else:
                order = self._general_order(rank)
                while selection.left and self._take_next(order):
                    pass
            if not selection.left:
                break
        return selection.seqs

    def write(self) -> None:
        """After the jobs were leased: store lanes, slots and turns as they are now."""
        transaction, selection = self._transaction, self._selection
        self._reader.close()
        if selection.expired:
            transaction.run(
                "UPDATE hf_jobs SET holds = holds | 2"
                " WHERE seq IN (SELECT value FROM json_each(?)) AND state = 0",
                (str(selection.expired),),
            )
            transaction.note_expired()
        self._capacity.write()
        self._write_lanes()
        self._parked.write(selection.barred.values())
        turns, tenants = self._turns, selection.tenants
        if turns.taken:
            fairness.write_turns(transaction, self._queue_id, turns.taken, tenants, turns.vclock)
        elif tenants and self._queue.fairness != "off":
            fairness.note_started(transaction, self._queue_id, tenants)

    def _ranks(self) -> Iterator[int]:
        """The ranks that have waiting jobs, best first."""
        rank: int | None = RANK_FIRST
        run, queue_id = self._transaction.run, self._queue_id
        while rank is not None:
            after = rank
            found = [run(_NEXT_RANK, (queue_id, bar, after)).get for bar in self._bars]
            if self._has_plain:
                found.append(run(_NEXT_PLAIN_RANK, (queue_id, after)).get)
            rank = min((each for each in found if each is not None), default=None)
            if rank is not None:
                yield rank

    def _take_all(self, rank: int) -> None:
        """Choose jobs of one priority, without group batches."""
        reader, capacity, selection = self._reader, self._capacity, self._selection
        now = self._transaction.now
        if self._queue.fairness == "shares":
            turn_order = TurnOrder(reader, capacity, selection, self._turns)
            self._orders.append(turn_order)
            turn_order.take(self._by_turn(rank), now)
        else:
            time_order = TimeOrder(reader, capacity, selection, self._noisy)
            self._orders.append(time_order)
            time_order.take(self._by_time(rank), now)

    def _by_turn(self, rank: int) -> Iterator[LaneCursor]:
        vclock, asleep = self._turns.vclock, self._asleep
        by_turn = [self._reader.by_turn(bar, rank, vclock, asleep) for bar in self._bars]
        return heapq.merge(*by_turn, key=self._turns.stored()) if len(by_turn) > 1 else by_turn[0]

    def _by_time(self, rank: int) -> Iterator[LaneCursor]:
        by_time = [self._reader.by_time(bar, rank) for bar in self._bars]
        if self._has_plain and (plain := self._reader.plain(rank)) is not None:
            by_time.append(iter([plain]))
        if len(by_time) == 1:
            return by_time[0]
        return heapq.merge(*by_time, key=lambda lane: lane.time)

    def _general_order(self, rank: int) -> GeneralOrder:
        reader, capacity, selection = self._reader, self._capacity, self._selection
        turns = self._turns
        if self._queue.fairness == "shares":
            order = GeneralOrder(
                reader,
                capacity,
                selection,
                self._by_turn(rank),
                key=lambda lane: (turns.of(lane), *lane.time),
                bound=turns.stored(),
                quantum=turns.quantum,
            )
        else:
            order = GeneralOrder(
                reader,
                capacity,
                selection,
                self._by_time(rank),
                key=lambda lane: (lane.tenant in self._noisy, *lane.time),
                bound=lambda lane: (0, *lane.time),
            )
        self._orders.append(order)
        return order

    def _choose_by_age(self, aging_ms: int) -> None:
        """Repeatedly take from the priority whose first job is best by age, in the order of that
        priority.
        """
        orders = [(rank, self._general_order(rank)) for rank in self._ranks()]
        while self._selection.left:
            best = None
            for rank, order in orders:
                time = order.best_time()
                if time is not None:
                    aged = (time[0] + rank * aging_ms, rank, *time)
                    best = (aged, order) if best is None else min(best, (aged, order))
            if best is None or not self._take_next(best[1]):
                return

    def _take_next(self, order: GeneralOrder) -> bool:
        """Choose the next job of a priority, or the jobs of the next turn; False if none."""
        selection = self._selection
        lane = order.first(selection.left)
        if lane is None or selection.is_closed:
            return False
        if self._queue.fairness != "shares":
            self._take_with_group(lane)
            return True
        turn, before = self._turns.of(lane), len(selection.seqs)
        for _ in range(self._turns.quantum):
            if not selection.left or not order.is_usable(lane):
                break
            self._take_with_group(lane)
        self._turns.serve(lane.tenant, turn, len(selection.seqs) - before)
        return True

    def _take_with_group(self, lane: LaneCursor) -> None:
        """Choose the first job of a lane, and the next jobs of its group."""
        seq = lane.jobs[lane.at][2]
        lane.advance()
        self._take(seq, lane)
        if self._queue.group_batch > 1:
            self._take_followers(seq, lane)

    def _take(self, seq: int, lane: LaneCursor) -> None:
        self._selection.take([seq], lane)
        self._capacity.take(lane.slots)

    def _take_followers(self, head: int, lane: LaneCursor) -> None:
        """Choose the next jobs of the head's strict group, as long as they are alike."""
        group = self._transaction.run("SELECT grp FROM hf_jobs WHERE seq = ?", (head,)).get
        if group is None:
            return
        fields = "seq, due_at, expires_at, task, holds, lane"
        count = 1
        for seq, due_at, expires_at, task, holds, lane_id in groups.members(
            self._transaction, self._queue_id, group, fields
        ):
            if seq == head:
                continue
            tasks, now = self._request.tasks, self._transaction.now
            if (
                count >= self._queue.group_batch
                or not self._selection.left
                or due_at > now
                or (expires_at is not None and expires_at <= now)
                or (tasks is not None and task not in tasks)
                or holds >= HOLD_PARENT
                or not lanes.are_alike(self._transaction, lane.id or None, lane_id)
                or self._capacity.full(lane.slots) is not None
            ):
                break
            self._take(seq, lane)
            count += 1

    def _write_lanes(self) -> None:
        transaction, now = self._transaction, self._transaction.now
        known, unknown = [], []
        barred, turns = self._selection.barred, self._turns.taken
        cache = transaction.lane_cache
        for lane in (lane for order in self._orders for lane in order.loaded if lane.id):
            bar = barred.get(lane.id, lane.bar)
            first: tuple[int | None, int | None] = (None, None)
            if lane.at < len(lane.jobs):
                first = lane.jobs[lane.at][:2]
                cache.keep(lane)
            elif lane.more:
                unknown.append(lane.id)
                first = lane.first
            else:
                cache.forget_lane(lane.id)
            is_later = first[0] is not None and first[0] > now
            if is_later and bar == OPEN and self._queue.fairness == "shares":
                bar = ASLEEP
            turn = turns.get(lane.tenant, lane.turn)
            if first != lane.first or bar != lane.bar:
                known.append((*first, bar, turn, lane.id))
        run = transaction.connection.executemany
        run("UPDATE hf_lanes SET due_at = ?, place = ?, bar = ?, turn = ? WHERE id = ?", known)
        if unknown:
            lanes.refresh(transaction, unknown)
        asleep = [(id_,) for id_ in self._asleep]
        run("UPDATE hf_lanes SET bar = -1 WHERE id = ? AND bar = 0", asleep)
