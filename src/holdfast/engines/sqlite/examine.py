"""A look at the file and what it stands on, for a person who wonders whether all is well."""

from __future__ import annotations

import contextlib

import apsw

from holdfast.engines.base import Examination
from holdfast.engines.sqlite import faults
from holdfast.engines.sqlite.store import Store
from holdfast.errors import StorageFull

_SOUND = (3, 51, 3)
"""Before this one, a checkpoint beside a commit could damage the file."""


def examine(store: Store, now: int, *, deep: bool) -> Examination:
    """Blocks; from any thread."""
    with contextlib.suppress(StorageFull):
        # Before the first job there is no ballast, which is no trouble where there is room for it.
        store.disk.check_room(0)
    trouble = store.trouble()
    library = apsw.sqlite_lib_version()
    if tuple(int(part) for part in library.split(".")[:3]) < _SOUND:
        trouble.append(f"SQLite {library} can damage the file: install a newer apsw")
    return Examination(
        now=now,
        versions={"SQLite": library, "apsw": apsw.apsw_version()},
        free_bytes=store.disk.free_bytes(),
        trouble=tuple(trouble),
        damage=_damage(store) if deep else None,
    )


def _damage(store: Store) -> tuple[str, ...]:
    """Reads every page, in a transaction of its own: others go on working."""
    try:
        connection = store.connect_aside()
        try:
            found = connection.execute("PRAGMA integrity_check(100)")
            lines = [str(line) for (line,) in found]
        finally:
            connection.close()
    except apsw.CorruptError as error:
        return (str(error),)
    except faults.Trouble as error:
        raise faults.before_commit(error) from error
    return () if lines == ["ok"] else tuple(lines)
