"""Looks every few seconds whether a rule holds; of many that look, one tells.

Any number of servers may run it. A step is read, judged and written on the version that was read;
who wrote it tells. What cannot be written, because its part of the store is away or full, is kept
here and told by this server all the same: rather twice than not at all.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from msgspec.structs import replace

from holdfast.alerts.book import KIND, Alert, after, alert_of, key_of, record_of, retried
from holdfast.alerts.facts import Reader
from holdfast.alerts.judging import Facts, readings
from holdfast.alerts.rules import Thresholds
from holdfast.alerts.telling import Teller
from holdfast.config import Settings, settings
from holdfast.core import limits
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown
from holdfast.events import Tell, tell_nobody
from holdfast.upkeep.paging import records
from holdfast.upkeep.service import keep

_log = logging.getLogger("holdfast.alerts")

LOOK_MS = 5 * limits.SECOND_MS
ALERTS_MAX = 500
"""Raised at once: of more nobody learns anything new."""
_TELLING_MAX = 4
_ROUNDS_MAX = 5
_LAST_S = 3.0

Known = tuple[int, Alert]
"""An alert, and the version of its record that it is from."""


class Alerter:
    """A service, as upkeep's are, of one namespace."""

    name = "alerter"
    net_ms = LOOK_MS

    def __init__(self, engine: Engine, reader: Reader, teller: Teller) -> None:
        self._engine = engine
        self._reader = reader
        self._teller = teller
        self._by = secrets.token_hex(4)
        self._held: Settings | None = None
        self._last: dict[str, Known] = {}
        self._unsaved: dict[str, Known] = {}
        self._wrong: set[str] = set()
        self._room = asyncio.Semaphore(_TELLING_MAX)
        self._tellings: set[asyncio.Task[None]] = set()

    @property
    def unsaved(self) -> tuple[Alert, ...]:
        """Those that the store does not take, for now."""
        return tuple(alert for _, alert in self._unsaved.values())

    async def run(self, stop: asyncio.Event, tell: Tell = tell_nobody) -> None:
        """Until `stop` is set. What is still to be told then, others find in the store."""
        try:
            await keep(self, stop, tell)
            if self._tellings:
                await asyncio.wait(self._tellings, timeout=_LAST_S)
        finally:
            for task in self._tellings:
                task.cancel()
            await asyncio.gather(*self._tellings, return_exceptions=True)

    async def once(self) -> int | None:
        facts = await self._reader.read()
        if self._held is None or not facts.partial:
            self._held = await settings(self._engine)
        levels = Thresholds(self._held, self._mind)
        known = await self._load(facts)
        found = {key_of(each.rule.name, each.about): each for each in readings(facts, levels)}
        raised = sum(alert.is_raised for _, alert in known.values())
        for key in dict.fromkeys((*known, *found)):
            if key in self._strange:
                continue
            version, alert = known.get(key, (0, None))
            new = after(
                alert,
                found.get(key),
                now=facts.now,
                cool_down_ms=levels.cool_down_ms,
                by=self._by,
            )
            if new is not None:
                new = retried(new, facts.now)
            raised += _raised(new) - _raised(alert)
            if raised > ALERTS_MAX and not _raised(alert) and _raised(new):
                raised -= 1
                continue
            if new is not alert or key in self._unsaved:
                await self._change(key, version, alert, new)
        return None

    async def told(self) -> None:
        """When all that is being told has been, or could not be."""
        while self._tellings:
            await asyncio.wait(self._tellings)

    async def _load(self, facts: Facts) -> dict[str, Known]:
        """What the store has. While a part of it is away, what it had; and what it did not take,
        unless somebody else was faster."""
        known: dict[str, Known] = {}
        self._strange: set[str] = set()
        async for record in records(self._engine, KIND):
            alert = alert_of(record)
            if alert is None:
                # A later version's: it looks after it.
                self._strange.add(record.key)
            else:
                known[record.key] = (record.version, alert)
        if facts.partial:
            known = self._last | known
        self._last = dict(known)
        for key, (version, alert) in list(self._unsaved.items()):
            if known.get(key, (version, alert))[0] == version:
                known[key] = (version, alert)
            else:
                del self._unsaved[key]
        return known

    async def _change(self, key: str, version: int, old: Alert | None, new: Alert | None) -> None:
        """One conditional write. Who made it tells."""
        record = Record(kind=KIND, key=key, value=None, version=version)
        if new is not None:
            record = record_of(new, version)
        try:
            [saved] = await self._engine.save([record])
        except EngineClosed:
            raise
        except OutcomeUnknown:
            # The next look finds it or does it again; what is to be told is told then.
            return
        except EngineError as error:
            _log.debug("alert %s is not stored: %s", key, error)
            self._unsaved.pop(key, None)
            if new is not None:
                self._unsaved[key] = (version, new)
        else:
            self._unsaved.pop(key, None)
            if saved is not Saved.SAVED:
                return
            self._last.pop(key, None)
            if new is not None:
                self._last[key] = (version + 1, new)
        telling = None if new is None else new.telling
        if new is not None and telling is None and old is not None and old.telling is not None:
            _log.error("alert %s was not told everywhere: no more tries", key)
        if new is not None and telling is not None and telling != (old and old.telling):
            task = asyncio.create_task(self._tell(new))
            self._tellings.add(task)
            task.add_done_callback(self._tellings.discard)

    async def _tell(self, alert: Alert) -> None:
        assert alert.telling is not None
        async with self._room:
            try:
                await self._teller.tell(alert, alert.telling)
                await self._done(alert)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is tried again)
                tries = alert.telling.tries
                _log.warning("alert %s could not be told everywhere: %s", alert.key, error)
                _log.debug("that was try %d", tries, exc_info=error)

    async def _done(self, alert: Alert) -> None:
        """It was told; what has changed meanwhile stays."""
        key, telling = alert.key, alert.telling
        assert telling is not None
        if key in self._unsaved:
            version, known = self._unsaved[key]
            if known.telling == telling:
                self._unsaved[key] = (version, replace(known, telling=None))
        for _ in range(_ROUNDS_MAX):
            page = await self._engine.load(KIND, after=key[:-1], limit=20)
            found = next((record for record in page if record.key == key), None)
            there = None if found is None else alert_of(found)
            if found is None or there is None or there.telling is None:
                return
            if (there.telling.what, there.telling.at) != (telling.what, telling.at):
                return
            quiet = replace(there, telling=None)
            if await self._engine.save([record_of(quiet, found.version)]) == [Saved.SAVED]:
                self._last[key] = (found.version + 1, quiet)
                return

    def _mind(self, wrong: str) -> None:
        """A setting that cannot be read, told once."""
        if wrong not in self._wrong and len(self._wrong) < ALERTS_MAX:
            self._wrong.add(wrong)
            _log.warning("the default holds instead: %s", wrong)


def _raised(alert: Alert | None) -> bool:
    return alert is not None and alert.is_raised
