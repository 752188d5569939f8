"""What every statement of one transaction works with: a connection, the clocks, the queues.

The clocks are read once, after the lock was obtained, so a call that waited is not early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from holdfast.engines.clock import Clock
from holdfast.engines.sqlite import schema
from holdfast.engines.sqlite.catalog import Catalog


class Unit:
    __slots__ = (
        "_last",
        "_used",
        "boot",
        "boot_id",
        "catalog",
        "connection",
        "now",
        "rings",
        "run",
    )

    def __init__(self, connection: apsw.Connection, catalog: Catalog, clock: Clock) -> None:
        # Rows come back as plain tuples; what is in them, the schema says.
        self.run: Callable[..., Any] = connection.execute
        meta = self.run("SELECT schema, revision, boot, number FROM hf_meta").fetchone()
        if meta is None:
            raise apsw.CorruptError("hf_meta has no row")
        found, revision, self.boot_id, number = meta
        if found != len(schema.MIGRATIONS):
            # A newer version has migrated it while we had it open.
            raise schema.mismatch(connection, found)
        catalog.refresh(connection, revision)
        self._used: int = number
        self._last: int = number
        self.connection = connection
        self.catalog = catalog
        self.now = clock.wall_ms()
        self.boot = clock.boot_ms()
        self.rings = False

    @property
    def namespace_id(self) -> int:
        return self.catalog.namespace_id

    def numbers(self, count: int) -> int:
        """The first of `count` numbers that were never used before."""
        first = self._last + 1
        self._last += count
        return first

    def finish(self) -> None:
        """Before the commit: remember which numbers were used."""
        if self._last != self._used:
            self.run("UPDATE hf_meta SET number = ?", (self._last,))
            self._used = self._last

    def changes(self) -> int:
        """How many rows the last statement changed."""
        return self.connection.changes()

    def bump_revision(self) -> None:
        """Tell every catalog that the queues changed."""
        self.run("UPDATE hf_meta SET revision = revision + 1")
