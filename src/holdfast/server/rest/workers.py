"""Workers over REST: list them, send orders, compute how many are needed, and open or close circuit
breakers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import bounds
from holdfast.core import breaker as rules
from holdfast.core.breaker import BreakerState
from holdfast.core.scaling import Goal
from holdfast.errors import NotFound, UsageError
from holdfast.notation.durations import to_ms
from holdfast.notation.job import Name, QueueName, Seconds
from holdfast.ops.breakers import (
    BreakerChange,
    BreakerView,
    breaker_key,
    breaker_view,
    change_breakers,
    read_breakers,
)
from holdfast.ops.doctor import examine
from holdfast.ops.scaling import ScalingsView, read_scaling, scalings_view
from holdfast.ops.workers import Ordered, OrderName, WorkerDetails, Workers, worker_details
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation

_WorkerCount = Annotated[int, Meta(ge=0, le=bounds.SLOTS_MAX)]


class OrderBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An order to these `workers`, or to `all`. stop: finish running jobs within `grace`, or else
    the worker's own grace period, release the others, and exit; a `grace` of 0 releases them at
    once. drain: finish running jobs, however long that takes, and exit. cordon: lease no more jobs,
    even after a restart. uncordon: lease jobs again."""

    order: OrderName
    workers: Annotated[list[Name], Meta(min_length=1, max_length=bounds.BATCH_MAX)] | None = None
    all: bool = False
    grace: Seconds | None = None


class WorkerList(msgspec.Struct, frozen=True):
    """All workers, by name."""

    workers: list[WorkerDetails]


@operation("GET", "/v1/workers", needs=Scope.OBSERVE)
async def list_workers(call: ApiCall) -> WorkerList:
    """List workers and their health."""
    return WorkerList([worker_details(view) for view in await Workers(call.engine).all()])


@operation("GET", "/v1/workers/{name}", needs=Scope.OBSERVE)
async def show_worker(call: ApiCall, name: Name) -> WorkerDetails:
    """Show a worker and its health."""
    view = await Workers(call.engine).get(name)
    if view is None:
        raise _unknown_workers([name])
    return worker_details(view)


@operation("POST", "/v1/workers/orders", needs=Scope.OPERATE, repeatable=True)
async def order_workers(call: ApiCall, body: OrderBody) -> Ordered:
    """Send an order to workers. They receive it within seconds."""
    if (body.workers is not None) == body.all:
        raise UsageError("give either the names of workers, or all: true")
    workers = Workers(call.engine)
    ordered, missing = await workers.order(
        body.order, body.workers, grace=body.grace, by=call.caller.name
    )
    if missing and not ordered:
        raise _unknown_workers(missing)
    return Ordered(workers=ordered, missing=missing)


class ScalingQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs should start within `target_wait`. A worker runs `slots` jobs at the same time; the
    default is taken from the current workers. The answer is between `min` and `max` workers.
    """

    queue: QueueName | None = None
    target_wait: Seconds = 30
    slots: Annotated[int, Meta(ge=1, le=bounds.SLOTS_MAX)] | None = None
    workers_min: _WorkerCount = msgspec.field(default=0, name="min")
    workers_max: _WorkerCount = msgspec.field(default=1_000, name="max")


@operation("GET", "/v1/scaling", needs=(Scope.CONSUME, Scope.OBSERVE))
async def show_scaling(call: ApiCall, query: ScalingQuery) -> ScalingsView:
    """Compute how many workers keep waiting times short: for one queue, or for each and for all.

    KEDA's metrics-api scaler reads it with `valueLocation: workers` and `targetValue: "1"`.
    """
    goal = Goal(
        wait_ms=to_ms("target_wait", query.target_wait, UsageError),
        workers_min=query.workers_min,
        workers_max=query.workers_max,
    )
    if not 1 <= goal.wait_ms <= bounds.DELAY_MS_MAX:
        raise UsageError(f"target_wait {query.target_wait}: expected a duration such as 30s")
    if goal.workers_min > goal.workers_max:
        raise UsageError(f"min {goal.workers_min} is greater than max {goal.workers_max}")
    now = (await examine(call.engine)).now
    activity = None if call.engine.traits.inspect else call.app.telemetry.activity
    found = await read_scaling(
        call.engine, query.queue, goal, now=now, worker_slots=query.slots, activity=activity
    )
    return scalings_view(found)


class BreakerList(msgspec.Struct, frozen=True):
    """Breakers of tasks and of failing hosts, by name."""

    breakers: list[BreakerView]


class BreakerSet(msgspec.Struct, frozen=True):
    """The new state. A closed breaker of a host is no longer listed."""

    name: str
    state: BreakerState


@operation("GET", "/v1/breakers", needs=Scope.OBSERVE)
async def list_breakers(call: ApiCall) -> BreakerList:
    """List the breakers of tasks and of failing hosts."""
    known = await read_breakers(call.engine)
    return BreakerList([breaker_view(key, each) for key, each in known.items()])


@operation("GET", "/v1/breakers/{name}", needs=Scope.OBSERVE)
async def show_breaker(call: ApiCall, name: Name) -> BreakerView:
    """Show a breaker, named task:NAME or host:NAME:PORT."""
    known = await read_breakers(call.engine)
    key = breaker_key(name, known)
    return breaker_view(key, known[key])


@operation("POST", "/v1/breakers/{name}/open", needs=Scope.OPERATE, repeatable=True)
async def open_breaker(call: ApiCall, name: Name) -> BreakerSet:
    """Open a breaker: its jobs do not start until an operator closes it."""
    by = call.caller.name
    return await _change_breaker(
        call, name, lambda record, _: rules.opened_by(record, by), BreakerState.OPEN
    )


@operation("POST", "/v1/breakers/{name}/close", needs=Scope.OPERATE, repeatable=True)
async def close_breaker(call: ApiCall, name: Name) -> BreakerSet:
    """Close a breaker. Its failures are counted from zero again."""
    return await _change_breaker(
        call, name, lambda record, _: rules.closed(record), BreakerState.CLOSED
    )


OPERATIONS: tuple[Operation, ...] = (
    list_workers,
    show_worker,
    order_workers,
    show_scaling,
    list_breakers,
    show_breaker,
    open_breaker,
    close_breaker,
)


def _unknown_workers(names: list[str] | tuple[str, ...]) -> NotFound:
    named = ", ".join(names)[:200]
    return NotFound(f"unknown worker {named}: see GET /v1/workers")


async def _change_breaker(
    call: ApiCall, name: str, change: BreakerChange, state: BreakerState
) -> BreakerSet:
    [key] = await change_breakers(call.engine, [name], change)
    return BreakerSet(key, state)
