"""The condition of a server and its store, over REST: health probes, status, doctor, alerts and
cleanup."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast import __version__
from holdfast.core import bounds
from holdfast.errors import EngineUnavailable
from holdfast.notation.job import QueueName
from holdfast.ops.alerts import AlertView, alert_views, read_alerts, sort_alerts
from holdfast.ops.doctor import CheckupView, check_store, checkup_view
from holdfast.ops.jobs.bulk import Cleaned, count_jobs, delete_jobs, old_jobs
from holdfast.ops.status import StatusView, read_status, status_view
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.http.problems import Stopping
from holdfast.server.rest.shapes import Many, StateWords
from holdfast.server.state import PartitionState, partitions_of


class ServerAlive(msgspec.Struct, frozen=True, kw_only=True):
    """The process is running."""

    status: Literal["alive"] = "alive"
    version: str = __version__


class ServerReady(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions` is null if the store has none. A server is ready while any partition serves."""

    status: Literal["ready"] = "ready"
    partitions: list[PartitionState] | None = None


class CleanupBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Delete jobs that ended at least `days` ago, by default as the setting `cleanup-days` says, at
    most `limit` in one call: those in these `states`, or done and cancelled ones. `dead` adds dead
    letters. With `dry_run` they are only counted.
    """

    days: Annotated[float, Meta(ge=0, le=bounds.RETENTION_MS_MAX // bounds.DAY_MS)] | None = None
    states: StateWords | None = None
    dead: bool = False
    queue: QueueName | None = None
    limit: Many = bounds.COUNT_EXACT_MAX
    dry_run: bool = False


class NotReady(EngineUnavailable):
    """The store does not answer: see the server's log, or use another server."""

    code = "not_ready"

    def __init__(self, code: str, partitions: list[PartitionState] | None) -> None:
        super().__init__("the store does not answer: see the server's log")
        self.detail: dict[str, str] = {"code": code}
        if partitions is not None:
            self.detail["partitions"] = msgspec.to_builtins(partitions)


@operation("GET", "/healthz", needs=None)
async def healthz(call: ApiCall) -> ServerAlive:  # noqa: ARG001 (all handlers take it)
    """Liveness probe: check that the process answers, without reading the store. Restart the
    process if it does not.
    """
    return ServerAlive()


@operation("GET", "/readyz", needs=None)
async def readyz(call: ApiCall) -> ServerReady:
    """Readiness probe: check that the store answers and the server is not stopping. Partitions that
    are shut out are listed with the seconds since then.
    """
    server = call.server
    if server.stopping.is_set():
        raise Stopping("the server is stopping")
    # The server's own application: a probe has no scope to read queues.
    trouble = await server.readiness.trouble(server.app)
    partitions = partitions_of(server.app)
    if trouble is not None:
        raise NotReady(trouble.code, partitions)
    return ServerReady(partitions=partitions)


@operation("GET", "/v1/status", needs=Scope.OBSERVE)
async def show_status(call: ApiCall) -> StatusView:
    """Show the status of all queues, workers, breakers and gates, of running redrives and raised
    alerts."""
    return status_view(await read_status(call.engine))


@operation("GET", "/v1/doctor", needs=Scope.OBSERVE)
async def show_checkup(call: ApiCall) -> CheckupView:
    """Show possible problems and their remedies. Does not check the store for damage: for that, run
    `holdfast doctor --deep` on the machine of the store.
    """
    broker_of = None if call.caller.prefix else call.app.engine
    return checkup_view(await check_store(call.engine, broker_of=broker_of))


@operation("POST", "/v1/cleanup", needs=Scope.OPERATE)
async def clean_up(call: ApiCall, body: CleanupBody) -> Cleaned:
    """Delete old finished jobs. Repeat the request while `more` is true."""
    old = await old_jobs(call.engine, body.days, body.states, body.queue, dead=body.dead)
    found = await count_jobs(call.engine, old, most=body.limit)
    deleted = 0
    if not body.dry_run:
        deleted = await delete_jobs(call.engine, old, most=body.limit)
    return Cleaned(found=found.number, more=found.more, deleted=deleted)


class AlertsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `state`, raised alerts and those that ended within the last day."""

    state: Literal["raised", "ended"] | None = None
    severity: Literal["warn", "critical"] | None = None
    queue: QueueName | None = None


class AlertList(msgspec.Struct, frozen=True):
    """Alerts, raised before ended, critical before warning, then the latest first."""

    alerts: list[AlertView]


@operation("GET", "/v1/alerts", needs=Scope.OBSERVE)
async def list_alerts(call: ApiCall, query: AlertsQuery) -> AlertList:
    """List alerts: those raised now, and those that ended within the last day."""
    found = {alert.key: (alert, age_ms) for alert, age_ms in await read_alerts(call.engine)}
    alerter = call.server.alerters.get(call.caller.namespace)
    for alert in () if alerter is None else alerter.unsaved:
        # Alerts that could not be stored are known only to this process.
        if not call.caller.prefix or (alert.queue and call.caller.owns(alert.queue)):
            found[alert.key] = (alert, 0)
    views = alert_views(sort_alerts(list(found.values())))
    return AlertList(
        [
            view
            for view in views
            if query.state in (None, view.state)
            and query.severity in (None, view.severity)
            and query.queue in (None, view.queue)
        ]
    )


OPERATIONS: tuple[Operation, ...] = (
    healthz,
    readyz,
    show_status,
    show_checkup,
    clean_up,
    list_alerts,
)
