"""A disk under SQLite that fails on request: `FaultyDisk`, an apsw VFS for one process.

The files are real ones, so several connections see each other's writes at once. Beside each runs
a `VolatileFile` that knows what a power cut would leave; nothing is really synced. The -shm file
is not modelled: it is gone after a cut. An injected error comes out of apsw even where SQLite
itself passes over it, as in the checkpoint of a closing connection.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import apsw

from holdfast.testing.faults import Call, Faults
from holdfast.testing.volatile import VolatileFile

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


class FaultyDisk(apsw.VFS):
    """Give its `name` to an engine as `vfs`; throw the switches in `faults`.

    Keep the object for as long as the engine lives: SQLite forgets the name with it.
    """

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.faults = Faults()
        self.rng = rng
        self.files: dict[str, VolatileFile] = {}
        super().__init__(name, "")

    def image(self, rng: Random) -> dict[str, bytes]:
        """File names and contents as a power cut at this instant may leave them."""
        with self.faults.mutex:
            found = [(path, file.after_cut(rng)) for path, file in sorted(self.files.items())]
        return {Path(path).name: content for path, content in found if content is not None}

    def xOpen(  # noqa: N802  (SQLite's name)
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        self.faults.enter(Call.OPEN, str(name))
        if name is None or flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE:
            return apsw.VFSFile("", name, flags)
        return _FaultyFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self.faults.mutex:
            self.faults.enter(Call.DELETE, filename)
            size = Path(filename).stat().st_size if Path(filename).exists() else 0
            super().xDelete(filename, syncdir)
            self.faults.grow(-size)
            if file := self.files.get(filename):
                self.files[filename] = file.deleted()
            if syncdir:
                self.sync_directory()

    def sync_directory(self) -> None:
        for file in self.files.values():
            file.sync_name()


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._faults = disk.faults
        with disk.faults.mutex:
            there = Path(self._path).exists()
            super().__init__("", name, flags)
            if self._path not in disk.files:
                # What is found on the disk has been there for long enough to be durable. It is
                # read by this handle: opening the file by hand would drop SQLite's own locks.
                content = super().xRead(super().xFileSize(), 0) if there else b""
                disk.files[self._path] = VolatileFile(bytearray(content), named=there)
            disk.files[self._path].exists = True
        # SQLite's own VFS syncs the directory with the first sync of a new journal or WAL.
        self._syncs_directory = not there and bool(flags[0] & _JOURNALS)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._faults.enter(Call.READ, self._path)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        content = bytes(data)
        with self._faults.mutex:
            try:
                self._faults.enter(Call.WRITE, self._path)
            except apsw.Error:
                # A write that fails may have done half of its work.
                if not self._faults.is_off:
                    self._write(content[: len(content) // 2], offset)
                raise
            self._faults.grow(max(0, offset + len(content) - super().xFileSize()))
            self._write(content, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._faults.mutex:
            self._faults.enter(Call.TRUNCATE, self._path)
            self._faults.grow(newsize - super().xFileSize())
            super().xTruncate(newsize)
            self._disk.files[self._path].resize(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._faults.wait()
        with self._faults.mutex:
            file = self._disk.files[self._path]
            try:
                self._faults.enter(Call.SYNC, self._path)
            except apsw.Error:
                if not self._faults.is_off:
                    file.fail_sync(self._disk.rng)
                raise
            file.sync()
            if self._syncs_directory:
                self._disk.sync_directory()
                self._syncs_directory = False

    def _write(self, content: bytes, offset: int) -> None:
        super().xWrite(content, offset)
        self._disk.files[self._path].write(offset, content)
