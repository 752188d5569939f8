"""Ends a private PostgreSQL and removes its directory; it never trusts a stale process id.

Run as a program, it does so when its standard input ends: the pipe of the process that owns the
server, closed by the system however that process dies. Standard library only.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 5.0
POLL_S = 0.01


def reclaim(directory: Path) -> None:
    """Immediate shutdown of whatever still runs there, then SIGKILL, then nothing is left."""
    data = directory / "data"
    for number in (signal.SIGQUIT, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_S
        told = set[int]()
        while (pids := _processes_in(data)) and time.monotonic() < deadline:
            for pid in pids - told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                told.add(pid)
            time.sleep(POLL_S)
    shutil.rmtree(directory, ignore_errors=True)


def _processes_in(data: Path) -> set[int]:
    """The postmaster and its children: all of them work in the data directory."""
    found = set[int]()
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        # Processes end while we look, and those of other users are not ours to see.
        with contextlib.suppress(OSError):
            if entry.readlink() == data:
                found.add(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reclaim(Path(sys.argv[1]))
