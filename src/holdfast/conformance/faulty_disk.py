"""FaultyDisk: an apsw VFS for one process whose disk fails on request.

`Faults` has the switches: I/O errors, a full disk, stalled syncs, a power cut. The files are real,
so connections see each other's writes at once; a `VolatileFile` beside each knows what a power cut
would leave. Nothing is really synced. The -shm file is not modelled: it is gone after a cut. apsw
raises an injected error even where SQLite ignores it, as in the checkpoint of a closing connection.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import apsw

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL


class FaultyDisk(apsw.VFS):
    """Pass its `name` to an engine as `vfs`; set the switches in `faults`.

    Keep the object as long as the engine lives: SQLite forgets the name with it.
    """

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.faults: Faults = Faults()
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
                # Existing content counts as durable. It is read through this handle: opening the
                # file directly would drop SQLite's own locks.
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
                # A failed write may have written half of its data.
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


class Call(StrEnum):
    """A call of SQLite on a file or its directory."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    DELETE = "delete"


_CHANGES = frozenset({Call.WRITE, Call.SYNC, Call.TRUNCATE, Call.DELETE})
_IO_ERRORS = {
    Call.OPEN: apsw.SQLITE_CANTOPEN,
    Call.READ: apsw.SQLITE_IOERR_READ,
    Call.WRITE: apsw.SQLITE_IOERR_WRITE,
    Call.SYNC: apsw.SQLITE_IOERR_FSYNC,
    Call.TRUNCATE: apsw.SQLITE_IOERR_TRUNCATE,
    Call.DELETE: apsw.SQLITE_IOERR_DELETE,
}


class Faults:
    """The switches of a disk; each may be set while the engine runs. Thread-safe. `calls` counts
    calls since the start, `struck` the calls that were made to fail."""

    def __init__(self) -> None:
        self.mutex: Final = threading.RLock()
        self.calls: Counter[Call] = Counter()
        self.struck: int = 0
        self.is_off: bool = False
        self.stalled: Final = threading.Event()
        self._failing: dict[Call, range] = {}
        self._room: int | None = None
        self._beside: Path | None = None
        self._beside_size = 0
        self._gate: threading.Event | None = None
        self._cut: Callable[[Call, str], None] | None = None
        self._cut_after = 0
        self._cut_ending = ""

    def fail(self, call: Call, *, nth: int = 1, times: int = 1) -> None:
        """Let the `nth` such call from now on, and those after it, `times` in total, fail with
        EIO."""
        with self.mutex:
            first = self.calls[call] + nth
            self._failing[call] = range(first, first + times)

    def limit_room(self, room: int, *, beside: Path | None = None) -> None:
        """Let files grow by `room` bytes in total, then report a full disk. Shrinking returns room,
        also of the file `beside`, which SQLite does not know."""
        with self.mutex:
            self._room = room
            self._beside = beside
            self._beside_size = _size(beside)

    def stall(self) -> None:
        """Let syncs hang until `mend`; the first one that hangs sets `stalled`."""
        with self.mutex:
            self.stalled.clear()
            self._gate = threading.Event()

    def mend(self) -> None:
        """End all faults; lost data stays lost."""
        with self.mutex:
            self._failing.clear()
            self._room = None
            gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    def cut_power(self, nth: int, then: Callable[[Call, str], None], *, ending: str = "") -> None:
        """In place of the `nth` changing call from now on a file whose name has that `ending`, do
        `then`, which gets the call and the file. After it nothing works."""
        with self.mutex:
            self._cut = then
            self._cut_after = nth
            self._cut_ending = ending

    def enter(self, call: Call, path: str) -> None:
        """Count the call; raise the error that SQLite is to see."""
        with self.mutex:
            self.calls[call] += 1
            if call in _CHANGES and path.endswith(self._cut_ending):
                self._cut_after -= 1
                if self._cut is not None and self._cut_after == 0:
                    self.is_off = True
                    self._cut(call, path)
            if self.is_off:
                raise io_error(call)
            if self.calls[call] in self._failing.get(call, ()):
                self.struck += 1
                raise io_error(call)

    def grow(self, size: int) -> None:
        """Take bytes of the remaining room; a negative number returns some."""
        with self.mutex:
            if self._room is None:
                return
            given_up = self._beside_size - _size(self._beside)
            self._beside_size -= given_up
            self._room += given_up
            if size > self._room:
                raise full_error()
            self._room -= size

    def wait(self) -> None:
        """Hang while the disk is stalled; called without the mutex, so that others continue."""
        gate = self._gate
        if gate is not None:
            self.stalled.set()
            gate.wait()


def _size(path: Path | None) -> int:
    return path.stat().st_size if path is not None and path.exists() else 0


def io_error(call: Call) -> Exception:
    return apsw.exception_for(_IO_ERRORS[call])


def full_error() -> Exception:
    return apsw.exception_for(apsw.SQLITE_FULL)


SECTOR = 512

Fate = Literal["lost", "kept", "mixed"]
FATES: tuple[Fate, ...] = ("lost", "kept", "mixed", "mixed")


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Resize:
    size: int


@dataclass(slots=True)
class VolatileFile:
    """A file on a disk with a volatile cache. Synced content survives a power cut; each unsynced
    sector is kept, lost or torn on its own, and so are changes of the file's size.

    `named`: the directory entry is durable; `durable` is the durable content. Until a deletion
    is durable, the `ghost` of the deleted file may come back.
    """

    durable: bytearray = field(default_factory=bytearray)
    named: bool = False
    exists: bool = True
    ghost: bytes | None = None
    _unsynced: list[_Write | _Resize] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        self._unsynced.append(_Write(offset, data))

    def resize(self, size: int) -> None:
        self._unsynced.append(_Resize(size))

    def sync(self) -> None:
        """Make the content durable, and the name with it, as on every common file system."""
        _replay(self.durable, self._unsynced)
        self._unsynced.clear()
        self.sync_name()

    def sync_name(self) -> None:
        """Make the name durable: the directory was synced."""
        self.named = self.exists
        self.ghost = None

    def fail_sync(self, rng: Random) -> None:
        """A failed sync as on Linux: the pages count as clean afterwards, so sectors that did not
        reach the disk never will, unless they are written again."""
        content = self.durable
        for change in self._unsynced:
            match change:
                case _Resize(size):
                    _set_size(content, size)
                case _Write(offset, data):
                    # The size belongs to the file system and reaches its journal anyway.
                    _set_size(content, max(len(content), offset + len(data)))
                    _scatter(content, change, rng)
        self._unsynced.clear()

    def deleted(self) -> VolatileFile:
        """The state of the name after the file was deleted."""
        ghost = bytes(self.durable) if self.named else self.ghost
        return VolatileFile(exists=False, ghost=ghost)

    def after_cut(self, rng: Random) -> bytes | None:
        """One of the possible contents after a power cut; None means no file."""
        if not self.named and rng.random() < 0.5:
            return self.ghost
        if not self.exists:
            return None
        fate = rng.choice(FATES)
        if fate == "lost":
            return bytes(self.durable)
        if fate == "kept":
            return bytes(_replay(bytearray(self.durable), self._unsynced))
        content = bytearray(self.durable)
        for change in self._unsynced:
            match change:
                case _Resize(size):
                    if rng.random() < 0.5:
                        _set_size(content, size)
                case _Write():
                    _scatter(content, change, rng)
        return bytes(content)


def _replay(content: bytearray, changes: list[_Write | _Resize]) -> bytearray:
    for change in changes:
        match change:
            case _Resize(size):
                _set_size(content, size)
            case _Write(offset, data):
                _put(content, offset, data)
    return content


def _scatter(content: bytearray, write: _Write, rng: Random) -> None:
    """Write each sector, lose it, or tear it: half written, or with noise. Only bytes inside the
    write change, as SQLite expects of a disk (powersafe overwrite)."""
    for start, data in _sectors(write):
        luck = rng.random()
        if luck < 0.5:
            _put(content, start, data)
        elif luck < 0.55:
            _put(content, start, data[: rng.randrange(len(data) + 1)])
        elif luck < 0.6:
            _put(content, start, rng.randbytes(len(data)))


def _sectors(write: _Write) -> list[tuple[int, bytes]]:
    sectors = []
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        sectors.append((start, write.data[start - write.offset : stop - write.offset]))
        start = stop
    return sectors


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if not data:
        return
    _set_size(content, max(len(content), offset + len(data)))
    content[offset : offset + len(data)] = data


def _set_size(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
