"""Limits and rates: counters of slots, and lanes parked until a slot has capacity.

A slot is one value of a limit's key; a leased job holds the slots of its lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.core import limits
from holdfast.core.lanes import fields_of
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue
from holdfast.engines.sqlite.flow import lanes
from holdfast.engines.sqlite.transaction import Transaction

UNLIMITED = 2**60


class SlotCapacity:
    """Free capacity of slots during one call, under the limits of one queue."""

    def __init__(self, transaction: Transaction, queue: Queue) -> None:
        self._transaction = transaction
        self._limits = {limit.name: limit for limit in queue.limits}
        self._now_us = transaction.boot * 1_000
        self._found: dict[int, tuple[Limit | None, int, int]] = {}
        self._first: dict[int, int] = {}
        self.left: dict[int, int] = {}
        """The number of jobs that may start now, by slot. Choosers subtract what they take."""

    def load(self, slots: Iterable[int]) -> None:
        """Read the counters of slots that were not read yet."""
        wanted = [slot for slot in slots if slot not in self.left]
        if not wanted:
            return
        found = self._transaction.run(
            "SELECT id, name, used, free_us FROM hf_slots"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (str(wanted),),
        )
        now_us = self._now_us
        for slot, name, used, free_us in found:
            limit = self._limits.get(name)
            self._found[slot] = (limit, used, free_us)
            self.left[slot] = self._first[slot] = free_capacity(limit, used, free_us, now_us)

    def full(self, slots: tuple[int, ...]) -> int | None:
        """The first of these slots without capacity."""
        left = self.left
        for slot in slots:
            if left[slot] <= 0:
                return slot
        return None

    def least(self, slots: tuple[int, ...]) -> int:
        """The number of jobs that may start if each needs all of these slots."""
        return min([self.left[slot] for slot in slots], default=UNLIMITED)

    def take(self, slots: tuple[int, ...], count: int = 1) -> None:
        """Count jobs that are about to be leased."""
        for slot in slots:
            self.left[slot] -= count

    def write(self) -> None:
        """Store the slots that were taken; a rate is charged at once."""
        counted, spent = [], []
        for slot, left in self.left.items():
            count = self._first[slot] - left
            if not count:
                continue
            limit, _, free_us = self._found[slot]
            if limit is None or limit.rate is None:
                counted.append((count, slot))
            else:
                spent.append((count, _spend(limit.rate, free_us, self._now_us, count), slot))
        run = self._transaction.connection.executemany
        if counted:
            run("UPDATE hf_slots SET used = used + ? WHERE id = ?", counted)
        if spent:
            run("UPDATE hf_slots SET used = used + ?, free_us = ? WHERE id = ?", spent)

    def wake_us(self, slot: int) -> int | None:
        """When to try a slot again, by its rate: 0 is now, None means when a lease ends."""
        limit, used, free_us = self._found[slot]
        if self.left[slot] > 0 or limit is None:
            return 0
        taken = self._first[slot] - self.left[slot]
        used += taken
        if limit.concurrency is not None and used >= limit.concurrency:
            return None
        assert limit.rate is not None
        free_us = _spend(limit.rate, free_us, self._now_us, taken)
        return self._now_us + 1_000 * limits.free_ms(limit.rate, free_us, self._now_us)


def free_capacity(limit: Limit | None, used: int, free_us: int, now_us: int) -> int:
    """The number of jobs that may start now under a limit."""
    if limit is None:
        return UNLIMITED
    concurrency, rate = limit.concurrency, limit.rate
    free = UNLIMITED if concurrency is None else concurrency - used
    if rate is not None:
        free = min(
            free, limits.starts_now(rate, limits.clamp_free_us(rate, free_us, now_us), now_us)
        )
    return free


def _spend(rate: Rate, free_us: int, now_us: int, count: int) -> int:
    free_us = limits.clamp_free_us(rate, free_us, now_us)
    return limits.after_starts(rate, free_us, now_us, count) if count else free_us


def queue_wide_slots(transaction: Transaction, queue: Queue) -> list[int]:
    """The slots that every job of the queue needs: if one is full, no job can start."""
    found = []
    for limit in queue.limits:
        if limit.task is None and not fields_of(limit.key):
            slot = transaction.run(
                "SELECT id FROM hf_slots WHERE ns = ? AND name = ? AND key = ?",
                (transaction.namespace_id, limit.name, limit.key),
            ).get
            if slot is not None:
                found.append(slot)
    return found


def change_rates(transaction: Transaction, queue: Queue) -> None:
    """Apply a raised rate at once: no job waits for starts charged to the old rate, unless another
    queue's rate of the same name requires it.
    """
    others = [
        queue_row.settings
        for queue_row in transaction.queues.values()
        if queue_row.settings.name != queue.name
    ]
    all_limits = [limit for each in (queue, *others) for limit in each.limits]
    for limit in queue.limits:
        if limit.rate is None:
            continue
        rates = [
            each.rate for each in all_limits if each.name == limit.name and each.rate is not None
        ]
        most_us = transaction.boot * 1_000 + max(rate.burst * rate.apart_us for rate in rates)
        transaction.run(
            "UPDATE hf_slots SET free_us = ?1 WHERE ns = ?2 AND name = ?3 AND free_us > ?1",
            (most_us, transaction.namespace_id, limit.name),
        )
        if transaction.changes():
            transaction.run(
                "UPDATE hf_parks SET wake_us = 0 WHERE slot IN"
                " (SELECT id FROM hf_slots WHERE ns = ? AND name = ?)",
                (transaction.namespace_id, limit.name),
            )


def release_slots(transaction: Transaction, ended: Mapping[int, int]) -> None:
    """Free the slots of ended leases, counted by lane, and wake the lanes that wait for them."""
    freed: Counter[int] = Counter()
    for lane, slots in lanes.load_slots(transaction, ended).items():
        for slot in slots:
            freed[slot] += ended[lane]
    if not freed:
        return
    transaction.connection.executemany(
        "UPDATE hf_slots SET used = used - ? WHERE id = ?",
        [(count, slot) for slot, count in freed.items()],
    )
    transaction.run(
        "UPDATE hf_parks SET wake_us = 0 WHERE slot IN (SELECT value FROM json_each(?))"
        " AND wake_us IS NOT 0",
        (str(list(freed)),),
    )


FEW = 4
"""Up to this many lanes that wait for one slot are opened at once; more are read in order."""

READY_MAX = 1_000
_READY = (
    "SELECT slot FROM hf_parks INDEXED BY hf_parks_wake"
    " WHERE queue = ? AND wake_us IS NOT NULL AND wake_us <= ? LIMIT ?"
)
_LANES = (
    "SELECT bar, id FROM hf_lanes INDEXED BY hf_lanes_first"
    " WHERE queue = ? AND bar = ? AND due_at IS NOT NULL LIMIT ?"
)
_WAITED_FOR = (
    "SELECT 1 FROM hf_lanes INDEXED BY hf_lanes_first"
    " WHERE queue = ? AND bar = ? AND due_at IS NOT NULL LIMIT 1"
)


class ParkedLanes:
    """Lanes of one queue that are barred because a slot was full, during one call."""

    def __init__(self, transaction: Transaction, queue_id: int, capacity: SlotCapacity) -> None:
        self._transaction = transaction
        self._queue_id = queue_id
        self._capacity = capacity
        self._ready: list[int] = []

    def open(self) -> list[int]:
        """Open the lanes of slots that have capacity again.

        Returns the slots that many lanes wait for. Those lanes stay barred; the chooser reads them
        in order, as far as there is capacity.
        """
        transaction, queue_id = self._transaction, self._queue_id
        found = transaction.run(_READY, (queue_id, transaction.boot * 1_000, READY_MAX)).fetchall()
        if not found:
            return []
        self._ready = [slot for (slot,) in found]
        self._capacity.load(self._ready)
        free = [slot for slot in self._ready if self._capacity.full((slot,)) is None]
        parked: dict[int, list[int]] = {slot: [] for slot in free}
        wanted = [(queue_id, slot, FEW + 1) for slot in free]
        for slot, id_ in transaction.connection.executemany(_LANES, wanted):
            parked[slot].append(id_)
        few = [(id_,) for ids in parked.values() if len(ids) <= FEW for id_ in ids]
        transaction.connection.executemany("UPDATE hf_lanes SET bar = 0 WHERE id = ?", few)
        return [slot for slot, ids in parked.items() if len(ids) > FEW]

    def write(self, slots: Iterable[int]) -> None:
        """At the end of the call: store when to try newly barred and opened slots again."""
        transaction, queue_id = self._transaction, self._queue_id
        for slot in {*slots, *self._ready}:
            if transaction.run(_WAITED_FOR, (queue_id, slot)).get:
                transaction.run(
                    "INSERT INTO hf_parks(queue, slot, wake_us) VALUES (?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET wake_us = excluded.wake_us",
                    (queue_id, slot, self._capacity.wake_us(slot)),
                )
            else:
                transaction.run(
                    "DELETE FROM hf_parks WHERE queue = ? AND slot = ?", (queue_id, slot)
                )
