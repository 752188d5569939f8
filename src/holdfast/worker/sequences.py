"""Members of a strict group that one call leased together: they run one by one, in their order.

Pure: it says who may start and who has to go back. Whoever leases and settles asks it, and holds
those that wait as it holds all that is leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from holdfast.core.lifecycle import is_expired
from holdfast.core.model import Job
from holdfast.core.verdict import Bury, Complete, Forward
from holdfast.worker.hand import Held, Kind

_Each = TypeVar("_Each")


class Step(NamedTuple):
    """What the end of a job means for those behind it: one may start now, or all go back."""

    start: Held | None = None
    release: tuple[Held, ...] = ()


class Sequences:
    """The first of each runs, or is about to, or waits for the store's answer."""

    def __init__(self) -> None:
        self._of: dict[Held, list[Held]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def take(self, taken: list[Held]) -> list[Held]:
        """What one call leased: those of it that may start now."""
        if all(held.lease.job.group is None for held in taken):
            return taken
        lines = by_group(taken, lambda held: held.job)
        for line in lines:
            if len(line) > 1:
                self._of.update(dict.fromkeys(line, line))
        return [line[0] for line in lines]

    def is_behind(self, held: Held) -> bool:
        """It waits for another of its group."""
        line = self._of.get(held)
        return line is not None and line[0] is not held

    def idle(self, kind: Kind) -> int:
        """How many wait for another: they need no slot. Each sequence has one that does, or will
        as soon as the store has answered."""
        fronts = (line for held, line in self._of.items() if line[0] is held)
        waiting = ([each for each in line if each.verdict is None][1:] for line in fronts)
        return sum(held.kind == kind for behind in waiting for held in behind)

    def over(self, held: Held, now: int) -> Step:
        """The store has answered for the verdict on it, or its lease is lost."""
        line = self._of.pop(held, None)
        if line is None:
            return Step()
        at = line.index(held)
        if not leaves_the_way(held):
            return Step(release=self._cut(line, at))
        del line[at]
        first = line[0]
        if at > 0 or first.verdict is not None:
            step = Step()
        elif is_expired(first.job, now):
            # As one that waits in the store, it must not start any more.
            return Step(release=self._cut(line, 0))
        else:
            step = Step(start=first)
        if len(line) == 1:
            del self._of[first]
        return step

    def clear(self) -> list[Held]:
        """Nothing more is started: those that waited."""
        waiting = [held for held in self._of if self.is_behind(held) and held.verdict is None]
        self._of.clear()
        return waiting

    def _cut(self, line: list[Held], at: int) -> tuple[Held, ...]:
        """From there on; those that were judged meanwhile have their own verdict."""
        behind = line[at:]
        del line[at:]
        for each in (*behind, *(line if len(line) == 1 else ())):
            self._of.pop(each, None)
        return tuple(each for each in behind if each.verdict is None and not each.lost)


def by_group(given: Iterable[_Each], job_of: Callable[[_Each], Job]) -> list[list[_Each]]:
    """Those of one strict group together, in their order; each of the others by itself."""
    lines: list[list[_Each]] = []
    groups: dict[tuple[str, str], list[_Each]] = {}
    for each in given:
        job = job_of(each)
        line = [] if job.group is None else groups.setdefault((job.queue, job.group), [])
        if not line:
            lines.append(line)
        line.append(each)
    return lines


def leaves_the_way(held: Held) -> bool:
    """Is it known that the next of its group may start? What was put back goes first again. A
    retry or a release ends as cancelled where that was asked for."""
    if held.lost or held.verdict is None:
        return False
    ends = isinstance(held.verdict, Complete | Bury | Forward)
    return ends or held.lease.cancel_requested
