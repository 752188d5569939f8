"""Looking for the first due job of some tasks, past any number of others, in bounded steps.

It only reads, without the lock, so that a worker which knows few tasks is never starved by a
backlog of the others, and holds nobody up on its way past them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from holdfast.engines.sqlite.schema import RANK_FIRST, READY
from holdfast.engines.sqlite.unit import Unit

STEP_MAX = 20_000
"""So many jobs are looked at in one step; a reader that stays longer holds up checkpoints."""


class Spot(NamedTuple):
    """A job's place in the order of its queue."""

    queue_id: int
    rank: int
    due_at: int
    place: int


class Sight(NamedTuple):
    """What a look saw: something to take now (0), later, or nothing; and where."""

    next_ms: int | None
    spot: Spot | None = None
    go_on: Spot | None = None
    """Behind this job nothing was looked at yet."""
    unsorted: int | None = None
    """A queue whose jobs must be sorted into lanes before anything is taken from it."""


_FIRST = f"SELECT rank, due_at, place, task {READY} AND rank > ? ORDER BY rank, due_at, place"
_BEHIND = (
    f"{READY} AND rank = ? AND (due_at, place) > (?, ?) AND due_at <= ? ORDER BY due_at, place"
)
_MATCH = (
    f"SELECT due_at, place FROM (SELECT due_at, place, task {_BEHIND} LIMIT ?)"
    " WHERE task IN (SELECT value FROM json_each(?)) LIMIT 1"
)
_COUNT = f"SELECT count(*) FROM (SELECT 1 {_BEHIND} LIMIT ?)"
_NTH = f"SELECT due_at, place {_BEHIND} LIMIT 1 OFFSET ? - 1"
_LATER = f"SELECT due_at {READY} AND rank = ? AND due_at > ? ORDER BY due_at LIMIT 1"


def look_for(
    unit: Unit, queue_ids: Sequence[int], tasks: Collection[str], after: Spot | None
) -> Sight:
    """One step, over the queues in their order, from their beginning or on from `after`."""
    step = _Step(unit, tasks)
    # A queue that is gone since the last step takes the walk back to its beginning.
    begin = queue_ids.index(after.queue_id) if after and after.queue_id in queue_ids else 0
    for queue_id in queue_ids[begin:]:
        on = after if after is not None and after.queue_id == queue_id else None
        sight = step.walk(queue_id, on)
        if sight is not None:
            return sight
    return Sight(step.next_ms)


class _Step:
    def __init__(self, unit: Unit, tasks: Collection[str]) -> None:
        self._unit = unit
        self._tasks = tasks
        self._wanted = msgspec.json.encode(list(tasks)).decode()
        self._left = STEP_MAX
        self._next_at: int | None = None

    @property
    def next_ms(self) -> int | None:
        return None if self._next_at is None else self._next_at - self._unit.now

    def walk(self, queue_id: int, on: Spot | None) -> Sight | None:
        """None at the queue's end."""
        unit, rank = self._unit, RANK_FIRST
        while True:
            if on is None:
                first = unit.run(_FIRST, (queue_id, rank)).fetchone()
                if first is None:
                    return None
                rank, due_at, place, task = first
                if due_at > unit.now:
                    self._note(due_at)
                    continue
                on = Spot(queue_id, rank, due_at, place)
                if task in self._tasks:
                    return Sight(0, spot=on)
            sight = self._walk_behind(on)
            if sight is not None:
                return sight
            rank, on = on.rank, None

    def _walk_behind(self, on: Spot) -> Sight | None:
        """Past the due jobs of one priority; None at their end."""
        unit, behind = self._unit, (*on, self._unit.now)
        found = unit.run(_MATCH, (*behind, self._left, self._wanted)).fetchone()
        if found is not None:
            return Sight(0, spot=Spot(on.queue_id, on.rank, *found))
        passed = unit.run(_COUNT, (*behind, self._left)).get
        if passed >= self._left:
            last = unit.run(_NTH, (*behind, self._left)).fetchone()
            return Sight(self.next_ms, go_on=Spot(on.queue_id, on.rank, *last))
        self._left -= passed
        later = unit.run(_LATER, (on.queue_id, on.rank, unit.now)).get
        if later is not None:
            self._note(later)
        return None

    def _note(self, due_at: int) -> None:
        self._next_at = due_at if self._next_at is None else min(self._next_at, due_at)
