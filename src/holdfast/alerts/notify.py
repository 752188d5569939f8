"""Sends notices of alerts: a JSON line in the log, an event in the live feed, and a webhook
request.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from holdfast.alerts.rules import span
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.notation.durations import show_at
from holdfast.ops.alerts import Alert, PendingNotice, Severity, shown_value
from holdfast.telemetry.event_log import FeedEvent, FeedEventKind, append_events

_log = logging.getLogger("holdfast.alerts")

_LEVELS = {"warn": logging.WARNING, "critical": logging.ERROR}
_LOGGED_MAX = 10_000


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a notice. `id` is the same in repeated deliveries; `value` and `threshold` are
    jobs, bytes, seconds or records, as `unit` says. After the end, `value` is the last that was too
    high.
    """

    event: FeedEventKind
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
"""Sends a notice to the webhook; raises if it was not accepted."""


class Notifier:
    """Notifies for one namespace; `deliver` is the webhook, if there is one."""

    def __init__(self, engine: Engine, namespace: str, deliver: Deliver | None = None) -> None:
        self._engine = engine
        self._namespace = namespace
        self._deliver = deliver
        self._logged: dict[str, None] = {}

    async def notify(self, alert: Alert, pending: PendingNotice) -> None:
        """Notify everywhere. Repeating it repeats only the webhook request, with the same id."""
        notice = notice_of(alert, pending, self._namespace)
        self._log_once(notice, alert, pending)
        await self._append_event(notice, alert, pending)
        if self._deliver is not None:
            if pending.first is not None:
                raised = replace(pending, what="raised", at=pending.first)
                await self._deliver(notice_of(alert, raised, self._namespace))
            await self._deliver(notice)

    def _log_once(self, notice: Notice, alert: Alert, pending: PendingNotice) -> None:
        if notice.id in self._logged:
            return
        self._logged[notice.id] = None
        if len(self._logged) > _LOGGED_MAX:
            self._logged.pop(next(iter(self._logged)))
        level = _LEVELS[alert.severity] if pending.what == "raised" else logging.INFO
        _log.log(level, "%s", msgspec.json.encode(notice).decode())

    async def _append_event(self, notice: Notice, alert: Alert, pending: PendingNotice) -> None:
        event = FeedEvent(
            kind=notice.event,
            queue=alert.queue,
            name=alert.rule if alert.queue else f"{alert.rule} {alert.about}",
            reason=alert.severity,
            text=notice.text,
        )
        digest = hashlib.sha256(alert.key.encode()).hexdigest()[:12]
        try:
            await append_events(self._engine, pending.at, f"alert-{digest}", event)
        except EngineError as error:
            # The alert may be about the store itself; the webhook does not need the store.
            _log.debug("alert %s is not in the live feed: %s", alert.key, error)


def notice_of(alert: Alert, pending: PendingNotice, namespace: str) -> Notice:
    """The notice of a raise or an end."""
    ended = pending.what == "ended"
    return Notice(
        event=FeedEventKind.ALERT_ENDED if ended else FeedEventKind.ALERT_RAISED,
        id=f"{alert.key}/{pending.at}/{pending.what}",
        namespace=namespace,
        rule=alert.rule,
        severity=alert.severity,
        about=alert.about,
        queue=alert.queue,
        value=shown_value(alert.value, alert.unit),
        threshold=shown_value(alert.threshold, alert.unit),
        unit="seconds" if alert.unit == "ms" else alert.unit,
        text=_end_text(alert, pending.at) if ended else alert.text,
        raised_at=show_at(alert.raised_at),
        ended_at=show_at(pending.at) if ended else None,
    )


def _end_text(alert: Alert, at: int) -> str:
    """The text of an end; the text of the raise would read as if it still held."""
    whose = f"queue {alert.queue}" if alert.queue else alert.about
    return f"{alert.rule} of {whose} has ended, {span(at - alert.raised_at)} after it was raised"
