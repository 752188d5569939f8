"""Leased jobs that wait for a child: those for Python, those to run alone, and commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from itertools import chain

from holdfast.worker.clock import boot_s
from holdfast.worker.hand import KINDS, Held, Kind


class Lines:
    """First come, first served in each. `batch_of` says how many jobs of a task go together.

    `culprits` are tasks that lately ended the process they had for themselves, or held it until
    their time was over. Of those who must run alone most only stood beside such a one. `barred`
    are tasks of which enough run alone now.
    """

    def __init__(self, batch_of: Callable[[str], int]) -> None:
        self.culprits: set[str] = set()
        self.barred: frozenset[str] = frozenset()
        self._batch_of = batch_of
        self._lines: dict[Kind, deque[Held]] = {kind: deque() for kind in KINDS}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, held: Held) -> None:
        self._lines[held.kind].append(held)

    def put_back(self, held: Held) -> None:
        """To the front: it waited before."""
        self._lines[held.kind].appendleft(held)

    def waiting(self) -> list[Kind]:
        return [kind for kind, line in self._lines.items() if line]

    def take(self, kind: Kind) -> list[Held]:
        """The jobs of the next call; none when nothing waits. A worker that was frozen must hear
        first whether the job is still its own."""
        line = self._lines[kind]
        while line and line[0].lost:
            line.popleft()
        if line and boot_s() < line[0].begin_before():
            first = line.popleft()
            most = self._batch_of(first.lease.job.task)
            if most == 1 or kind == "solo":
                return [first]
            return [first, *_take_alike(line, first.lease.job.task, most - 1)]
        return []

    def judge(self, task: str, *, culprit: bool) -> None:
        """How it went with the last one of the task that ran alone."""
        if culprit:
            self.culprits.add(task)
        else:
            self.culprits.discard(task)

    def take_alone(self, *, culprit: bool) -> list[Held]:
        """The first culprit, or the first of the others; of the other sort if there is none."""
        return self._take_first(culprit) or self._take_first(not culprit)

    def take_innocent(self) -> list[Held]:
        """The first that is no culprit."""
        return self._take_first(culprit=False)

    def count_alone(self) -> int:
        """Those that could be taken now, if there were a process."""
        return sum(held.job.task not in self.barred for held in self._lines["solo"])

    def _take_first(self, culprit: bool) -> list[Held]:
        line = self._lines["solo"]
        now = boot_s()
        for at, held in enumerate(line):
            ours = not held.lost and now < held.begin_before()
            task = held.job.task
            if ours and task not in self.barred and (task in self.culprits) == culprit:
                del line[at]
                return [held]
        return []

    def remove(self, held: Held) -> bool:
        """False when it does not wait here."""
        try:
            self._lines[held.kind].remove(held)
        except ValueError:
            return False
        return True

    def clear(self) -> list[Held]:
        everything = list(chain.from_iterable(self._lines.values()))
        for line in self._lines.values():
            line.clear()
        return everything

    def take_old(self, before: float) -> list[Held]:
        """Those leased before then. Not what must run alone: it would come again at once, and has
        only so many releases."""
        old: list[Held] = []
        for line in (line for kind, line in self._lines.items() if kind != "solo"):
            # They stand in the order in which they came.
            while line and line[0].came_at < before:
                old.append(line.popleft())
        return old

    def take_tasks(self, tasks: Container[str]) -> list[Held]:
        """All of these tasks."""
        taken = [held for line in self._lines.values() for held in line if held.job.task in tasks]
        for held in taken:
            self._lines[held.kind].remove(held)
        return taken

    def shed(self, kind: Kind, most: int) -> list[Held]:
        """The latest, beyond so many."""
        line = self._lines[kind]
        return [line.pop() for _ in range(len(line) - most)]


def _take_alike(line: deque[Held], task: str, most: int) -> list[Held]:
    """In one pass: those of the task that come first; the others keep their order."""
    alike: list[Held] = []
    others: list[Held] = []
    now = boot_s()
    while line and len(alike) < most:
        held = line.popleft()
        if not held.lost:
            fits = held.lease.job.task == task and now < held.begin_before()
            (alike if fits else others).append(held)
    line.extendleft(reversed(others))
    return alike
