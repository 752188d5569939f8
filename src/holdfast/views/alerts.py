"""An alert as people see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.alerts import STALE_MS, Seen
from holdfast.alerts.rules import Severity
from holdfast.alerts.telling import shown
from holdfast.durations import show_at


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and `threshold` are jobs, bytes or seconds, as `unit` says. While it is raised they
    are as they were `seen_ago` seconds ago. It is `stale` when no server looks any more."""

    rule: str
    severity: Severity
    state: Literal["raised", "ended"]
    about: str
    queue: str | None
    value: float
    threshold: float
    unit: Literal["jobs", "bytes", "seconds"]
    text: str
    raised_at: str
    ended_at: str | None
    seen_ago: float
    stale: bool


def alert_view(seen: Seen) -> AlertView:
    alert, age_ms = seen
    return AlertView(
        rule=alert.rule,
        severity=alert.severity,
        state="raised" if alert.is_raised else "ended",
        about=alert.about,
        queue=alert.queue or None,
        value=shown(alert.value, alert.unit),
        threshold=shown(alert.threshold, alert.unit),
        unit="seconds" if alert.unit == "ms" else alert.unit,
        text=alert.text,
        raised_at=show_at(alert.raised_at),
        ended_at=None if alert.ended_at is None else show_at(alert.ended_at),
        seen_ago=age_ms / 1000,
        stale=alert.is_raised and age_ms > STALE_MS,
    )


def alert_views(alerts: Sequence[Seen]) -> tuple[AlertView, ...]:
    return tuple(alert_view(each) for each in alerts)
