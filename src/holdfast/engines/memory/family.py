"""Which jobs still wait for which: the open edges between parents and their children."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import lifecycle
from holdfast.core.lifecycle import Parting
from holdfast.core.model import State
from holdfast.engines.memory.rows import Row


class Family:
    def __init__(self, rows: dict[str, Row]) -> None:
        self._rows = rows
        self._children: dict[str, dict[str, None]] = {}
        """Those with an open edge, by their parent's id."""

    def children(self, parent: str) -> list[Row]:
        """Those that still wait for it, in the order of their arrival."""
        rows = [self._rows[id_] for id_ in self._children.get(parent, ())]
        return sorted(rows, key=lambda row: row.job.seq)

    def add(self, child: Row) -> tuple[str, State] | None:
        """A new job with its parents, of which some may have ended. The first that ended as it
        must not, and how: then the child waits for nobody."""
        for parent in child.job.after:
            state = self._rows[parent].job.state
            parting = lifecycle.after_parent(child.job, state) if state.finished else Parting.HELD
            if parting is Parting.CANCELLED:
                self.close(child, *child.parents)
                return parent, state
            if parting is Parting.HELD:
                self.wait_for(child, (parent,))
        return None

    def wait_for(self, child: Row, parents: Iterable[str]) -> None:
        for parent in parents:
            child.parents[parent] = None
            self._children.setdefault(parent, {})[child.job.id] = None

    def close(self, child: Row, *parents: str) -> None:
        """The job no longer waits for these."""
        for parent in parents:
            child.parents.pop(parent, None)
            waiting = self._children.get(parent, {})
            waiting.pop(child.job.id, None)
            if not waiting:
                self._children.pop(parent, None)
