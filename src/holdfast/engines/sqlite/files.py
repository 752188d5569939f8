"""Paths, owners, modes and identities of the database and its companion files, and free disk space.

Never opens the database itself: closing any descriptor of it would drop the locks that SQLite holds
on it in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigError, EngineUnavailable, StorageFull

# File systems without reliable locks or shared memory, by the magic number of statfs(2).
NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x564C: "NCP",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x786F4256: "VirtualBox shared folder",
    0xBACBACBC: "VMware shared folder",
}
FLOOR_BYTES = 64 * 1024 * 1024
"""Free space below which no job is accepted."""

BALLAST_BYTES = 4 * 1024 * 1024
"""Size of the ballast file."""

Identity = tuple[int, int]
"""(device, inode) of a file."""

FolderStamp = tuple[int, int, int]
"""(device, inode, time of change) of a folder."""

_STAMP_NS = 100_000_000
"""Longer than a tick of the kernel, by which most file systems set their times."""
_COARSE_STEP_NS = 10_000_000
_COARSE_STAMP_NS = 3_000_000_000
"""Longer than the coarsest step of a file system's times, which is two seconds."""
_RECORD_BYTES = 160
_EXHAUSTED_BYTES = 1024 * 1024
_RESTORE_INTERVAL_S = 1.0


class FileSet(NamedTuple):
    """The identities of the files that make up a store; None for one that is missing.

    A log or index that was removed is replaced by an empty one when the next process connects: the
    two then do not see each other's commits, and overwrite them.
    """

    database: Identity | None
    wal: Identity | None
    shm: Identity | None


class Files:
    """The paths of one database. Links are resolved, so that all its users share the same files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        if not given or "\0" in given or given.startswith((":memory:", "file:")):
            raise ConfigError(f"{given!r} is not the path of a file: give one, as in work.db")
        try:
            os.path.realpath(given).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{given!r} is not UTF-8, as SQLite requires: rename it") from None
        self.database: Path = Path(os.path.realpath(given))
        self.lock: Path = self._beside("-lock")
        self.bell: Path = self._beside("-bell")
        self.wal: Path = self._beside("-wal")
        self.shm: Path = self._beside("-shm")
        self.journal: Path = self._beside("-journal")
        self.ballast: Path = self._beside("-ballast")
        self.folder: str = str(self.database.parent)
        self._paths = (str(self.database), str(self.wal), str(self.shm))

    def prepare(self, *, create: bool = True) -> None:
        """Create the directory; refuse places where data could be lost or read by other users."""
        directory = self.database.parent
        if create:
            _make_private(directory)
        elif not directory.exists():
            raise EngineUnavailable(f"there is no folder {directory}: create or mount it")
        if self.database.is_dir():
            raise ConfigError(f"{self.database} is a directory: give the path of a file")
        if self.database.exists():
            status = self.database.stat()
            self._check_owner(self.database, status)
            if status.st_nlink > 1:
                raise ConfigError(
                    f"{self.database} has a second hard link, and a program that uses the other"
                    " name would not see the log: remove one of the two"
                )
        network = NETWORK_FILE_SYSTEMS.get(file_system_number(directory))
        if network is not None:
            raise ConfigError(
                f"{directory} is on {network}, where SQLite's locks are not reliable: "
                "use a local disk, or PostgreSQL for several machines"
            )
        mode = directory.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(f"every user may replace files in {directory}: run chmod o-w on it")

    def open_private(self, path: Path) -> int:
        """Open or create one of our own files next to the database: 0600, never through a link.

        A new database copies the lock file's mode, so an existing file is checked too.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            status = os.fstat(descriptor)
            self._check_owner(path, status)
            if status.st_mode & stat.S_IRWXO:
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~stat.S_IRWXO)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def identify(self) -> FileSet:
        """The store's files as they are found at their paths."""
        database, wal, shm = self._paths
        return FileSet(_identity(database), _identity(wal), _identity(shm))

    def stamp(self) -> FolderStamp | None:
        """A value that changes when any file in the folder is created, removed or renamed.

        None while a change is so recent that the file system may give the next one the same time.
        """
        status = os.stat(self.folder)  # noqa: PTH116 - twice per commit, and twice as fast
        changed_ns = status.st_mtime_ns
        # A file system with coarse times has no others than multiples of its step.
        settled_ns = _STAMP_NS if changed_ns % _COARSE_STEP_NS else _COARSE_STAMP_NS
        if time.time_ns() - changed_ns < settled_ns:
            return None
        return status.st_dev, status.st_ino, changed_ns

    @staticmethod
    def record(lock: int, found: FileSet | None) -> None:
        """Write into the open lock file which files its users share, or that nobody knows."""
        # Always the same length, so that it fits on a full disk; without it nothing is compared.
        with contextlib.suppress(OSError):
            os.pwrite(lock, msgspec.json.encode(found).ljust(_RECORD_BYTES), 0)

    @staticmethod
    def recorded(lock: int) -> FileSet | None:
        """The files that the last process to connect has recorded; None if nobody knows."""
        try:
            return msgspec.json.decode(os.pread(lock, _RECORD_BYTES, 0), type=FileSet | None)
        except msgspec.MsgspecError:
            return None

    def removed_in_use(self) -> list[str]:
        """Name each process that still uses a file of this store which is no longer at its path.

        Only Linux tells, and only about processes that this user may inspect.
        """
        current = dict(zip(self._paths, self.identify(), strict=True))
        found = set()
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                path = str(link.readlink()).removesuffix(" (deleted)")
                status = link.stat() if path in current else None
                if status is not None and (status.st_dev, status.st_ino) != current[path]:
                    found.add((int(link.parts[2]), path))
        return [
            f"process {process} still uses a {path} that was removed or replaced: its commits may"
            " be lost; stop it"
            for process, path in sorted(found)
        ]

    def has_log(self) -> bool:
        """True if the write-ahead log is not empty: it may hold commits that are nowhere else."""
        try:
            return self.wal.stat().st_size > 0
        except FileNotFoundError:
            return False

    def check_log_has_database(self) -> None:
        """Raise if the database is missing or empty and its log is not: SQLite would delete it."""
        if not self.has_log() or (self.database.exists() and self.database.stat().st_size):
            return
        raise EngineUnavailable(
            f"{self.database} is missing or empty, but {self.wal} holds commits that belong to it:"
            " put the database back; only if its jobs are not needed, remove the -wal file"
        )

    def trouble(self) -> list[str]:
        """Problems that an operator should fix."""
        if self.database.stat().st_mode & stat.S_IRWXO:
            return [f"every user may open {self.database}: run chmod o-rwx on it"]
        return []

    def _check_owner(self, path: Path, status: os.stat_result) -> None:
        """In a directory such as /tmp another user may have created the file first."""
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a regular file: give the path of one")
        is_shared = self.database.parent.stat().st_mode & stat.S_IWOTH
        if is_shared and status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{path} belongs to user {status.st_uid}, in a directory that every user may write"
                " to: use a directory of your own"
            )

    def _beside(self, ending: str) -> Path:
        return self.database.with_name(self.database.name + ending)


def _identity(path: str) -> Identity | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - several times per call, and twice as fast
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def open_in_process() -> set[Identity] | None:
    """The identities of all files that this process has open; None if the system does not tell."""
    try:
        descriptors = [path.name for path in Path("/dev/fd").iterdir()]
    except OSError:
        return None
    found = set()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            status = os.fstat(int(descriptor))
            found.add((status.st_dev, status.st_ino))
    return found


def file_system_number(directory: Path) -> int:
    """The magic number of the file system from statfs(2); 0 on other systems than Linux."""
    if not sys.platform.startswith("linux"):
        return 0
    result = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(directory), ctypes.byref(result)) != 0:
        code = ctypes.get_errno()
        raise EngineUnavailable(f"cannot read the file system of {directory}: {os.strerror(code)}")
    return result[0] & 0xFFFFFFFF


def _make_private(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


class Disk:
    """Free space of the file system that holds the database.

    On a full disk SQLite can neither settle nor delete, so a ballast file next to the database
    reserves a few megabytes, which are freed when the disk is full.
    """

    def __init__(self, files: Files, floor_bytes: int) -> None:
        self._files = files
        self._floor_bytes = floor_bytes
        self._checked_at = -_RESTORE_INTERVAL_S

    def free_bytes(self) -> int:
        """Bytes available to this user."""
        status = os.statvfs(self._files.folder)
        return status.f_bavail * status.f_frsize

    def is_exhausted(self) -> bool:
        """True if there may be too little space even to open the database."""
        return self.free_bytes() < _EXHAUSTED_BYTES

    def check_room(self, grows_bytes: int) -> None:
        """Raise StorageFull if an enqueue of `grows_bytes` would use up what settling needs."""
        free_bytes = self.free_bytes()
        # A payload is written to the log and later copied from there into the database.
        if free_bytes - 2 * grows_bytes < self._floor_bytes:
            raise StorageFull(
                f"{free_bytes} bytes are free on the disk of {self._files.database}, and"
                f" {self._floor_bytes} are reserved: free some space; leased jobs can still be"
                " settled"
            )
        if free_bytes >= self._floor_bytes + BALLAST_BYTES:
            self._restore_ballast()

    def trouble(self) -> list[str]:
        """Problems that an operator should fix."""
        found = []
        if self.free_bytes() < self._floor_bytes:
            found.append(
                f"the disk of {self._files.database} is at its floor: no job is accepted;"
                " free some space"
            )
        if not self._has_ballast():
            found.append(
                f"the ballast {self._files.ballast} was used up: a full disk would stop all work"
            )
        return found

    def give_up_ballast(self) -> bool:
        """Free the space of the ballast file; False if it was already empty."""
        if not self._has_ballast():
            return False
        # Never through a link: truncating would destroy the file it leads to.
        descriptor = os.open(self._files.ballast, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        return True

    def _has_ballast(self) -> bool:
        try:
            status = self._files.ballast.lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size > 0

    def _restore_ballast(self) -> None:
        # Another process may have given it up; an occasional check is enough.
        if time.monotonic() - self._checked_at < _RESTORE_INTERVAL_S:
            return
        self._checked_at = time.monotonic()
        try:
            descriptor = self._files.open_private(self._files.ballast)
            try:
                if os.fstat(descriptor).st_size < BALLAST_BYTES:
                    os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            finally:
                os.close(descriptor)
        except (OSError, ConfigError):
            # An allocation that failed halfway still occupies the last free space.
            with contextlib.suppress(OSError):
                self.give_up_ballast()
