"""One process's counts and events → the store, every few seconds, each exactly once.

What is not known to be stored is stored again, unchanged, before anything else: an account holds
all that its process counted, so that twice is as good as once. A process that is killed loses what
came after its last flush; one that upkeep took for ended goes on with what is left.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable

import msgspec

from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.telemetry import notable
from holdfast.telemetry.accounts import ALIVE_MS, KIND, Account, read, written
from holdfast.telemetry.meter import Meter

_log = logging.getLogger("holdfast.telemetry")

_UNTOLD_MAX = 20
"""Of records with events while the store is away."""


class Flusher:
    """`role` is what the process is: worker, server, app."""

    def __init__(self, engine: Engine, meter: Meter, role: str, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._meter = meter
        self._role = role
        self._wall_ms = wall_ms
        self._events: list[Record] = []
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Under a key of its own, which sorts by role and start."""
        role = re.sub(r"[^a-z]", "", self._role) or "app"
        self.key = f"{role}-{self._wall_ms():013d}-{secrets.token_hex(4)}"
        self._version = 0
        self._saved = b"{}"
        self._saved_at = 0
        self._changes = -1
        self._unsure: bytes | None = None
        """What may or may not be stored."""

    async def flush(self, *, last: bool = False) -> None:
        """Tell what is new. With `last` the process has nothing more to say, ever."""
        await self._flush_events()
        if self._unsure is not None:
            await self._save(self._unsure)
        changes, now = self._meter.changes, self._wall_ms()
        quiet = changes == self._changes and 0 <= now - self._saved_at < ALIVE_MS
        if changes and (last or not quiet) and await self._save(self._account(closed=last)):
            self._changes, self._saved_at = changes, now

    def _account(self, *, closed: bool) -> bytes:
        return written(
            Account(
                role=self._role,
                host=socket.gethostname()[:60],
                pid=os.getpid(),
                closed=closed,
                totals=self._meter.totals,
            )
        )

    async def _save(self, value: bytes) -> bool:
        """Whether this very value is stored; if not, more has to be told."""
        tried, self._unsure = self._unsure is not None, value
        record = Record(kind=KIND, key=self.key, value=value, version=self._version)
        [saved] = await self._engine.save([record])
        if saved is Saved.SAVED:
            self._version, self._saved, self._unsure = self._version + 1, value, None
            return True
        found = await _find(self._engine, self.key)
        if found is not None and found.value == value:
            # It was, without this process hearing of it.
            self._version, self._saved, self._unsure = found.version, value, None
            return True
        # Upkeep closed it. If it is gone already, what was tried before is taken to have been in
        # it, although it may not have been: never twice.
        told = read(found, Account) if found is not None else None
        told = told or msgspec.json.decode(value if tried else self._saved, type=Account)
        _log.info("this process was taken for ended, and goes on counting in another account")
        self._meter.take_away(told.totals)
        self._begin()
        return False

    async def _flush_events(self) -> None:
        """Each record once, under the key it was first tried with."""
        now = self._wall_ms()
        new = self._meter.notables.take(now)
        if new:
            self._number += 1
            self._events.append(
                notable.record_of(notable.event_key(now, self.key, self._number), new)
            )
            del self._events[:-_UNTOLD_MAX]
        if self._events:
            # Stale is what is there already.
            await self._engine.save(self._events)
            self._events = []


async def _find(engine: Engine, key: str) -> Record | None:
    """The first after everything that sorts before it."""
    found = await engine.load(KIND, after=key[:-1], limit=20)
    return next((record for record in found if record.key == key), None)
