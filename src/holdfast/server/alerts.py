"""The alerts of a namespace: what is wrong now, and what was lately."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.alerts import alerts_of, in_order
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import QueueName
from holdfast.views.alerts import AlertView, alert_views


class AlertsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `state` those that have ended within the last day are there too."""

    state: Literal["raised", "ended"] | None = None
    severity: Literal["warn", "critical"] | None = None
    queue: QueueName | None = None


class AlertList(msgspec.Struct, frozen=True):
    """Raised ones first, and of them the critical ones; then the latest first."""

    alerts: list[AlertView]


@operation("GET", "/v1/alerts", needs=Scope.OPERATE)
async def list_alerts(call: Call, query: AlertsQuery) -> AlertList:
    """What is wrong now, by the rules of the alerts, and what was within the last day."""
    found = {alert.key: (alert, age_ms) for alert, age_ms in await alerts_of(call.engine)}
    alerter = call.server.alerters.get(call.caller.namespace)
    for alert in () if alerter is None else alerter.unsaved:
        # What the store does not take is known here alone.
        if not call.caller.prefix or (alert.queue and call.caller.owns(alert.queue)):
            found[alert.key] = (alert, 0)
    views = alert_views(in_order(list(found.values())))
    return AlertList(
        [
            view
            for view in views
            if query.state in (None, view.state)
            and query.severity in (None, view.severity)
            and query.queue in (None, view.queue)
        ]
    )


OPERATIONS: tuple[Operation, ...] = (list_alerts,)
