"""Queues: their settings, how they stand, and acts on one as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import queues as acts
from holdfast.bulk import count, delete_all
from holdfast.core import limits
from holdfast.core.flow import Fairness
from holdfast.core.model import JobFilter, Queue, QueueView, State
from holdfast.core.pauses import Pause
from holdfast.durations import to_ms
from holdfast.engines.base import Engine
from holdfast.errors import Exists, NotFound, UsageError
from holdfast.options import QueueOptions, changed_queue
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import Attempts, Many, Name, QueueName, Seconds
from holdfast.upkeep import wall_ms
from holdfast.views.queues import Cleared, Drained, Dropped, QueueDetails, details_view

_Weight = Annotated[int, Meta(ge=1, le=limits.WEIGHT_MAX)]


class QueueSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Everything a queue can be told; what is left out stays as it is, and null is none."""

    lease: Seconds | UnsetType = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    max_attempts: Attempts | UnsetType = UNSET
    max_crashes: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_MAX)] | UnsetType = UNSET
    backoff: (
        Annotated[str, Meta(max_length=300, examples=["exponential(2s, max=10m)"])] | UnsetType
    ) = UNSET
    order: Literal["tail", "keep"] | UnsetType = UNSET
    retention: Seconds | UnsetType = UNSET
    dead_retention: Seconds | UnsetType = UNSET
    dead_queue: QueueName | UnsetType | None = UNSET
    max_depth: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType | None = UNSET
    payload_max: Annotated[int, Meta(ge=1, le=limits.PAYLOAD_MAX)] | UnsetType = UNSET
    accepting: bool | UnsetType = UNSET
    fairness: Fairness | UnsetType = UNSET
    weights: Annotated[dict[Name, _Weight], Meta(max_length=limits.WEIGHTS_MAX)] | UnsetType = UNSET
    aging: Seconds | UnsetType | None = UNSET
    group_batch: Annotated[int, Meta(ge=1, le=limits.GROUP_BATCH_MAX)] | UnsetType = UNSET

    def options(self) -> QueueOptions:
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
    """`text` says why, for those who wonder."""

    text: Annotated[str, Meta(max_length=1000)] = ""


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """How long to wait until it is empty."""

    wait: Seconds = 0


class ClearBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs in these `states`, at most `limit` in one call; leased ones only with `force`, by which
    their workers lose them. With `dry_run` they are only counted."""

    states: Annotated[list[State], Meta(min_length=1, max_length=len(State))] | None = None
    force: bool = False
    limit: Many = limits.COUNT_EXACT_MAX
    dry_run: bool = False


class DropQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `dry_run` nothing is done."""

    dry_run: bool = False


class Queues(msgspec.Struct, frozen=True):
    """By name."""

    queues: list[QueueDetails]


@operation("GET", "/v1/queues", needs=Scope.OPERATE)
async def list_queues(call: Call) -> Queues:
    """Every queue: its settings and how it stands."""
    return Queues([details_view(view) for view in await call.engine.queues()])


@operation("POST", "/v1/queues", needs=Scope.OPERATE, status=201)
async def create_queue(call: Call, body: NewQueue) -> Queue:
    """Create a queue."""
    queue = changed_queue(Queue(name=body.name), body.options())
    if not await _declared(call, queue):
        raise Exists(f"queue {body.name} exists already: PATCH /v1/queues/{body.name} changes it")
    return queue


@operation("GET", "/v1/queues/{queue}", needs=Scope.OPERATE)
async def show_queue(call: Call, queue: QueueName) -> QueueDetails:
    """One queue: its settings and how it stands."""
    return details_view(await there(call.engine, queue, counts=True))


@operation("PATCH", "/v1/queues/{queue}", needs=Scope.OPERATE, repeatable=True)
async def update_queue(call: Call, queue: QueueName, body: QueueSettings) -> Queue:
    """Change settings of a queue; those that are not given stay."""
    options = body.options()
    if not options:
        raise UsageError("nothing to change: give lease, max_attempts, …")
    return await acts.alter_queue(call.engine, queue, options)


@operation("POST", "/v1/queues/{queue}/pause", needs=Scope.OPERATE, repeatable=True)
async def pause_queue(call: Call, queue: QueueName, body: PauseBody) -> Queue:
    """Let no job of a queue start, until it is resumed; those that run go on."""
    by = Pause(by=call.caller.name, text=body.text, at=wall_ms())
    return await acts.pause_queue(call.engine, queue, by)


@operation("POST", "/v1/queues/{queue}/resume", needs=Scope.OPERATE, repeatable=True)
async def resume_queue(call: Call, queue: QueueName) -> Queue:
    """Let the jobs of a queue start again."""
    return await acts.resume_queue(call.engine, queue)


@operation("POST", "/v1/queues/{queue}/drain", needs=Scope.OPERATE, waits=True, repeatable=True)
async def drain_queue(call: Call, queue: QueueName, body: DrainBody) -> Drained:
    """Accept no new job, and wait until those that are there have ended. `PATCH` it with
    `accepting` to open it again."""
    wait_ms = min(to_ms("wait", body.wait, UsageError), call.server.settings.wait_ms_max)
    await acts.alter_queue(call.engine, queue, {"accepting": False})
    left = await acts.until_empty(call.engine, queue, wait_ms)
    return Drained(queue=queue, accepting=False, left=left)


@operation("POST", "/v1/queues/{queue}/clear", needs=Scope.OPERATE)
async def clear_queue(call: Call, queue: QueueName, body: ClearBody) -> Cleared:
    """Delete the jobs of a queue that wait, or those in the states that are named, oldest first.
    While `more` is true, there are others: call it again."""
    states = set(body.states or [State.WAITING]) | ({State.LEASED} if body.force else set())
    if State.LEASED in states and not body.force:
        raise UsageError("leased jobs are deleted with force alone: their workers lose them")
    await there(call.engine, queue)
    wanted = JobFilter(queue=queue, states=tuple(each for each in State if each in states))
    found = await count(call.engine, wanted, most=body.limit)
    deleted = 0
    if not body.dry_run:
        deleted = await delete_all(call.engine, wanted, force=body.force, most=body.limit)
    return Cleared(queue=queue, found=found.number, more=found.more, deleted=deleted)


@operation("DELETE", "/v1/queues/{queue}", needs=Scope.ADMIN)
async def delete_queue(call: Call, queue: QueueName, query: DropQuery) -> Dropped:
    """Remove a queue and every job in it, running ones too."""
    view = await there(call.engine, queue, counts=True)
    if not query.dry_run:
        await acts.drop_queue(call.engine, queue)
    return Dropped(queue=queue, jobs=acts.held_by(view), deleted=not query.dry_run)


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
)


async def _declared(call: Call, queue: Queue) -> bool:
    """As it is by default, everybody's program makes one: that a person did is noted here."""
    if queue != Queue(name=queue.name):
        return await call.engine.declare(queue, instead_of=None)
    async with call.noting("queue.declare", queue.name):
        return await call.engine.declare(queue, instead_of=None)


async def there(engine: Engine, name: str, *, counts: bool = False) -> QueueView:
    view = await acts.find_queue(engine, name, counts=counts)
    if view is None:
        raise NotFound(f"queue {name[:80]!r} does not exist: GET /v1/queues lists those that do")
    return view
