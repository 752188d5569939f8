"""Wakes waiting leases when another process commits, by watching the bell file.

Linux reports writes to the bell file at once (inotify). Commits that do not write it, such as those
of a program's own transactions, and all commits on other systems are found by polling SQLite's
data version. Nothing is watched or polled while no lease waits.
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
_EVENTS_BYTES = 4096
POLL_S, POLL_S_UNWATCHED = 0.25, 0.05


class ChangeListener:
    """Calls `ring` in the event loop when the database may have changed."""

    def __init__(
        self, path: Path, ring: Callable[[], None], data_version: Callable[[], Awaitable[int]]
    ) -> None:
        self._ring = ring
        self._data_version = data_version
        self._descriptor = _inotify(path)
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poller: asyncio.Task[None] | None = None

    @property
    def is_in_use(self) -> bool:
        """True while a lease waits, or looks for jobs before it waits."""
        return self._waiting > 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs; blocks may overlap."""
        self._waiting += 1
        if self._waiting == 1:
            self._start(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._stop()

    def close(self) -> None:
        """Stop listening permanently."""
        self._stop()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._descriptor is not None:
            loop.add_reader(self._descriptor, self._on_event)
        self._poller = loop.create_task(self._poll())

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._descriptor is not None:
            loop.remove_reader(self._descriptor)
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def _on_event(self) -> None:
        assert self._descriptor is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        self._ring()

    async def _poll(self) -> None:
        known = None
        interval_s = POLL_S_UNWATCHED if self._descriptor is None else POLL_S
        while True:
            # The waiting lease itself reports a fault; polling only looks for changes.
            with contextlib.suppress(HoldfastError):
                found = await self._data_version()
                # Without inotify the change may have come before the first poll.
                if found != known and (known is not None or self._descriptor is None):
                    self._ring()
                known = found
            await asyncio.sleep(interval_s)


def _inotify(path: Path) -> int | None:
    """A descriptor that is readable after a write to the file; None without inotify."""
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
