"""The journal of the jobs of one experiment: a file with a line for each start and each end.

Uses only the standard library: every queue's own Python imports it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

STORE = "COMPARE_STORE"
DIRECTORY = "COMPARE_DIRECTORY"


@dataclass(frozen=True)
class Line:
    """`what` is "start" or "end"."""

    what: str
    label: str
    pid: int
    at: float


def store() -> str:
    """The path or URL of the store under test."""
    return os.environ[STORE]


def step(label: str, seconds: float = 0.0, fails: int = 0) -> str:
    """Run a job: the first `fails` runs raise, and a first run that does not takes `seconds`. Each
    run of a job labelled "late" does; a job labelled "crash" kills its process."""
    earlier = sum(1 for line in read() if line.what == "start" and line.label == label)
    write("start", label)
    if label == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if earlier < fails:
        raise RuntimeError(f"failure {earlier + 1} of {label}")
    if not earlier or label == "late":
        time.sleep(seconds)
    write("end", label)
    return f"{label}, run {earlier + 1}"


def count() -> None:
    """Run a job that only counts itself, by one byte in a file."""
    _append("count", b".")


def counted() -> int:
    """The number of jobs that counted themselves."""
    path = _path("count")
    return path.stat().st_size if path.exists() else 0


def write(what: str, label: str) -> None:
    line = {"what": what, "label": label, "pid": os.getpid(), "at": time.time()}
    _append("journal", json.dumps(line).encode() + b"\n")


def read(directory: Path | None = None) -> list[Line]:
    """All lines so far, oldest first."""
    path = (directory or Path(os.environ[DIRECTORY])) / "journal"
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def _append(name: str, data: bytes) -> None:
    file = os.open(_path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, data)
    os.close(file)


def _path(name: str) -> Path:
    return Path(os.environ[DIRECTORY]) / name
