"""One file on a disk with a volatile cache: what a power cut may leave of it.

Pure bytes: it knows neither SQLite nor the file system. What was synced is kept; each sector of
what was not is kept, lost or torn on its own, in no order, as are the changes of the file's size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

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
    """`named` says that the directory's entry is durable, `durable` is the content that is. Until
    a deletion is, the `ghost` of the file that had the name before may come back."""

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
        """With the content goes the name, as on every common file system."""
        _replay(self.durable, self._unsynced)
        self._unsynced.clear()
        self.sync_name()

    def sync_name(self) -> None:
        """The directory was synced."""
        self.named = self.exists
        self.ghost = None

    def fail_sync(self, rng: Random) -> None:
        """As Linux does it: what the failed sync should have carried is clean afterwards, so the
        sectors that did not reach the disk never will, unless they are written again."""
        content = self.durable
        for change in self._unsynced:
            match change:
                case _Resize(size):
                    _set_size(content, size)
                case _Write(offset, data):
                    # The size is the file system's own and goes to its journal all the same.
                    _set_size(content, max(len(content), offset + len(data)))
                    _scatter(content, change, rng)
        self._unsynced.clear()

    def deleted(self) -> VolatileFile:
        """What stands for the name after the file was deleted."""
        ghost = bytes(self.durable) if self.named else self.ghost
        return VolatileFile(exists=False, ghost=ghost)

    def after_cut(self, rng: Random) -> bytes | None:
        """One of the contents that may be found when the power is back; None for no file."""
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
    """Each sector has its own luck. A torn one is half written, or written with noise: only bytes
    inside the write change, which is what SQLite expects of a disk (powersafe overwrite)."""
    for start, data in _sectors(write):
        luck = rng.random()
        if luck < 0.5:
            _put(content, start, data)
        elif luck < 0.55:
            _put(content, start, data[: rng.randrange(len(data) + 1)])
        elif luck < 0.6:
            _put(content, start, rng.randbytes(len(data)))


def _sectors(write: _Write) -> list[tuple[int, bytes]]:
    pieces = []
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        pieces.append((start, write.data[start - write.offset : stop - write.offset]))
        start = stop
    return pieces


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
