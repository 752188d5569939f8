"""An empty SQLite store as a file to copy: making the tables anew, and setting the ballast aside,
is a fifth of what a short test of an engine costs.

The tables are those of the engine's own migrations. `tests/engines/sqlite` is about an engine that
makes them itself.
"""

import contextlib
import os
import tempfile
from functools import cache
from pathlib import Path

import apsw

from holdfast.engines.sqlite import schema
from holdfast.engines.sqlite.files import BALLAST_BYTES, Files


def prepare(path: Path) -> Path:
    """Put an empty store where there is no file yet, as a closed engine leaves it. Where there is
    no folder either, the engine will never be opened."""
    files = Files(path)
    if files.database.exists() or not files.database.parent.is_dir():
        return path
    _create(files.database, _tables())
    _create(files.lock)
    _create(files.ballast)
    # It has the size of a ballast and takes no room: only a full disk would tell.
    os.truncate(files.ballast, BALLAST_BYTES)
    return path


def _create(path: Path, content: bytes = b"") -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
        file.write(content)


@cache
def _tables() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "work.db")
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            connection.pragma("journal_mode", "wal")
            with connection:
                schema.migrate(connection)
        return path.read_bytes()
