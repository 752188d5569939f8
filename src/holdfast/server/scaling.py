"""How many workers would keep the waiting short: for people, and for autoscalers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.checkup import examine
from holdfast.core import limits
from holdfast.core.scaling import Goal
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.scaling import scaling_of
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import QueueName, Seconds
from holdfast.views.scaling import ScalingsView, scalings_view

_Number = Annotated[int, Meta(ge=0, le=limits.SLOTS_MAX)]


class ScalingQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs should start within `target_wait`; a worker runs `slots` at once, as those that are
    there unless it is said; never fewer workers than `min`, never more than `max`."""

    queue: QueueName | None = None
    target_wait: Seconds = 30
    slots: Annotated[int, Meta(ge=1, le=limits.SLOTS_MAX)] | None = None
    workers_min: _Number = msgspec.field(default=0, name="min")
    workers_max: _Number = msgspec.field(default=1_000, name="max")


@operation("GET", "/v1/scaling", needs=Scope.CONSUME)
async def show_scaling(call: Call, query: ScalingQuery) -> ScalingsView:
    """How many workers would keep the waiting short: of a queue, or of each by itself and of all.

    KEDA's metrics-api scaler reads it with `valueLocation: workers` and `targetValue: "1"`.
    """
    goal = Goal(
        wait_ms=to_ms("target_wait", query.target_wait, UsageError),
        workers_min=query.workers_min,
        workers_max=query.workers_max,
    )
    if not 1 <= goal.wait_ms <= limits.DELAY_MS_MAX:
        raise UsageError(f"target_wait {query.target_wait} is no time to wait: give 30s")
    if goal.workers_min > goal.workers_max:
        raise UsageError(f"min {goal.workers_min} is over max {goal.workers_max}")
    now = (await examine(call.engine)).now
    found = await scaling_of(call.engine, query.queue, goal, now=now, worker_slots=query.slots)
    return scalings_view(found)


OPERATIONS: tuple[Operation, ...] = (show_scaling,)
