"""Counters written by the handlers of every contestant: jobs run, and the start of the first.

Uses only the standard library, like all code shared with the peers' programs. Each process writes
one file with two 64-bit numbers, and one file with a line per job whose delay is measured.
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
    """The counters of one process. `ran` takes a few hundred nanoseconds and is not thread-safe."""

    def __init__(self) -> None:
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.tally"
        path.write_bytes(bytes(_NUMBERS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._cells = memoryview(self._map).cast("q")
        self._delays = os.open(path.with_suffix(".delays"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def ran(self) -> None:
        """Count a no-op job."""
        cells = self._cells
        if not cells[0]:
            cells[0] = time.monotonic_ns()
        cells[1] += 1

    def started(self, stamp: str) -> None:
        """Record the start delay of a job whose payload has the time of its enqueue."""
        os.write(self._delays, b"%d\n" % (time.monotonic_ns() - int(stamp[:20])))


def payload() -> str:
    """Return the payload of a no-op job."""
    return "x" * PAYLOAD_BYTES


def stamped() -> str:
    """Return a payload of the same size that begins with the monotonic time."""
    return f"{time.monotonic_ns():020d}".ljust(PAYLOAD_BYTES, "x")


def count(directory: Path) -> tuple[int, int]:
    """Return the jobs run by all processes, and the start of the first (0: none yet)."""
    numbers = [
        _NUMBERS.unpack(data)
        for path in directory.glob("*.tally")
        if len(data := path.read_bytes()) == _NUMBERS.size
    ]
    return sum(ran for _, ran in numbers), min((first for first, _ in numbers if first), default=0)


def delays_ms(directory: Path) -> list[float]:
    """Return the start delays of all stamped jobs, sorted."""
    lines = [line for path in directory.glob("*.delays") for line in path.read_text().split()]
    return sorted(int(line) / 1e6 for line in lines)
