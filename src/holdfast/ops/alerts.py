"""Alerts as stored records and as views. `holdfast.alerts` evaluates the rules and notifies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.core import bounds
from holdfast.core.bounds import Count, Instant
from holdfast.engines.base import Engine
from holdfast.notation.durations import show_at
from holdfast.ops.records import RecordKind, check_same
from holdfast.ops.views import at_of

ALERT_KIND: Final = "alert"
SEEN_MS: Final = 30 * bounds.SECOND_MS
"""The interval at which the record of a raised alert is refreshed."""
STALE_MS: Final = 3 * SEEN_MS
"""A raised alert that was not refreshed for this long may be over: no server checks it."""

Severity = Literal["warn", "critical"]
Unit = Literal["jobs", "ms", "bytes", "records", "messages"]
NoticeKind = Literal["raised", "ended"]

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


class PendingNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A notice that still has to be delivered. `tries` counts the attempts, the last of which began
    at `tried_at`. `first` is when the alert was raised, if that notice is pending too.
    """

    what: NoticeKind
    at: Instant
    tried_at: Instant
    tries: Annotated[int, Meta(ge=1, le=100)] = 1
    first: Instant | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one alert. `notified` is true once it was decided to send a notice of this
    alert, and `notified_at` is the time of the last such decision. `by` is the server that checked
    the alert last.
    """

    rule: str
    about: str
    severity: Severity
    unit: Unit
    value: Count
    threshold: Count
    text: str
    raised_at: Instant
    seen_at: Instant
    queue: str = ""
    ended_at: Instant | None = None
    notified_at: Instant | None = msgspec.field(default=None, name="told_at")
    notified: bool = msgspec.field(default=False, name="told")
    by: str = ""
    pending: PendingNotice | None = msgspec.field(default=None, name="telling")

    @property
    def is_raised(self) -> bool:
        return self.ended_at is None

    @property
    def key(self) -> str:
        return alert_key(self.rule, self.about)


def _check_stored(key: str, alert: Alert) -> None:
    check_same("rule and subject", alert.key, key)


ALERTS = RecordKind(ALERT_KIND, Alert, check=_check_stored)

StoredAlert = tuple[Alert, int]
"""An alert, and the time since its record was saved, in milliseconds."""


async def read_alerts(engine: Engine) -> list[StoredAlert]:
    """All readable alerts, ended ones too, in the order of `sort_alerts`."""
    return sort_alerts(
        [
            (stored.value, stored.age_ms)
            async for stored in ALERTS.read_all(engine)
            if stored.value is not None
        ]
    )


def sort_alerts(alerts: list[StoredAlert]) -> list[StoredAlert]:
    """Raised alerts first, critical ones before the others; then the latest first."""

    def place(stored: StoredAlert) -> tuple[bool, bool, int, str]:
        alert = stored[0]
        at = alert.raised_at if alert.ended_at is None else alert.ended_at
        return not alert.is_raised, alert.severity != "critical", -at, alert.key

    return sorted(alerts, key=place)


def alert_key(rule: str, about: str) -> str:
    """The key of an alert's record. Queue names contain only safe characters; partition names may
    not.
    """
    return f"{rule}/{_UNPRINTABLE.sub('_', about)[:120]}"


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and `threshold` are in `unit`. For a raised alert they are `seen_ago` seconds old. It
    is `stale` if no server checks it any more."""

    rule: str
    severity: Severity
    state: Literal["raised", "ended"]
    about: str
    queue: str | None
    value: float
    threshold: float
    unit: Literal["jobs", "bytes", "seconds", "records", "messages"]
    text: str
    raised_at: str
    ended_at: str | None
    seen_ago: float
    stale: bool


def alert_view(stored: StoredAlert) -> AlertView:
    """An alert as people read it."""
    alert, age_ms = stored
    return AlertView(
        rule=alert.rule,
        severity=alert.severity,
        state="raised" if alert.is_raised else "ended",
        about=alert.about,
        queue=alert.queue or None,
        value=shown_value(alert.value, alert.unit),
        threshold=shown_value(alert.threshold, alert.unit),
        unit="seconds" if alert.unit == "ms" else alert.unit,
        text=alert.text,
        raised_at=show_at(alert.raised_at),
        ended_at=at_of(alert.ended_at),
        seen_ago=age_ms / 1000,
        stale=alert.is_raised and age_ms > STALE_MS,
    )


def alert_views(alerts: Sequence[StoredAlert]) -> tuple[AlertView, ...]:
    """Alerts as people read them, in the given order."""
    return tuple(alert_view(each) for each in alerts)


def shown_value(value: int, unit: Unit) -> float:
    """Milliseconds as seconds; other units as they are."""
    return value / 1000 if unit == "ms" else value
