"""Which call runs in which slot of a child: shared memory that outlives the child.

The child writes it without a word over the socket, so starting a call costs nothing; the
supervisor reads it to keep timeouts, and to know what a dead child was doing when it died.
"""

from __future__ import annotations

import mmap
import os
import time

_HEAD = 1  # the highest number of a call that was ever started
_CELLS = 2  # the call's number, 0 when the slot is free; and when it started


class Board:
    """Made by the supervisor (`Board.make`), opened by the child from the inherited descriptor."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self._map = mmap.mmap(descriptor, _size(slots))
        self._cells = memoryview(self._map).cast("q")

    @classmethod
    def make(cls, slots: int) -> Board:
        descriptor = os.memfd_create("holdfast-board", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _size(slots))
        return cls(descriptor, slots)

    def start(self, slot: int, number: int) -> None:
        """The time first: whoever sees the number must see when it started."""
        cells = self._cells
        cells[0] = max(cells[0], number)
        cells[_HEAD + slot * _CELLS + 1] = time.monotonic_ns()
        cells[_HEAD + slot * _CELLS] = number

    def end(self, slot: int) -> None:
        self._cells[_HEAD + slot * _CELLS] = 0

    @property
    def started(self) -> int:
        """Calls start in the order of their numbers: those above this have not."""
        return self._cells[0]

    def running(self) -> dict[int, int]:
        """Call number → the `monotonic_ns` at which it started."""
        cells = self._cells
        ends = _HEAD + self.slots * _CELLS
        return {cells[at]: cells[at + 1] for at in range(_HEAD, ends, _CELLS) if cells[at]}

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        os.close(self.descriptor)


def _size(slots: int) -> int:
    return (_HEAD + slots * _CELLS) * 8
