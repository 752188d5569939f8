"""Finished jobs kept in a file of JSON lines, one job each, before they are deleted.

A line is on disk before its job goes. After a crash a job may be there twice, and a torn line
before them is not JSON: readers skip both. A job is never missing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.codec import encode_job
from holdfast.core.model import Job


class Archive:
    """Opened anew for every batch, so that the file may be moved away at any time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, jobs: Sequence[Job]) -> None:
        """Append and sync; blocking. Raises OSError when the lines may not all be on disk."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        try:
            # Several pruners may share one file; their lines must not mix.
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                _write_all(file, b"\n")
            for job in jobs:
                _write_all(file, encode_job(job) + b"\n")
            os.fsync(file)
            self._sync_folder()
        finally:
            os.close(file)

    def _sync_folder(self) -> None:
        """A new file's name is durable only when its folder is, and any batch may be the first."""
        folder = os.open(self.path.resolve().parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
