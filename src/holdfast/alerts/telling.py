"""Tells of an alert: a line of JSON in the log, an event of the live feed, and a webhook."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from holdfast.alerts.book import Alert, Telling
from holdfast.alerts.judging import span
from holdfast.alerts.rules import Severity, Unit
from holdfast.durations import show_at
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.telemetry.notable import Kind, Notable, note

_log = logging.getLogger("holdfast.alerts")

_REMEMBERED = 10_000


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told. `id` is the same however often it is told; `value` and `threshold` are jobs,
    bytes or seconds, as `unit` says. Of one that has ended `value` is the last that was too much.
    """

    event: Kind
    id: str
    namespace: str
    rule: str
    severity: Severity
    about: str
    queue: str = ""
    value: float
    threshold: float
    unit: str
    text: str
    raised_at: str
    ended_at: str | None = None


Deliver = Callable[[Notice], Awaitable[None]]
"""Raises when nobody took it."""


class Teller:
    """Of one namespace. `deliver` is the webhook's."""

    def __init__(self, engine: Engine, namespace: str, deliver: Deliver | None = None) -> None:
        self._engine = engine
        self._namespace = namespace
        self._deliver = deliver
        self._logged: dict[str, None] = {}

    async def tell(self, alert: Alert, telling: Telling) -> None:
        """Everywhere; repeating it repeats nothing but the webhook, which has the same id."""
        notice = notice_of(alert, telling, self._namespace)
        if notice.id not in self._logged:
            self._logged[notice.id] = None
            if len(self._logged) > _REMEMBERED:
                self._logged.pop(next(iter(self._logged)))
            bad = telling.what == "raised"
            level = logging.INFO if not bad else _LEVELS[alert.severity]
            _log.log(level, "%s", msgspec.json.encode(notice).decode())
        event = Notable(
            kind=notice.event,
            queue=alert.queue,
            name=alert.rule if alert.queue else f"{alert.rule} {alert.about}",
            reason=alert.severity,
            text=notice.text,
        )
        digest = hashlib.sha256(alert.key.encode()).hexdigest()[:12]
        try:
            await note(self._engine, telling.at, f"alert-{digest}", event)
        except EngineError as error:
            # Of all times now: who can be told without the store is told.
            _log.debug("alert %s is not in the live feed: %s", alert.key, error)
        if self._deliver is not None:
            if telling.first is not None:
                beginning = replace(telling, what="raised", at=telling.first)
                await self._deliver(notice_of(alert, beginning, self._namespace))
            await self._deliver(notice)


_LEVELS = {"warn": logging.WARNING, "critical": logging.ERROR}


def notice_of(alert: Alert, telling: Telling, namespace: str) -> Notice:
    ended = telling.what == "ended"
    return Notice(
        event=Kind.ALERT_ENDED if ended else Kind.ALERT_RAISED,
        id=f"{alert.key}/{telling.at}/{telling.what}",
        namespace=namespace,
        rule=alert.rule,
        severity=alert.severity,
        about=alert.about,
        queue=alert.queue,
        value=shown(alert.value, alert.unit),
        threshold=shown(alert.threshold, alert.unit),
        unit="seconds" if alert.unit == "ms" else alert.unit,
        text=_end_of(alert, telling.at) if ended else alert.text,
        raised_at=show_at(alert.raised_at),
        ended_at=show_at(telling.at) if ended else None,
    )


def _end_of(alert: Alert, at: int) -> str:
    """What was wrong is so no longer, and must not be read as if it were."""
    whose = f"queue {alert.queue}" if alert.queue else alert.about
    return f"{alert.rule} of {whose} has ended, {span(at - alert.raised_at)} after it was raised"


def shown(value: int, unit: Unit) -> float:
    """People speak seconds."""
    return value / 1000 if unit == "ms" else value
