"""Who waits in which order: one heap of waiting jobs per queue and priority, and strict groups.

A heap's stale entries are recognised by their place, which is why nobody takes them out.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Generator

from holdfast.core.model import Job, State
from holdfast.engines.memory.rows import Row


class Lines:
    def __init__(self, rows: dict[str, Row]) -> None:
        self.depths: Counter[str] = Counter()
        """How many wait, by queue."""
        self._rows = rows
        self._heaps: dict[str, dict[int, list[tuple[int, int, str]]]] = {}

    def join(self, row: Row) -> None:
        job = row.job
        self.depths[job.queue] += 1
        ranks = self._heaps.setdefault(job.queue, defaultdict(list))
        heapq.heappush(ranks[-job.priority], (job.due_at, row.place, job.id))

    def leave(self, job: Job) -> None:
        self.depths[job.queue] -= 1

    def everyone(self, name: str) -> list[Row]:
        """Every waiting job of a queue. Its heaps are rid of what is stale on the way."""
        found: dict[str, Row] = {}
        for rank, heap in self._heaps.get(name, {}).items():
            fresh = {entry for entry in heap if self._fresh(entry, name, rank) is not None}
            heap[:] = sorted(fresh)
            found |= {entry[2]: self._rows[entry[2]] for entry in heap}
        return list(found.values())

    def due(self, name: str, now: int) -> Generator[Row, None, None]:
        """In their order; whoever takes one does so before asking for the next."""
        heaps = self._heaps.get(name, {})
        for rank in sorted(heaps):
            heap = heaps[rank]
            passed_over = []
            try:
                while heap and heap[0][0] <= now:
                    entry = heapq.heappop(heap)
                    row = self._fresh(entry, name, rank)
                    if row is not None:
                        # Taking the row ends its waiting, which makes this entry stale.
                        passed_over.append(entry)
                        yield row
            finally:
                for entry in passed_over:
                    heapq.heappush(heap, entry)

    def _fresh(self, entry: tuple[int, int, str], name: str, rank: int) -> Row | None:
        """The row that this entry stands for."""
        row = self._rows.get(entry[2])
        if row is None or row.job.state is not State.WAITING:
            return None
        job = row.job
        same = (job.due_at, row.place, job.queue, -job.priority) == (*entry[:2], name, rank)
        return row if same else None


class Groups:
    """The unfinished jobs of every strict group, by queue and group: those that are leased, then
    those that wait, each in the order of arrival."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], list[tuple[bool, int, Row]]] = {}

    def join(self, row: Row) -> None:
        job = row.job
        if job.group is not None and not job.state.finished:
            members = self._members.setdefault((job.queue, job.group), [])
            insort(members, (*_standing(job), row), key=_place)

    def leave(self, job: Job) -> None:
        """As it is before it changes."""
        if job.group is None or job.state.finished:
            return
        members = self._members[job.queue, job.group]
        del members[bisect_left(members, _standing(job), key=_place)]
        if not members:
            del self._members[job.queue, job.group]

    def ahead(self, job: Job) -> Row | None:
        """Who of its group is leased, or else goes before this waiting job."""
        if job.group is None:
            return None
        first = self._members[job.queue, job.group][0][2]
        return None if first.job.id == job.id else first

    def waiting(self, job: Job) -> list[Row]:
        """The waiting members of its group."""
        members = self._members[job.queue, job.group or ""]
        return [row for is_waiting, _, row in members if is_waiting]


def _standing(job: Job) -> tuple[bool, int]:
    return job.state is State.WAITING, job.seq


def _place(member: tuple[bool, int, Row]) -> tuple[bool, int]:
    return member[:2]
