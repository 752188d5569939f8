"""SQLite connections: opening them, WAL checkpoints, backups, and whether a file holds a store.

Connections never checkpoint automatically, because that would happen outside the engine's lock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import apsw

from holdfast.core.text import not_written
from holdfast.engines.sqlite import faults
from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError

Durability = Literal["full", "relaxed"]

WAL_PAGES = 4_000
"""Length of the write-ahead log, in pages, at which a checkpoint is due."""

WAL_ALARM_PAGES = 16 * WAL_PAGES
"""A log this long means that a reader keeps checkpoints from completing."""

RESTART_MS = 200
"""Time a checkpoint waits for readers to leave the log once it has doubled in length."""

BUSY_MS = 5_000
_RESTART_STEP_MS = 5
_WRITER_CACHE_KIB = 32 * 1024
_READER_CACHE_KIB = 8 * 1024
_STEP_PAGES = 4_096


def connect(
    files: Files,
    *,
    durability: Durability,
    vfs: str | None,
    create: bool = False,
    writer: bool = False,
) -> apsw.Connection:
    """Open a connection in WAL mode. A new database file takes the lock file's mode."""
    uri = f"file:{quote(str(files.database))}?modeof={quote(str(files.lock))}"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(uri, flags=flags, vfs=vfs)
    try:
        connection.set_busy_timeout(BUSY_MS)
        _use_wal(connection)
        connection.wal_autocheckpoint(0)
        connection.pragma("synchronous", "full" if durability == "full" else "normal")
        connection.pragma("mmap_size", 0)
        connection.pragma("temp_store", "memory")
        connection.pragma("trusted_schema", 0)
        connection.pragma("cache_size", -(_WRITER_CACHE_KIB if writer else _READER_CACHE_KIB))
        page_bytes = connection.pragma("page_size")
        connection.pragma("journal_size_limit", WAL_PAGES * page_bytes)
        if not writer:
            connection.pragma("query_only", 1)
    except BaseException:
        connection.close()
        raise
    return connection


def missing(files: Files, vfs: str | None, *, creating: bool) -> str:
    """Name the first thing that opening would have to create, or "".

    With `creating`, only a missing folder counts. Takes no lock and changes nothing.
    """
    database = files.database
    try:
        files.check_log_has_database()
        if not database.parent.exists():
            return f"there is no folder {database.parent}"
        if creating or database.is_dir():
            return ""
        if not database.exists():
            return f"there is no file {database}"
        return "" if has_tables(files, vfs) else f"there are no queues in {database}"
    except OSError as error:
        raise faults.before_commit(error) from error


def has_tables(files: Files, vfs: str | None) -> bool:
    """True if the file holds a store, or is too damaged to tell: then opening it reports why.

    Raises ConfigError if the file never was a database. Only SQLite opens the file here: closing
    another descriptor of it would drop the locks that SQLite holds on it in this process.
    """
    database = files.database
    if not database.is_file() or not database.stat().st_size:
        return False
    # Without a log the database file is complete, and opening it as immutable creates none.
    immutable = "" if files.wal.exists() else "?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        uri = f"file:{quote(str(database))}{immutable}"
        connection = apsw.Connection(uri, flags=flags, vfs=vfs)
        with contextlib.closing(connection):
            return bool(connection.table_exists("main", "hf_meta"))
    except apsw.NotADBError:
        # After a power cut its first page may exist only in the log or the journal.
        if any(path.exists() for path in (files.lock, files.wal, files.journal)):
            return True
        raise ConfigError(
            f"{database} is not a database: give the path of one, or of a new file"
        ) from None
    except faults.Trouble:
        return True


class WriteAheadLog:
    """Length of the write-ahead log, and when it is copied into the database."""

    def __init__(self) -> None:
        self.pages = 0
        self.due_at: int = WAL_PAGES
        self._restart_at = 2 * WAL_PAGES

    @property
    def is_long(self) -> bool:
        """True if a reader seems to block checkpoints."""
        return self.pages >= WAL_ALARM_PAGES

    def restart(self) -> None:
        """The log was checkpointed and starts again from its first page."""
        self.due_at = WAL_PAGES
        self._restart_at = 2 * WAL_PAGES

    def checkpoint(self, connection: apsw.Connection) -> None:
        """Checkpoint the log, which has reached `due_at` pages."""
        # While a reader keeps the log from restarting, not every commit pays for a new attempt.
        self.due_at = self.pages + WAL_PAGES
        if self.pages < self._restart_at:
            _checkpoint(connection, apsw.SQLITE_CHECKPOINT_PASSIVE)
        else:
            # Overlapping short readers would together block it forever. Readers that start
            # while this waits use the database file alone, so one reader's time is enough.
            self._restart_at = 2 * self.pages
            _restart_log(connection)

    def truncate(self, connection: apsw.Connection) -> None:
        """Copy the whole log into the database and free its space, unless a reader is using it."""
        _checkpoint(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)


def empty_log(connection: apsw.Connection) -> bool:
    """Copy the whole log into the database, and empty it; False if a reader was in the way."""
    return _restart_log(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _restart_log(connection: apsw.Connection, mode: int = apsw.SQLITE_CHECKPOINT_RESTART) -> bool:
    # Many short waits: in one long wait SQLite would wait for the read mark of a reader that has
    # finished and that later readers have taken over.
    end = time.monotonic() + RESTART_MS / 1000
    while not _checkpoint(connection, mode, wait_ms=_RESTART_STEP_MS):
        if time.monotonic() >= end:
            return False
    return True


def _checkpoint(connection: apsw.Connection, mode: int, wait_ms: int = 0) -> bool:
    """Checkpoint as far as readers and free space allow; False if a reader was in the way."""
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


def _use_wal(connection: apsw.Connection) -> None:
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise ConfigError(f"{connection.filename} cannot be used in WAL mode: use a local disk")
    # The first read in this mode opens the log and its index.
    connection.pragma("schema_version")


def back_up(connect: Callable[[], apsw.Connection], path: Path) -> None:
    """Copy the database as of one instant to the new file `path` and sync it to the disk.

    Blocks, from any thread, while other calls continue. `connect` opens a reader of the database.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would change the path
    try:
        # Created here first, so that it overwrites nothing and was never readable by others.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise ConfigError(
            f"{path} exists: a backup does not overwrite files, give a new path"
        ) from None
    except OSError as error:
        raise ConfigError(not_written(path, error)) from error
    try:
        _copy(connect, path)
        _sync(path)
        _sync(path.parent)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, faults.Trouble):
            raise faults.before_commit(error) from error
        raise


def _copy(connect: Callable[[], apsw.Connection], path: Path) -> None:
    source = connect()
    try:
        # One snapshot for all steps: otherwise each commit would restart the copy.
        source.execute("BEGIN")
        source.execute("SELECT schema FROM hf_meta").get  # noqa: B018 - takes the snapshot
        copy = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with copy.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(_STEP_PAGES)
        finally:
            copy.close()
    finally:
        source.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
