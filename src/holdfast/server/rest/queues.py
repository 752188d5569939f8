"""Queues over REST, and distributions: upkeep moves jobs from many queues into one, taking turns
fairly.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core import bounds
from holdfast.core.fairness import Fairness
from holdfast.core.limits import Limit
from holdfast.core.model import Queue, QueueView
from holdfast.engines.base import Engine
from holdfast.errors import Exists, NotFound, UsageError
from holdfast.notation.durations import to_ms
from holdfast.notation.job import Attempts, Name, QueueName, Seconds, TaskName
from holdfast.notation.options import QueueOptions, changed_queue
from holdfast.notation.policies import to_rate
from holdfast.ops import queues as acts
from holdfast.ops.jobs.bulk import count_jobs, delete_jobs
from holdfast.ops.queues import (
    DEPTH_MAX,
    Cleared,
    Distribution,
    Distributions,
    Drained,
    Dropped,
    LimitsView,
    Pause,
    QueueDetails,
    TenantsView,
    queue_details,
    remove_limit,
    set_limit,
)
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.shapes import Many, Rate, StateWords

_Weight = Annotated[int, Meta(ge=1, le=bounds.WEIGHT_MAX)]


class QueueSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The settings of a queue. A field that is left out stays as it is; null removes a bound."""

    lease: Seconds | UnsetType = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_crashes: Annotated[int, Meta(ge=1, le=bounds.ATTEMPTS_MAX)] | UnsetType = UNSET
    backoff: (
        Annotated[str, Meta(max_length=300, examples=["exponential(2s, max=10m)"])] | UnsetType
    ) = UNSET
    order: Literal["tail", "keep"] | UnsetType = UNSET
    retention: Seconds | UnsetType = UNSET
    dead_retention: Seconds | UnsetType = UNSET
    dead_queue: QueueName | UnsetType | None = UNSET
    max_depth: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType | None = UNSET
    payload_max: Annotated[int, Meta(ge=1, le=bounds.PAYLOAD_MAX)] | UnsetType = UNSET
    accepting: bool | UnsetType = UNSET
    fairness: Fairness | UnsetType = UNSET
    weights: Annotated[dict[Name, _Weight], Meta(max_length=bounds.WEIGHTS_MAX)] | UnsetType = UNSET
    aging: Seconds | UnsetType | None = UNSET
    group_batch: Annotated[int, Meta(ge=1, le=bounds.GROUP_BATCH_MAX)] | UnsetType = UNSET
    expires: Seconds | UnsetType | None = UNSET

    def options(self) -> QueueOptions:
        """The settings that are given."""
        given: dict[str, Any] = {
            name: value
            for name in QueueSettings.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        options: QueueOptions = {**given}  # type: ignore[typeddict-item]
        return options


class NewQueue(QueueSettings, forbid_unknown_fields=True, kw_only=True):
    """A queue and its settings."""

    name: QueueName


class PauseBody(msgspec.Struct, forbid_unknown_fields=True):
    """`text` is the reason, shown by explain and status."""

    text: Annotated[str, Meta(max_length=1000)] = ""


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """`wait` is how long to wait until the queue is empty."""

    wait: Seconds = 0


class ClearBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs in these `states`, at most `limit` in one call. Leased jobs need `force`; their workers
    lose the leases. With `dry_run` the jobs are only counted.
    """

    states: StateWords | None = None
    force: bool = False
    limit: Many = bounds.COUNT_EXACT_MAX
    dry_run: bool = False


class DropQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `dry_run` nothing is deleted."""

    dry_run: bool = False


class QueueList(msgspec.Struct, frozen=True):
    """All queues, by name."""

    queues: list[QueueDetails]


class LimitBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`concurrency` bounds jobs leased at the same time, `rate` jobs leased per period, of the
    whole queue or of one `task`. With a `key` template each key has its own bound."""

    concurrency: Annotated[int, Meta(ge=1, le=bounds.SLOTS_MAX)] | None = None
    rate: Rate | None = None
    key: Annotated[str, Meta(max_length=bounds.NAME_BYTES_MAX, examples=["{tenant}:{region}"])] = ""
    task: TaskName | None = None


class QueueLimits(msgspec.Struct, frozen=True):
    """All limits of a queue."""

    limits: tuple[Limit, ...]


@operation("GET", "/v1/queues", needs=Scope.OBSERVE)
async def list_queues(call: ApiCall) -> QueueList:
    """List queues, with settings and counts."""
    return QueueList([queue_details(view) for view in await call.engine.queues()])


@operation("POST", "/v1/queues", needs=Scope.OPERATE, status=201)
async def create_queue(call: ApiCall, body: NewQueue) -> Queue:
    """Create a queue."""
    queue = changed_queue(Queue(name=body.name), body.options())
    if not await _declared(call, queue):
        raise Exists(f"queue {body.name} exists already: PATCH /v1/queues/{body.name} changes it")
    return queue


@operation("GET", "/v1/queues/{queue}", needs=Scope.OBSERVE)
async def show_queue(call: ApiCall, queue: QueueName) -> QueueDetails:
    """Show a queue, with settings and counts."""
    return queue_details(await _existing_queue(call.engine, queue, counts=True))


@operation("PATCH", "/v1/queues/{queue}", needs=Scope.OPERATE, repeatable=True)
async def update_queue(call: ApiCall, queue: QueueName, body: QueueSettings) -> Queue:
    """Change settings of a queue. Settings that are not given stay as they are."""
    options = body.options()
    if not options:
        raise UsageError("nothing to change: give lease, max_attempts, …")
    return await acts.update_queue(call.engine, queue, options)


@operation("POST", "/v1/queues/{queue}/pause", needs=Scope.OPERATE, repeatable=True)
async def pause_queue(call: ApiCall, queue: QueueName, body: PauseBody) -> Queue:
    """Pause a queue: stop leasing its jobs until it is resumed. Running jobs continue."""
    by = Pause(by=call.caller.name, text=body.text, at=wall_ms())
    return await acts.pause_queue(call.engine, queue, by)


@operation("POST", "/v1/queues/{queue}/resume", needs=Scope.OPERATE, repeatable=True)
async def resume_queue(call: ApiCall, queue: QueueName) -> Queue:
    """Resume a paused queue."""
    return await acts.resume_queue(call.engine, queue)


@operation("POST", "/v1/queues/{queue}/drain", needs=Scope.OPERATE, waits=True, repeatable=True)
async def drain_queue(call: ApiCall, queue: QueueName, body: DrainBody) -> Drained:
    """Drain a queue: accept no new jobs, and wait until the existing ones have ended. Set
    `accepting` with `PATCH` to open it again.
    """
    wait_ms = min(to_ms("wait", body.wait, UsageError), call.server.settings.wait_ms_max)
    await acts.update_queue(call.engine, queue, {"accepting": False})
    left = await acts.wait_until_empty(call.engine, queue, wait_ms)
    return Drained(queue=queue, accepting=False, left=left)


@operation("POST", "/v1/queues/{queue}/clear", needs=Scope.OPERATE)
async def clear_queue(call: ApiCall, queue: QueueName, body: ClearBody) -> Cleared:
    """Clear a queue: delete its waiting jobs, or those in the given states, oldest first. Repeat
    the request while `more` is true."""
    wanted = acts.jobs_to_clear(queue, body.states, force=body.force)
    await _existing_queue(call.engine, queue)
    found = await count_jobs(call.engine, wanted, most=body.limit)
    deleted = 0
    if not body.dry_run:
        deleted = await delete_jobs(call.engine, wanted, force=body.force, most=body.limit)
    return Cleared(queue=queue, found=found.number, more=found.more, deleted=deleted)


@operation("DELETE", "/v1/queues/{queue}", needs=Scope.ADMIN)
async def delete_queue(call: ApiCall, queue: QueueName, query: DropQuery) -> Dropped:
    """Delete a queue and all its jobs, including running ones."""
    view = await _existing_queue(call.engine, queue, counts=True)
    if not query.dry_run:
        await acts.drop_queue(call.engine, queue)
    return Dropped(queue=queue, jobs=acts.count_all(view), deleted=not query.dry_run)


@operation("GET", "/v1/queues/{queue}/limits", needs=Scope.OBSERVE)
async def show_limits(call: ApiCall, queue: QueueName) -> LimitsView:
    """Show the limits of a queue, and the jobs that hold their slots."""
    view = await _existing_queue(call.engine, queue)
    flow = await call.engine.flow(queue, limit=bounds.PAGE_MAX)
    return LimitsView(limits=view.queue.limits, slots=flow.slots)


@operation("PUT", "/v1/queues/{queue}/limits/{name}", needs=Scope.OPERATE)
async def limit_queue(
    call: ApiCall, queue: QueueName, name: TaskName, body: LimitBody
) -> QueueLimits:
    """Set a limit of a queue. It applies at once and to all workers. Queues whose limits have the
    same name share its slots."""
    if body.concurrency is None and body.rate is None:
        raise UsageError("a limit needs concurrency, rate or both")
    wanted = Limit(
        name=name,
        task=body.task,
        key=body.key,
        concurrency=body.concurrency,
        rate=None if body.rate is None else to_rate("rate", body.rate),
    )
    return QueueLimits((await set_limit(call.engine, queue, wanted)).limits)


@operation("DELETE", "/v1/queues/{queue}/limits/{name}", needs=Scope.OPERATE)
async def unlimit_queue(call: ApiCall, queue: QueueName, name: TaskName) -> QueueLimits:
    """Remove a limit of a queue."""
    view = await _existing_queue(call.engine, queue)
    if all(each.name != name for each in view.queue.limits):
        known = ", ".join(each.name for each in view.queue.limits) or "none"
        raise NotFound(f"queue {queue} has no limit {name[:80]!r}; its limits: {known}")
    return QueueLimits((await remove_limit(call.engine, queue, name)).limits)


@operation("GET", "/v1/queues/{queue}/tenants", needs=Scope.OBSERVE)
async def show_tenants(call: ApiCall, queue: QueueName) -> TenantsView:
    """Show the tenants of a queue and their shares. The list is empty while its fairness is off."""
    await _existing_queue(call.engine, queue)
    flow = await call.engine.flow(queue, limit=bounds.PAGE_MAX)
    return TenantsView(tenants=flow.tenants)


class DistributionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Take jobs from the queues that match `source`, while fewer than `depth` jobs wait in the
    target. `weights` are by source queue; the default is 1."""

    source: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.*?-]{1,80}$", examples=["mail.*"])]
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX)] = 1_000
    weights: Annotated[dict[QueueName, _Weight], Meta(max_length=bounds.WEIGHTS_MAX)] = {}


class DistributionList(msgspec.Struct, frozen=True):
    """Distributions, by target queue."""

    distributions: list[Distribution]


class DistributionRemoved(msgspec.Struct, frozen=True):
    """The target queue of the removed distribution."""

    queue: str
    stored: bool


@operation("GET", "/v1/distributions", needs=Scope.OBSERVE)
async def list_distributions(call: ApiCall) -> DistributionList:
    """List distributions."""
    return DistributionList(await Distributions(call.engine).all())


@operation("PUT", "/v1/distributions/{queue}", needs=Scope.OPERATE)
async def store_distribution(
    call: ApiCall, queue: QueueName, body: DistributionBody
) -> Distribution:
    """Set the distribution into a queue: upkeep moves jobs from other queues into it, taking turns
    fairly.
    """
    await _existing_queue(call.engine, queue)
    wanted = Distribution(source=body.source, target=queue, depth=body.depth, weights=body.weights)
    await Distributions(call.engine).put(wanted)
    return wanted


@operation("DELETE", "/v1/distributions/{queue}", needs=Scope.OPERATE)
async def forget_distribution(call: ApiCall, queue: QueueName) -> DistributionRemoved:
    """Remove a distribution."""
    if not await Distributions(call.engine).remove(queue):
        raise NotFound(f"no distribution into {queue[:80]!r}: see GET /v1/distributions")
    return DistributionRemoved(queue, stored=False)


OPERATIONS: tuple[Operation, ...] = (
    list_queues,
    create_queue,
    show_queue,
    update_queue,
    pause_queue,
    resume_queue,
    drain_queue,
    clear_queue,
    delete_queue,
    show_limits,
    limit_queue,
    unlimit_queue,
    show_tenants,
    list_distributions,
    store_distribution,
    forget_distribution,
)


async def _existing_queue(engine: Engine, name: str, *, counts: bool = False) -> QueueView:
    """The queue. Raises NotFound."""
    view = await acts.find_queue(engine, name, counts=counts)
    if view is None:
        raise NotFound(f"unknown queue {name[:80]!r}: see GET /v1/queues")
    return view


async def _declared(call: ApiCall, queue: Queue) -> bool:
    """Declare a new queue. With default settings, which any producer may declare, the audit
    entry is written here."""
    if queue != Queue(name=queue.name):
        return await call.engine.declare(queue, instead_of=None)
    async with call.noting("queue.declare", queue.name):
        return await call.engine.declare(queue, instead_of=None)
