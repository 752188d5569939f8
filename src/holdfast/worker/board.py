"""Which call runs in which slot of a child, and until when others may begin: shared memory.

The child writes what runs without a word over the socket, so starting a call costs nothing; the
supervisor reads it to keep timeouts, and to know what a dead child was doing when it died. The
supervisor in turn writes until when the leases behind the child's calls hold. Frozen, it cannot
take that back, and need not: the instant passes.
"""

from __future__ import annotations

import mmap
import os
import time

from holdfast.worker.clock import boot_ns

_STARTED = 0  # the highest number of a call that was ever started
_UNTIL = 1  # when calls must have begun, by the boot clock
_HEAD = 2
_CELLS = 2  # the call's number, 0 when the slot is free; and when it started
ALWAYS_NS = 2**63 - 1


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
        board = cls(descriptor, slots)
        board.until_ns = ALWAYS_NS
        return board

    @property
    def until_ns(self) -> int:
        """The supervisor's word: whatever the child was given may begin before this, by
        `boot_ns`."""
        return self._cells[_UNTIL]

    @until_ns.setter
    def until_ns(self, instant: int) -> None:
        self._cells[_UNTIL] = instant

    def may_begin(self) -> bool:
        return boot_ns() < self._cells[_UNTIL]

    def start(self, slot: int, number: int) -> None:
        """The time first: whoever sees the number must see when it started."""
        cells = self._cells
        cells[_STARTED] = max(cells[_STARTED], number)
        cells[_HEAD + slot * _CELLS + 1] = time.monotonic_ns()
        cells[_HEAD + slot * _CELLS] = number

    def end(self, slot: int) -> None:
        self._cells[_HEAD + slot * _CELLS] = 0

    @property
    def started(self) -> int:
        """Calls start in the order of their numbers: those above this have not."""
        return self._cells[_STARTED]

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
