"""Is anything in a queue's lanes to be leased, and when? Only reads, and without the lock.

It may say "now" in vain once: whoever then looks closer bars what cannot go.
"""

from __future__ import annotations

import msgspec

from holdfast.engines.sqlite.catalog import Line
from holdfast.engines.sqlite.schema import RANK_FIRST
from holdfast.engines.sqlite.slots import Room, gates
from holdfast.engines.sqlite.unit import Unit

_LANES = "FROM hf_lanes INDEXED BY hf_lanes_first WHERE queue = ?1 AND due_at IS NOT NULL"
_WANTED = "(?3 IS NULL OR task IN (SELECT value FROM json_each(?3)))"
_DUE = f"SELECT 1 {_LANES} AND bar = 0 AND due_at <= ?2 AND {_WANTED} LIMIT 1"
_AHEAD = f"SELECT min(due_at) {_LANES} AND bar = 0 AND due_at > ?2 AND {_WANTED}"
_RANK = (
    f"SELECT rank, due_at {_LANES} AND bar = 0 AND rank > ?2 ORDER BY rank, turn, due_at LIMIT 1"
)
_PARKED = (
    "SELECT 1 FROM hf_parks p CROSS JOIN hf_lanes l INDEXED BY hf_lanes_first"
    " ON l.queue = p.queue AND l.bar = p.slot AND l.due_at IS NOT NULL"
    " WHERE p.queue = ?1 AND p.wake_us <= ?2 AND l.due_at <= ?3"
    " AND (?4 IS NULL OR l.task IN (SELECT value FROM json_each(?4))) LIMIT 1"
)
_WAKE = "SELECT min(wake_us) FROM hf_parks INDEXED BY hf_parks_wake WHERE queue = ? AND wake_us > ?"
_ASLEEP = "SELECT min(due_at) FROM hf_lanes INDEXED BY hf_lanes_asleep WHERE queue = ? AND bar = -1"


def look_at_lanes(unit: Unit, line: Line, tasks: frozenset[str] | None) -> int | None:
    """The time until something may start; 0 is now, None when only an event can help."""
    shut_ms = _shut_ms(unit, line)
    if shut_ms != 0:
        return shut_ms
    wanted = None if tasks is None else msgspec.json.encode(sorted(tasks)).decode()
    now, now_us = unit.now, unit.boot * 1_000
    times = []
    if line.queue.fairness == "shares" or wanted is not None:
        # Under shares those that are open and not due are put to sleep by whoever leases.
        if unit.run(_DUE, (line.id, now, wanted)).get:
            return 0
        ahead = unit.run(_AHEAD, (line.id, now, wanted)).get
        times += [] if ahead is None else [ahead - now]
    else:
        rank = RANK_FIRST
        while (first := unit.run(_RANK, (line.id, rank)).fetchone()) is not None:
            rank, due_at = first
            if due_at <= now:
                return 0
            times.append(due_at - now)
    asleep = unit.run(_ASLEEP, (line.id,)).get
    if asleep is not None and asleep <= now:
        return 0
    if unit.run(_PARKED, (line.id, now_us, now, wanted)).get:
        return 0
    times += [] if asleep is None else [asleep - now]
    wake_us = unit.run(_WAKE, (line.id, now_us)).get
    if wake_us is not None:
        times.append(max(1, -(-(wake_us - now_us) // 1_000)))
    return min(times, default=None)


def _shut_ms(unit: Unit, line: Line) -> int | None:
    """The time until what every job of the queue needs has room; None: once a lease ends."""
    needed = gates(unit, line.queue)
    if not needed:
        return 0
    room = Room(unit, line.queue)
    room.load(needed)
    full = room.full(tuple(needed))
    if full is None:
        return 0
    wake_us = room.wake_us(full)
    return None if wake_us is None else max(1, wake_us // 1_000 - unit.boot)
