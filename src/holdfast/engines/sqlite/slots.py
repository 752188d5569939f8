"""The counters of limits: what a call finds free, what it takes, what ended leases give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.core import flow
from holdfast.core.flow import Limit, Rate
from holdfast.core.lanes import fields_of
from holdfast.core.model import Queue
from holdfast.engines.sqlite import lanes
from holdfast.engines.sqlite.unit import Unit

MANY = 2**60


class Room:
    """What the slots that a call meets have free, under the numbers of one queue."""

    def __init__(self, unit: Unit, queue: Queue) -> None:
        self._unit = unit
        self._limits = {limit.name: limit for limit in queue.limits}
        self._now_us = unit.boot * 1_000
        self._found: dict[int, tuple[Limit | None, int, int]] = {}
        self._first: dict[int, int] = {}
        self.left: dict[int, int] = {}
        """How many more may start now, by slot. Who takes one counts it off here."""

    def load(self, slots: Iterable[int]) -> None:
        wanted = [slot for slot in slots if slot not in self.left]
        if not wanted:
            return
        found = self._unit.run(
            "SELECT id, name, used, free_us FROM hf_slots"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (str(wanted),),
        )
        now_us = self._now_us
        for slot, name, used, free_us in found:
            limit = self._limits.get(name)
            self._found[slot] = (limit, used, free_us)
            self.left[slot] = self._first[slot] = room_of(limit, used, free_us, now_us)

    def full(self, slots: tuple[int, ...]) -> int | None:
        """The first of these without room."""
        left = self.left
        for slot in slots:
            if left[slot] <= 0:
                return slot
        return None

    def least(self, slots: tuple[int, ...]) -> int:
        return min([self.left[slot] for slot in slots], default=MANY)

    def take(self, slots: tuple[int, ...], count: int = 1) -> None:
        for slot in slots:
            self.left[slot] -= count

    def write(self) -> None:
        """What was taken; a rate is spent at once."""
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
        run = self._unit.connection.executemany
        if counted:
            run("UPDATE hf_slots SET used = used + ? WHERE id = ?", counted)
        if spent:
            run("UPDATE hf_slots SET used = used + ?, free_us = ? WHERE id = ?", spent)

    def wake_us(self, slot: int) -> int | None:
        """When a slot is worth asking again: by its rate; 0 is now, None once a lease ends."""
        limit, used, free_us = self._found[slot]
        if self.left[slot] > 0 or limit is None:
            return 0
        taken = self._first[slot] - self.left[slot]
        used += taken
        if limit.concurrency is not None and used >= limit.concurrency:
            return None
        assert limit.rate is not None
        free_us = _spend(limit.rate, free_us, self._now_us, taken)
        return self._now_us + 1_000 * flow.free_ms(limit.rate, free_us, self._now_us)


def room_of(limit: Limit | None, used: int, free_us: int, now_us: int) -> int:
    if limit is None:
        return MANY
    concurrency, rate = limit.concurrency, limit.rate
    room = MANY if concurrency is None else concurrency - used
    if rate is not None:
        room = min(room, flow.starts_now(rate, flow.sane_us(rate, free_us, now_us), now_us))
    return room


def _spend(rate: Rate, free_us: int, now_us: int, count: int) -> int:
    free_us = flow.sane_us(rate, free_us, now_us)
    return flow.after_starts(rate, free_us, now_us, count) if count else free_us


def gates(unit: Unit, queue: Queue) -> list[int]:
    """The slots that every job of the queue needs: if one is full, nothing can start."""
    found = []
    for limit in queue.limits:
        if limit.task is None and not fields_of(limit.key):
            slot = unit.run(
                "SELECT id FROM hf_slots WHERE ns = ? AND name = ? AND key = ?",
                (unit.namespace_id, limit.name, limit.key),
            ).get
            if slot is not None:
                found.append(slot)
    return found


def change_rates(unit: Unit, queue: Queue) -> None:
    """A rate that was raised counts from now: nobody waits for what the old one has spent, unless
    another queue's rate of the same name says so."""
    others = [line.queue for line in unit.catalog.lines.values() if line.queue.name != queue.name]
    bounds = [limit for each in (queue, *others) for limit in each.limits]
    for limit in queue.limits:
        if limit.rate is None:
            continue
        rates = [each.rate for each in bounds if each.name == limit.name and each.rate is not None]
        most_us = unit.boot * 1_000 + max(rate.burst * rate.apart_us for rate in rates)
        unit.run(
            "UPDATE hf_slots SET free_us = ?1 WHERE ns = ?2 AND name = ?3 AND free_us > ?1",
            (most_us, unit.namespace_id, limit.name),
        )
        if unit.changes():
            unit.run(
                "UPDATE hf_parks SET wake_us = 0 WHERE slot IN"
                " (SELECT id FROM hf_slots WHERE ns = ? AND name = ?)",
                (unit.namespace_id, limit.name),
            )


def give_back(unit: Unit, held: Mapping[int, int]) -> None:
    """So many leases of these lanes are over; lanes that wait for their slots are worth asking
    again."""
    freed: Counter[int] = Counter()
    for lane, slots in lanes.load_slots(unit, held).items():
        for slot in slots:
            freed[slot] += held[lane]
    if not freed:
        return
    unit.connection.executemany(
        "UPDATE hf_slots SET used = used - ? WHERE id = ?",
        [(count, slot) for slot, count in freed.items()],
    )
    unit.run(
        "UPDATE hf_parks SET wake_us = 0 WHERE slot IN (SELECT value FROM json_each(?))"
        " AND wake_us IS NOT 0",
        (str(list(freed)),),
    )
