"""What the handlers of every contestant leave behind: how many ran, and when the first started.

Needs only the standard library, as all that the peers' programs share. A file for each process in
one directory: two numbers of 64 bits, and beside it a line for each job whose delay is measured.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

DIRECTORY = "HOLDFAST_BENCH_TALLY"
PAYLOAD_BYTES = 256
_NUMBERS = struct.Struct("<qq")


class Tally:
    """Written by one process. `ran` costs a few hundred nanoseconds and is not for many threads."""

    def __init__(self) -> None:
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.tally"
        path.write_bytes(bytes(_NUMBERS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._cells = memoryview(self._map).cast("q")
        self._delays = os.open(path.with_suffix(".delays"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def ran(self) -> None:
        """A job without an effect started, which is all it does."""
        cells = self._cells
        if not cells[0]:
            cells[0] = time.monotonic_ns()
        cells[1] += 1

    def started(self, stamp: str) -> None:
        """A job that carries the time of its enqueue started now."""
        os.write(self._delays, b"%d\n" % (time.monotonic_ns() - int(stamp[:20])))


def payload() -> str:
    return "x" * PAYLOAD_BYTES


def stamped() -> str:
    """A payload of the same size that begins with the time, by a clock all processes share."""
    return f"{time.monotonic_ns():020d}".ljust(PAYLOAD_BYTES, "x")


def count(directory: Path) -> tuple[int, int]:
    """How many jobs ran in all processes, and when the first of them started (0: none yet)."""
    numbers = [
        _NUMBERS.unpack(data)
        for path in directory.glob("*.tally")
        if len(data := path.read_bytes()) == _NUMBERS.size
    ]
    return sum(ran for _, ran in numbers), min((first for first, _ in numbers if first), default=0)


def delays_ms(directory: Path) -> list[float]:
    """From enqueue to start, of every job that was stamped; sorted."""
    lines = [line for path in directory.glob("*.delays") for line in path.read_text().split()]
    return sorted(int(line) / 1e6 for line in lines)
