"""ALERT: rules over what the store says, raised and ended once for all servers, and told.

Nothing here is needed for a job to run. Read from the store, so that workers that are attached
directly to it are seen too.
"""

from __future__ import annotations

from holdfast.alerts.alerter import Alerter
from holdfast.alerts.book import KIND, STALE_MS, Alert, alert_of
from holdfast.alerts.facts import Reader
from holdfast.alerts.rules import RULES, Rule
from holdfast.alerts.telling import Notice, Teller
from holdfast.engines.base import Engine
from holdfast.upkeep.paging import records

__all__ = [
    "KIND",
    "RULES",
    "STALE_MS",
    "Alert",
    "Alerter",
    "Notice",
    "Reader",
    "Rule",
    "Seen",
    "Teller",
    "alerts_of",
    "in_order",
]

Seen = tuple[Alert, int]
"""An alert, and how long ago it was last written down, in milliseconds."""


async def alerts_of(engine: Engine) -> list[Seen]:
    """All that the store knows, those that have ended too."""
    found = [(alert_of(record), record.age_ms) async for record in records(engine, KIND)]
    return in_order([(alert, age_ms) for alert, age_ms in found if alert is not None])


def in_order(alerts: list[Seen]) -> list[Seen]:
    """Raised ones first, and of them the critical ones; then the latest first."""

    def place(seen: Seen) -> tuple[bool, bool, int, str]:
        alert = seen[0]
        at = alert.raised_at if alert.ended_at is None else alert.ended_at
        return not alert.is_raised, alert.severity != "critical", -at, alert.key

    return sorted(alerts, key=place)
