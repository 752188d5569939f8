"""Is there a store at this path? Looks without a lock, and leaves no trace.

The file is read by SQLite alone: closing any other descriptor of it would drop the locks that
SQLite holds on it in this process.
"""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import apsw

from holdfast.engines.sqlite import faults
from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError


def missing(files: Files, vfs: str | None, *, creating: bool) -> str:
    """What is not there that opening would make; "" when all is. `creating`: a file may be made,
    but no folder."""
    database = files.database
    try:
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
    """Raise if the file never was a database; one that is in any other trouble counts as ours, so
    that opening it tells."""
    database = files.database
    if not database.is_file() or not database.stat().st_size:
        return False
    # Without a log the file is all there is, and reading it so makes none.
    alone = "" if files.log.exists() else "?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        connection = apsw.Connection(f"file:{quote(str(database))}{alone}", flags=flags, vfs=vfs)
        with contextlib.closing(connection):
            return bool(connection.table_exists("main", "hf_meta"))
    except apsw.NotADBError:
        # After a power cut its first page may be in the log or the journal alone.
        if any(path.exists() for path in (files.lock, files.log, files.journal)):
            return True
        raise ConfigError(
            f"{database} is not a database: give the path of one, or of a new file"
        ) from None
    except faults.Trouble:
        return True
