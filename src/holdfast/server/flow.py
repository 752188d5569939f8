"""The limits of a queue and who holds their slots; its tenants and what they get."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import limits
from holdfast.core.flow import Limit
from holdfast.errors import NotFound, UsageError
from holdfast.limiting import remove_limit, set_limit
from holdfast.rates import to_rate
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.queues import there
from holdfast.server.shapes import QueueName, Rate, TaskName
from holdfast.views.queues import LimitsView, TenantsView


class LimitBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many jobs are leased at a time, how many start; of one task, if it is named. With a
    `key` template each key has its own bound."""

    concurrency: Annotated[int, Meta(ge=1, le=limits.SLOTS_MAX)] | None = None
    rate: Rate | None = None
    key: Annotated[
        str, Meta(max_length=limits.NAME_BYTES_MAX, examples=["{tenant}", "{tenant}:{region}"])
    ] = ""
    task: TaskName | None = None


class Limits(msgspec.Struct, frozen=True):
    """All limits of the queue."""

    limits: tuple[Limit, ...]


@operation("GET", "/v1/queues/{queue}/limits", needs=Scope.OPERATE)
async def show_limits(call: Call, queue: QueueName) -> LimitsView:
    """The limits of a queue, and who holds their slots."""
    view = await there(call.engine, queue)
    flow = await call.engine.flow(queue, limit=limits.PAGE_MAX)
    return LimitsView(limits=view.queue.limits, slots=flow.slots)


@operation("PUT", "/v1/queues/{queue}/limits/{name}", needs=Scope.OPERATE)
async def limit_queue(call: Call, queue: QueueName, name: TaskName, body: LimitBody) -> Limits:
    """Bound the jobs of a queue. It counts at once and for all workers; queues whose limits have
    the same name share its slots."""
    if body.concurrency is None and body.rate is None:
        raise UsageError("a limit bounds something: give concurrency, rate or both")
    wanted = Limit(
        name=name,
        task=body.task,
        key=body.key,
        concurrency=body.concurrency,
        rate=None if body.rate is None else to_rate("rate", body.rate),
    )
    return Limits((await set_limit(call.engine, queue, wanted)).limits)


@operation("DELETE", "/v1/queues/{queue}/limits/{name}", needs=Scope.OPERATE)
async def unlimit_queue(call: Call, queue: QueueName, name: TaskName) -> Limits:
    """Take a limit of a queue away."""
    view = await there(call.engine, queue)
    if all(each.name != name for each in view.queue.limits):
        known = ", ".join(each.name for each in view.queue.limits) or "none"
        raise NotFound(f"queue {queue} has no limit {name[:80]!r}; it has {known}")
    return Limits((await remove_limit(call.engine, queue, name)).limits)


@operation("GET", "/v1/queues/{queue}/tenants", needs=Scope.OPERATE)
async def show_tenants(call: Call, queue: QueueName) -> TenantsView:
    """The tenants of a queue, and what they get; none while its fairness is off."""
    await there(call.engine, queue)
    flow = await call.engine.flow(queue, limit=limits.PAGE_MAX)
    return TenantsView(tenants=flow.tenants)


OPERATIONS: tuple[Operation, ...] = (show_limits, limit_queue, unlimit_queue, show_tenants)
