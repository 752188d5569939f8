"""A disk whose every sync takes longer: an apsw VFS that sleeps, for raw and Holdfast alike.

On PostgreSQL the same is `commit_delay` with `commit_siblings = 0`: the one who flushes the log
sleeps first, holding the log's write lock, as if the sync itself had taken so long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

NAME = "holdfast-slow-sync"


@contextmanager
def slow_sync(delay_ms: float) -> Iterator[str]:
    """The name of a VFS, known to this process until the block ends."""

    class File(apsw.VFSFile):
        def __init__(self, filename: str | apsw.URIFilename | None, flags: list[int]) -> None:
            super().__init__("", filename, flags)

        def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
            time.sleep(delay_ms / 1000)
            super().xSync(flags)

    class Slow(apsw.VFS):
        def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
            return File(name, flags)

    vfs = Slow(NAME, "", maxpathname=1024)
    try:
        yield NAME
    finally:
        vfs.unregister()


def postgres_settings(delay_ms: float) -> dict[str, str]:
    return {"commit_delay": str(round(delay_ms * 1000)), "commit_siblings": "0"}
