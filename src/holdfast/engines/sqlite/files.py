"""The files beside the database, their modes, and whether the database is still the same file.

The database itself is never opened here, only looked at: closing any descriptor of it would drop
the locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path

from holdfast.errors import ConfigError, EngineUnavailable

# File systems without dependable locks or shared memory, by the number statfs gives them.
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

Identity = tuple[int, int]


class Files:
    """The paths of one database: links are followed once, so that all its users meet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        if not given or "\0" in given or given.startswith((":memory:", "file:")):
            raise ConfigError(f"{given!r} is not the path of a file: give one, as in work.db")
        try:
            os.path.realpath(given).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{given!r} is not UTF-8, as SQLite demands: rename it") from None
        self.database = Path(os.path.realpath(given))
        self.lock = self._beside("-lock")
        self.bell = self._beside("-bell")
        self.log = self._beside("-wal")
        self.journal = self._beside("-journal")
        self.ballast = self._beside("-ballast")

    def prepare(self) -> None:
        """Make the directory, and refuse places where a queue could be lost or read by others."""
        directory = self.database.parent
        _make_private(directory)
        if self.database.is_dir():
            raise ConfigError(f"{self.database} is a directory: give the path of a file")
        if self.database.exists():
            status = self.database.stat()
            self._check_owner(self.database, status)
            if status.st_nlink > 1:
                raise ConfigError(
                    f"{self.database} has a second name (hard link), under which another program"
                    " would miss what is in the log: remove one of the two"
                )
        network = NETWORK_FILE_SYSTEMS.get(file_system_number(directory))
        if network is not None:
            raise ConfigError(
                f"{directory} is on {network}, where SQLite's locks do not hold: "
                "use a local disk, or PostgreSQL for several machines"
            )
        mode = directory.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"anybody may replace files in {directory}: take the right away, chmod o-w"
            )

    def open_private(self, path: Path) -> int:
        """A file of our own beside the database, 0600, never through a link.

        A new database takes over the lock file's mode, so what was laid here before is checked.
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

    def trouble(self) -> list[str]:
        if self.database.stat().st_mode & stat.S_IRWXO:
            return [f"anybody may open {self.database}: take the right away, chmod o-rwx"]
        return []

    def identity(self) -> Identity | None:
        """What the path leads to now; None when there is nothing."""
        try:
            status = os.stat(self.database)  # noqa: PTH116 - once per call, twice as fast
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def check_same(self, identity: Identity | None) -> None:
        """Raise unless the path still leads to the file that was opened."""
        found = self.identity()
        if found is None:
            raise EngineUnavailable(f"{self.database} was deleted while in use: restore it")
        if found != identity:
            raise EngineUnavailable(
                f"{self.database} was replaced while in use: it is opened anew at the next call"
            )

    def _check_owner(self, path: Path, status: os.stat_result) -> None:
        """In a directory such as /tmp a stranger may have laid the file here before us."""
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is no regular file: give the path of one")
        anybody = self.database.parent.stat().st_mode & stat.S_IWOTH
        if anybody and status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"{path} belongs to user {status.st_uid}, in a directory that anybody may write"
                " to: use a directory of your own"
            )

    def _beside(self, ending: str) -> Path:
        return self.database.with_name(self.database.name + ending)


def file_system_number(directory: Path) -> int:
    """The first field of statfs(2), which names the file system; 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(directory), ctypes.byref(answer)) != 0:
        code = ctypes.get_errno()
        raise EngineUnavailable(f"{directory} cannot be looked at: {os.strerror(code)}")
    return answer[0] & 0xFFFFFFFF


def _make_private(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
