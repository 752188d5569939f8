"""The loop that evaluates alert rules every few seconds. Of many servers, one notifies.

Any number of servers may run it. A step reads, evaluates and writes on the version that was read;
the process whose write succeeds notifies. An alert that cannot be written, because its part of the
store is unreachable or full, is kept in memory and notified from here: better twice than never.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from msgspec.structs import replace

from holdfast.alerts.facts import AlertFacts, FactReader
from holdfast.alerts.notify import Notifier
from holdfast.alerts.rules import Thresholds, measure, next_alert, with_retry
from holdfast.config import Settings
from holdfast.core import bounds
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown
from holdfast.events import Tell, ignore_event
from holdfast.ops.alerts import ALERTS, Alert, alert_key
from holdfast.ops.service import run_service
from holdfast.ops.settings import read_settings

_log = logging.getLogger("holdfast.alerts")

LOOK_MS = 5 * bounds.SECOND_MS
ALERTS_MAX = 500
"""Alerts that are raised at the same time; more would tell nothing new."""
_NOTIFY_AT_ONCE = 4
_TRIES_MAX = 5
_LAST_S = 3.0

VersionedAlert = tuple[int, Alert]
"""The version of a record, and the alert in it."""


class Alerter:
    """A service, like those of upkeep, for one namespace."""

    name = "alerter"
    sleep_ms_max = LOOK_MS

    def __init__(self, engine: Engine, reader: FactReader, notifier: Notifier) -> None:
        self._engine = engine
        self._reader = reader
        self._notifier = notifier
        self._by = secrets.token_hex(4)
        self._settings: Settings | None = None
        self._last: dict[str, VersionedAlert] = {}
        self._unsaved: dict[str, VersionedAlert] = {}
        self._unreadable: set[str] = set()
        self._wrong_settings: set[str] = set()
        self._room = asyncio.Semaphore(_NOTIFY_AT_ONCE)
        self._notifications: set[asyncio.Task[None]] = set()

    @property
    def unsaved(self) -> tuple[Alert, ...]:
        """The alerts that the store does not accept at present."""
        return tuple(alert for _, alert in self._unsaved.values())

    async def run(self, stop: asyncio.Event, tell: Tell = ignore_event) -> None:
        """Run until `stop` is set. Other servers find notices that are pending then."""
        try:
            await run_service(self, stop, tell)
            if self._notifications:
                await asyncio.wait(self._notifications, timeout=_LAST_S)
        finally:
            for task in self._notifications:
                task.cancel()
            await asyncio.gather(*self._notifications, return_exceptions=True)

    async def once(self) -> int | None:
        """Evaluate every rule once."""
        facts = await self._reader.read()
        if self._settings is None or not facts.partial:
            self._settings = await read_settings(self._engine)
        levels = Thresholds(self._settings, self._warn_of_setting)
        known = await self._load(facts)
        measured = {alert_key(each.rule.name, each.about): each for each in measure(facts, levels)}
        raised = sum(alert.is_raised for _, alert in known.values())
        for key in dict.fromkeys((*known, *measured)):
            if key in self._unreadable:
                continue
            version, alert = known.get(key, (0, None))
            new = next_alert(
                alert,
                measured.get(key),
                now=facts.now,
                cool_down_ms=levels.cool_down_ms,
                by=self._by,
            )
            if new is not None:
                new = with_retry(new, facts.now)
            raised += _is_raised(new) - _is_raised(alert)
            if raised > ALERTS_MAX and not _is_raised(alert) and _is_raised(new):
                raised -= 1
                continue
            if new is not alert or key in self._unsaved:
                await self._change(key, version, alert, new)
        return None

    async def delivered(self) -> None:
        """Wait until every notice in progress was delivered or failed."""
        while self._notifications:
            await asyncio.wait(self._notifications)

    async def _load(self, facts: AlertFacts) -> dict[str, VersionedAlert]:
        """The stored alerts. While a part of the store is unreachable, also those it had; and the
        unsaved ones, unless another server wrote them since."""
        known: dict[str, VersionedAlert] = {}
        self._unreadable = set()
        async for stored in ALERTS.read_all(self._engine):
            if stored.value is None:
                # A later version wrote it, and its servers evaluate it.
                self._unreadable.add(stored.key)
            else:
                known[stored.key] = (stored.version, stored.value)
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
        """One conditional write. The process whose write succeeds notifies."""
        try:
            saved = await ALERTS.save(self._engine, key, new, version)
        except EngineClosed:
            raise
        except OutcomeUnknown:
            # The next step finds the alert or writes it again, and notifies then.
            return
        except EngineError as error:
            _log.debug("alert %s is not stored: %s", key, error)
            self._unsaved.pop(key, None)
            if new is not None:
                self._unsaved[key] = (version, new)
        else:
            self._unsaved.pop(key, None)
            if not saved:
                return
            self._last.pop(key, None)
            if new is not None:
                self._last[key] = (version + 1, new)
        if new is not None:
            self._notify_changes(old, new)

    def _notify_changes(self, old: Alert | None, new: Alert) -> None:
        before = None if old is None else old.pending
        if new.pending is None and before is not None:
            _log.error("alert %s was not delivered everywhere: no more tries", new.key)
        if new.pending is not None and new.pending != before:
            task = asyncio.create_task(self._notify(new))
            self._notifications.add(task)
            task.add_done_callback(self._notifications.discard)

    async def _notify(self, alert: Alert) -> None:
        assert alert.pending is not None
        async with self._room:
            try:
                await self._notifier.notify(alert, alert.pending)
                await self._clear_notice(alert)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is tried again)
                _log.warning("alert %s was not delivered everywhere: %s", alert.key, error)
                _log.debug("that was try %d", alert.pending.tries, exc_info=error)

    async def _clear_notice(self, alert: Alert) -> None:
        """Store that the notice was delivered; other changes since then stay."""
        key, notice = alert.key, alert.pending
        assert notice is not None
        if key in self._unsaved:
            version, known = self._unsaved[key]
            if known.pending == notice:
                self._unsaved[key] = (version, replace(known, pending=None))
        for _ in range(_TRIES_MAX):
            found = await ALERTS.read(self._engine, key)
            present = None if found is None else found.value
            if found is None or present is None or present.pending is None:
                return
            if (present.pending.what, present.pending.at) != (notice.what, notice.at):
                return
            cleared = replace(present, pending=None)
            if await ALERTS.save(self._engine, key, cleared, found.version):
                self._last[key] = (found.version + 1, cleared)
                return

    def _warn_of_setting(self, text: str) -> None:
        """Log once that a setting cannot be read."""
        if text not in self._wrong_settings and len(self._wrong_settings) < ALERTS_MAX:
            self._wrong_settings.add(text)
            _log.warning("the default is used instead: %s", text)


def _is_raised(alert: Alert | None) -> bool:
    return alert is not None and alert.is_raised
