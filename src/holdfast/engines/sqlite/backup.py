"""A copy of the database as it stood at one instant, made while everybody goes on working."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.engines.sqlite import faults
from holdfast.engines.sqlite.store import Store
from holdfast.errors import ConfigError

_STEP_PAGES = 4_096


def back_up(store: Store, path: Path) -> None:
    """Blocks; from any thread. The copy is on the disk when this returns."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - as it is, so that no name means more
    try:
        # Made here first, so that it is nobody else's and never was readable by others.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise ConfigError(f"{path} exists: a backup overwrites nothing, give a new path") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    try:
        _copy(store, path)
        _sync(path)
        _sync(path.parent)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, faults.Trouble):
            raise faults.before_commit(error) from error
        raise


def _copy(store: Store, path: Path) -> None:
    source = store.connect_aside()
    try:
        # One snapshot for all steps: a copy would otherwise begin again at every commit.
        source.execute("BEGIN")
        source.execute("SELECT schema FROM hf_meta").get  # noqa: B018 - it takes the snapshot
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
