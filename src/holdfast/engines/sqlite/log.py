"""The write-ahead log: how long it is, and when it is copied into the database.

SQLite never checkpoints by itself here, because that would happen outside the lock of ours.
"""

from __future__ import annotations

import time

import apsw

from holdfast.engines.sqlite.connection import BUSY_MS, WAL_PAGES

WAL_ALARM_PAGES = 16 * WAL_PAGES
"""A log this long means that a reader keeps checkpoints from ending."""

_GO_MS = 5
INSIST_MS = 200
"""So long writers wait for readers to leave the log, when it has become twice as long."""


class Log:
    def __init__(self, connection: apsw.Connection | None = None) -> None:
        self.pages = 0
        self._due_at = WAL_PAGES
        self._insist_at = 2 * WAL_PAGES
        if connection is not None:
            connection.set_wal_hook(self._note)

    @property
    def is_long(self) -> bool:
        return self.pages >= WAL_ALARM_PAGES

    def checkpoint_if_due(self, connection: apsw.Connection) -> None:
        if self.pages >= self._due_at:
            # If a reader keeps the log from starting again, not every commit pays for a new go.
            self._due_at = self.pages + WAL_PAGES
            if self.pages < self._insist_at:
                _checkpoint(connection, apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                # Short readers that overlap would hold it up together for ever. Who begins to
                # read while we wait reads the database alone, so one reader's time is enough.
                self._insist_at = 2 * self.pages
                _insist(connection)

    def shorten(self, connection: apsw.Connection) -> None:
        """Copy all of it and give its space back, unless somebody reads from it."""
        _checkpoint(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _note(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self.pages:
            self._due_at = WAL_PAGES
            self._insist_at = 2 * WAL_PAGES
        self.pages = pages
        return apsw.SQLITE_OK


def _insist(connection: apsw.Connection) -> None:
    # Many short goes: in one long one SQLite waits for the slot of a reader who has left, and
    # which those who came after it have taken over.
    end = time.monotonic() + INSIST_MS / 1000
    while not _checkpoint(connection, apsw.SQLITE_CHECKPOINT_RESTART, wait_ms=_GO_MS):
        if time.monotonic() >= end:
            break


def _checkpoint(connection: apsw.Connection, mode: int, wait_ms: int = 0) -> bool:
    """As far as readers and the free space allow; False if a reader was in the way."""
    connection.set_busy_timeout(wait_ms)
    try:
        connection.wal_checkpoint(mode=mode)
    except (apsw.BusyError, apsw.LockedError):
        return False
    except apsw.FullError:
        return True
    else:
        return True
    finally:
        connection.set_busy_timeout(BUSY_MS)
