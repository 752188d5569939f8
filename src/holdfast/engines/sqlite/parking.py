"""Lanes that wait for a slot: barred with it, and asked again only when it may have room."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engines.sqlite.slots import Room
from holdfast.engines.sqlite.unit import Unit

FEW = 4
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


class Parks:
    """The slots that lanes of one queue wait for, in one call."""

    def __init__(self, unit: Unit, queue_id: int, room: Room) -> None:
        self._unit = unit
        self._queue_id = queue_id
        self._room = room
        self._asked: list[int] = []

    def open(self) -> list[int]:
        """Open the lanes of slots that have room again. Where many wait for one, they are left as
        they are, and those slots are named: their lanes are met in order, as far as there is room.
        """
        unit, queue_id = self._unit, self._queue_id
        found = unit.run(_READY, (queue_id, unit.boot * 1_000, READY_MAX)).fetchall()
        if not found:
            return []
        self._asked = [slot for (slot,) in found]
        self._room.load(self._asked)
        free = [slot for slot in self._asked if self._room.full((slot,)) is None]
        lanes: dict[int, list[int]] = {slot: [] for slot in free}
        wanted = [(queue_id, slot, FEW + 1) for slot in free]
        for slot, id_ in unit.connection.executemany(_LANES, wanted):
            lanes[slot].append(id_)
        few = [(id_,) for ids in lanes.values() if len(ids) <= FEW for id_ in ids]
        unit.connection.executemany("UPDATE hf_lanes SET bar = 0 WHERE id = ?", few)
        return [slot for slot, ids in lanes.items() if len(ids) > FEW]

    def write(self, slots: Iterable[int]) -> None:
        """At the end: lanes were barred with these `slots`, and others may wait no more."""
        unit, queue_id = self._unit, self._queue_id
        for slot in {*slots, *self._asked}:
            if unit.run(_WAITED_FOR, (queue_id, slot)).get:
                unit.run(
                    "INSERT INTO hf_parks(queue, slot, wake_us) VALUES (?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET wake_us = excluded.wake_us",
                    (queue_id, slot, self._room.wake_us(slot)),
                )
            else:
                unit.run("DELETE FROM hf_parks WHERE queue = ? AND slot = ?", (queue_id, slot))
