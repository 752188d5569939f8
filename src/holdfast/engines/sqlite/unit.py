"""What every statement of one transaction works with: a connection, the clocks, the queues.

The clocks are read once, after the lock was obtained, so a call that waited is not early.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from holdfast.engines.clock import Clock
from holdfast.engines.sqlite import schema
from holdfast.engines.sqlite.aftermath import Aftermath
from holdfast.engines.sqlite.catalog import Catalog
from holdfast.engines.sqlite.picture import Picture


class Unit:
    __slots__ = (
        "_last",
        "_picture",
        "_remembered",
        "_used",
        "aftermath",
        "aside_at",
        "boot",
        "boot_id",
        "catalog",
        "connection",
        "forsaken",
        "now",
        "rings",
        "run",
        "settle_up",
    )

    def __init__(
        self,
        connection: apsw.Connection,
        catalog: Catalog,
        clock: Clock,
        remembered: Picture | None = None,
    ) -> None:
        # Rows come back as plain tuples; what is in them, the schema says.
        self.run: Callable[..., Any] = connection.execute
        meta = self.run(
            "SELECT schema, revision, boot, number, forsaken, aside_at FROM hf_meta"
        ).fetchone()
        if meta is None:
            raise apsw.CorruptError("hf_meta has no row")
        found, revision, self.boot_id, number, self.forsaken, self.aside_at = meta
        if found != len(schema.MIGRATIONS):
            # A newer version has migrated it while we had it open.
            raise schema.mismatch(connection, found)
        catalog.refresh(connection, revision)
        self._used: int = number
        self._last: int = number
        self._remembered = remembered
        self._picture: Picture | None = None
        self.connection = connection
        self.catalog = catalog
        self.now = clock.wall_ms()
        self.boot = clock.boot_ms()
        self.rings = False
        self.aftermath: Aftermath | None = None
        self.settle_up: Callable[[Unit], None] | None = None

    @property
    def namespace_id(self) -> int:
        return self.catalog.namespace_id

    @property
    def picture(self) -> Picture:
        """What is known already, if this is the one who writes."""
        if self._picture is None:
            if self._remembered is None:
                self._picture = Picture()
            else:
                self._picture = self._remembered
                self._picture.believe(self.run("PRAGMA data_version").get)
        return self._picture

    def numbers(self, count: int) -> int:
        """The first of `count` numbers that were never used before."""
        first = self._last + 1
        self._last += count
        return first

    def finish(self) -> None:
        """Before the commit: see to the aftermath, and remember which numbers were used."""
        if self.settle_up is not None:
            self.settle_up(self)
        if self._last != self._used:
            self.run("UPDATE hf_meta SET number = ?", (self._last,))
            self._used = self._last

    def note_aside(self) -> None:
        """Jobs that have expired by now were put aside."""
        if self.aside_at < self.now:
            self.run("UPDATE hf_meta SET aside_at = ?", (self.now,))
            self.aside_at = self.now

    def changes(self) -> int:
        """How many rows the last statement changed."""
        return self.connection.changes()

    def bump_revision(self) -> None:
        """Tell every catalog that the queues changed."""
        self.run("UPDATE hf_meta SET revision = revision + 1")
