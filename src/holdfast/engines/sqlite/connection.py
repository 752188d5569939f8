"""How a connection is made: the pragmas that durability, memory and tidiness depend on."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

import apsw

from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError

Durability = Literal["full", "relaxed"]

WAL_PAGES = 4_000
"""A checkpoint is due when the log holds so many pages."""

BUSY_MS = 5_000
_WRITER_CACHE_KIB = 32 * 1024
_READER_CACHE_KIB = 8 * 1024


def connect(
    files: Files,
    *,
    durability: Durability,
    vfs: str | None,
    create: bool = False,
    writer: bool = False,
) -> apsw.Connection:
    """A connection that never checkpoints by itself. A new file takes the lock file's mode."""
    uri = f"file:{quote(str(files.database))}?modeof={quote(str(files.lock))}"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(uri, flags=flags, vfs=vfs)
    try:
        connection.set_busy_timeout(BUSY_MS)
        _use_log(connection)
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


def _use_log(connection: apsw.Connection) -> None:
    mode = connection.pragma("journal_mode")
    if mode != "wal":
        mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise ConfigError(f"{connection.filename} cannot be used in WAL mode: use a local disk")
