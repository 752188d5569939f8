"""Free space: a floor below which no job comes in, and a ballast that lets jobs go out.

On a full disk SQLite can neither settle nor delete, so a file of some megabytes is kept beside
the database and given up when that happens.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from holdfast.engines.sqlite.files import Files
from holdfast.errors import ConfigError, StorageFull

FLOOR_BYTES = 64 * 1024 * 1024
BALLAST_BYTES = 4 * 1024 * 1024
_EXHAUSTED_BYTES = 1024 * 1024
_LOOK_S = 1.0


class Disk:
    def __init__(self, files: Files, floor_bytes: int) -> None:
        self._files = files
        self._floor_bytes = floor_bytes
        self._looked_at = -_LOOK_S

    def free_bytes(self) -> int:
        answer = os.statvfs(self._files.database.parent)
        return answer.f_bavail * answer.f_frsize

    def is_exhausted(self) -> bool:
        return self.free_bytes() < _EXHAUSTED_BYTES

    def check_room(self, grows_bytes: int) -> None:
        """Raise StorageFull when an enqueue would use up what settling needs."""
        free_bytes = self.free_bytes()
        # A payload is written to the log, and later copied from there into the database.
        if free_bytes - 2 * grows_bytes < self._floor_bytes:
            raise StorageFull(
                f"{free_bytes} bytes are free beside {self._files.database}, the floor is "
                f"{self._floor_bytes}: free some space; jobs in hand can still be settled"
            )
        if free_bytes >= self._floor_bytes + BALLAST_BYTES:
            self._restore()

    def trouble(self) -> list[str]:
        found = []
        if self.free_bytes() < self._floor_bytes:
            found.append(f"the disk of {self._files.database} is at its floor: no job comes in")
        if not self._has_ballast():
            found.append(f"{self._files.ballast} was given up: a full disk would stop all work")
        return found

    def give_up_ballast(self) -> bool:
        """Free the space that was kept back; False if there was none."""
        if not self._has_ballast():
            return False
        # Never through a link: it would cut off whatever that leads to.
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

    def _restore(self) -> None:
        # Another process may have given it up; a look now and then is enough.
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        try:
            descriptor = self._files.open_private(self._files.ballast)
            try:
                if os.fstat(descriptor).st_size < BALLAST_BYTES:
                    os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
            finally:
                os.close(descriptor)
        except (OSError, ConfigError):
            # An allocation that failed half-way holds on to the last of the space.
            with contextlib.suppress(OSError):
                self.give_up_ballast()
