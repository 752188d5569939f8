"""News from other processes: a file they write a byte to, watched only while somebody waits.

Linux tells at once (inotify). Commits that ring no bell, of a program's own transactions or on
other systems, are noticed by looking at SQLite's data version now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from holdfast.errors import HoldfastError

_IN_MODIFY = 0x2
_NEWS_BYTES = 4096
LOOK_S, LOOK_S_UNWATCHED = 0.25, 0.05


class Watch:
    """Calls `ring` in the loop of whoever waits, while anybody does."""

    def __init__(
        self, path: Path, ring: Callable[[], None], data_version: Callable[[], Awaitable[int]]
    ) -> None:
        self._ring = ring
        self._data_version = data_version
        self._descriptor = _inotify(path)
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._waiting += 1
        if self._waiting == 1:
            self._begin(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._end()

    def close(self) -> None:
        self._end()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._descriptor is not None:
            loop.add_reader(self._descriptor, self._heard)
        self._looking = loop.create_task(self._look())

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._descriptor is not None:
            loop.remove_reader(self._descriptor)
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _heard(self) -> None:
        assert self._descriptor is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _NEWS_BYTES)
        self._ring()

    async def _look(self) -> None:
        known = None
        nap_s = LOOK_S_UNWATCHED if self._descriptor is None else LOOK_S
        while True:
            # Who waits tries for itself and hears of trouble; this only looks for news.
            with contextlib.suppress(HoldfastError):
                found = await self._data_version()
                # Where nothing tells, the first look may come after the news it was to find.
                if found != known and (known is not None or self._descriptor is None):
                    self._ring()
                known = found
            await asyncio.sleep(nap_s)


def _inotify(path: Path) -> int | None:
    """A descriptor that becomes readable when the file is written to; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
