"""The switches of a faulty disk: which call fails, hangs or cuts the power, and how full it is.

It only counts and decides; `testing.vfs` asks it before each call. Safe to use from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import apsw


class Call(StrEnum):
    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    DELETE = "delete"


_CHANGES = frozenset({Call.WRITE, Call.SYNC, Call.TRUNCATE, Call.DELETE})
_IO_ERRORS = {
    Call.OPEN: apsw.SQLITE_CANTOPEN,
    Call.READ: apsw.SQLITE_IOERR_READ,
    Call.WRITE: apsw.SQLITE_IOERR_WRITE,
    Call.SYNC: apsw.SQLITE_IOERR_FSYNC,
    Call.TRUNCATE: apsw.SQLITE_IOERR_TRUNCATE,
    Call.DELETE: apsw.SQLITE_IOERR_DELETE,
}


class Faults:
    """Every switch may be thrown while the engine runs. `calls` counts since the start, `struck`
    how many calls were made to fail."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.calls: Counter[Call] = Counter()
        self.struck = 0
        self.is_off = False
        self.stalled = threading.Event()
        self._failing: dict[Call, range] = {}
        self._room: int | None = None
        self._beside: Path | None = None
        self._beside_size = 0
        self._gate: threading.Event | None = None
        self._cut: Callable[[Call, str], None] | None = None
        self._cut_after = 0
        self._cut_ending = ""

    def fail(self, call: Call, *, nth: int = 1, times: int = 1) -> None:
        """The `nth` such call from now on and those after it, `times` in all, fail with EIO."""
        with self.mutex:
            first = self.calls[call] + nth
            self._failing[call] = range(first, first + times)

    def limit_room(self, room: int, *, beside: Path | None = None) -> None:
        """Files may grow by so many bytes in all, then the disk is full; shrinking gives back, and
        so does the shrinking of the file `beside` them, which SQLite does not know."""
        with self.mutex:
            self._room = room
            self._beside = beside
            self._beside_size = _size(beside)

    def stall(self) -> None:
        """Syncs hang until `mend`, and the first to do so sets `stalled`."""
        with self.mutex:
            self.stalled.clear()
            self._gate = threading.Event()

    def mend(self) -> None:
        """No fault from now on; what was lost stays lost."""
        with self.mutex:
            self._failing.clear()
            self._room = None
            gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    def cut_power(self, nth: int, then: Callable[[Call, str], None], *, ending: str = "") -> None:
        """In place of the `nth` changing call from now on a file whose name has that `ending`, do
        `then`, which is told the call and the file. After it nothing works."""
        with self.mutex:
            self._cut = then
            self._cut_after = nth
            self._cut_ending = ending

    def enter(self, call: Call, path: str) -> None:
        """Count the call; raise what SQLite is to see of it."""
        with self.mutex:
            self.calls[call] += 1
            if call in _CHANGES and path.endswith(self._cut_ending):
                self._cut_after -= 1
                if self._cut is not None and self._cut_after == 0:
                    self.is_off = True
                    self._cut(call, path)
            if self.is_off:
                raise io_error(call)
            if self.calls[call] in self._failing.get(call, ()):
                self.struck += 1
                raise io_error(call)

    def grow(self, size: int) -> None:
        """Take so many bytes of the room that is left; less than nothing gives some back."""
        with self.mutex:
            if self._room is None:
                return
            given_up = self._beside_size - _size(self._beside)
            self._beside_size -= given_up
            self._room += given_up
            if size > self._room:
                raise full_error()
            self._room -= size

    def wait(self) -> None:
        """Hang while the disk is stalled; asked without the mutex, so that others go on."""
        gate = self._gate
        if gate is not None:
            self.stalled.set()
            gate.wait()


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def io_error(call: Call) -> Exception:
    return apsw.exception_for(_IO_ERRORS[call])


def full_error() -> Exception:
    return apsw.exception_for(apsw.SQLITE_FULL)
