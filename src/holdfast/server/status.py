"""Everything at a glance, what could be wrong, and finished jobs that are old."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bulk import count, delete_all, old_jobs
from holdfast.checkup import check
from holdfast.core import limits
from holdfast.core.model import State
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Many, QueueName
from holdfast.standing import standing_of
from holdfast.views.dead import Cleaned
from holdfast.views.status import CheckupView, StatusView, checkup_view, status_view


class CleanupBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Those that ended at least so many `days` ago, at most `limit` in one call. With `dry_run`
    they are only counted."""

    days: Annotated[float, Meta(ge=0, le=limits.RETENTION_MS_MAX // limits.DAY_MS)]
    states: Annotated[list[State], Meta(min_length=1, max_length=len(State))] | None = None
    queue: QueueName | None = None
    limit: Many = limits.COUNT_EXACT_MAX
    dry_run: bool = False


@operation("GET", "/v1/status", needs=Scope.OPERATE)
async def show_status(call: Call) -> StatusView:
    """Every queue, worker and breaker, the redrives under way and the alerts that are raised."""
    return status_view(await standing_of(call.engine))


@operation("GET", "/v1/doctor", needs=Scope.OPERATE)
async def show_checkup(call: Call) -> CheckupView:
    """What could be wrong, and what helps. The store is not read for damage: that is the command
    line's, where the store is."""
    return checkup_view(await check(call.engine))


@operation("POST", "/v1/cleanup", needs=Scope.OPERATE)
async def clean_up(call: Call, body: CleanupBody) -> Cleaned:
    """Delete finished jobs that are old. While `more` is true, there are others: call it again."""
    old = old_jobs(body.days, tuple(body.states) if body.states else None, body.queue)
    found = await count(call.engine, old, most=body.limit)
    deleted = 0
    if not body.dry_run:
        deleted = await delete_all(call.engine, old, most=body.limit)
    return Cleaned(found=found.number, more=found.more, deleted=deleted)


OPERATIONS: tuple[Operation, ...] = (show_status, show_checkup, clean_up)
