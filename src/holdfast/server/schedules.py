"""Schedules: jobs that are enqueued again and again."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import newjob
from holdfast.app import accepted
from holdfast.core import admission, limits
from holdfast.core.model import NewJob, Status
from holdfast.durations import show_at
from holdfast.errors import Exists, NotFound, UsageError
from holdfast.queues import find_queue
from holdfast.scheduling import Rule, changes_of, new_schedule, ruled
from holdfast.server.bodies import JobBody
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, Scope, operation
from holdfast.server.shapes import JobId, Json, Name, Pairs, QueueName, Seconds, TaskName
from holdfast.upkeep import Schedule, Schedules, wall_ms
from holdfast.upkeep.schedule import Missed
from holdfast.views.schedules import ScheduleView, schedule_view
from holdfast.views.values import raw_of

_TICKS_MAX = 100


class TickJob(JobBody, forbid_unknown_fields=True):
    """What can be said about the job of every tick: nothing that is one job's own."""

    task: TaskName | None = None
    payload: Json | UnsetType = UNSET
    queue: QueueName | None = None
    to: Name | None = None
    reroute: bool | Pairs | None = None

    def line(self) -> newjob.Line:
        return newjob.Line(**{name: getattr(self, name) for name in self.__struct_fields__})


class RuleBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When it ticks: a `cron` rule in its `zone`, or `every` so long. `missed` is what becomes of
    ticks when nobody was there within `grace`."""

    cron: (
        Annotated[str, Meta(min_length=1, max_length=200, examples=["0 3 * * 1-5", "@daily"])]
        | None
    ) = None
    every: Seconds | None = None
    zone: Annotated[str, Meta(max_length=80, examples=["Europe/Berlin"])] | None = None
    missed: Missed | None = None
    missed_max: Annotated[int, Meta(ge=1, le=limits.BATCH_MAX)] | None = None
    grace: Seconds | None = None

    def rule(self) -> Rule:
        return Rule(**{name: getattr(self, name) for name in Rule.__struct_fields__})


class NewSchedule(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """A rule, and the job that each tick enqueues."""

    name: QueueName
    job: TickJob


class ScheduleChanges(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """What is not given stays. A new rule starts afresh from now."""

    job: TickJob | None = None


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """With an `id` of its own, repeating it adds nothing."""

    id: JobId | None = None


class TicksQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of this rule, if one is given; so many."""

    cron: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    every: Seconds | None = None
    zone: Annotated[str, Meta(max_length=80)] | None = None
    count: Annotated[int, Meta(ge=1, le=_TICKS_MAX)] = 5

    def rule(self) -> Rule:
        return Rule(cron=self.cron, every=self.every, zone=self.zone)


class ScheduleList(msgspec.Struct, frozen=True):
    """By name."""

    schedules: list[ScheduleView]


class Ran(msgspec.Struct, frozen=True):
    """The job that was enqueued, or was there already."""

    id: str
    status: Status


class Ticks(msgspec.Struct, frozen=True):
    """The instants of the next ticks."""

    ticks: list[str]


@operation("GET", "/v1/schedules", needs=Scope.OPERATE)
async def list_schedules(call: Call) -> ScheduleList:
    """Every schedule."""
    return ScheduleList([_view(call, each) for each in await _schedules(call).all()])


@operation("POST", "/v1/schedules", needs=Scope.OPERATE, status=201)
async def add_schedule(call: Call, body: NewSchedule) -> ScheduleView:
    """Enqueue a job again and again. Its first tick is the first one after now."""
    if await _schedules(call).get(body.name) is not None:
        where = f"/v1/schedules/{body.name}"
        raise Exists(f"schedule {body.name} exists already: PATCH {where} changes it")
    schedule = await new_schedule(call.engine, body.name, body.rule(), body.job.line())
    await _check_queue(call, schedule.job)
    await _schedules(call).add(schedule)
    return _view(call, schedule)


@operation("GET", "/v1/schedules/{name}", needs=Scope.OPERATE)
async def show_schedule(call: Call, name: QueueName) -> ScheduleView:
    """One schedule, with its next tick."""
    return _view(call, await _one(call, name))


@operation("PATCH", "/v1/schedules/{name}", needs=Scope.OPERATE, repeatable=True)
async def edit_schedule(call: Call, name: QueueName, body: ScheduleChanges) -> ScheduleView:
    """Change a schedule; what is not given stays."""
    line = newjob.Line() if body.job is None else body.job.line()
    old = await _one(call, name)
    changes = changes_of(old, body.rule(), line)
    if not changes and body.job in (None, TickJob()):
        raise UsageError("nothing to change: give cron, every, job, …")
    if not changes:
        # It is so already, as when this was asked for before.
        return _view(call, old)
    if "job" in changes:
        await _check_queue(call, changes["job"])
    return _view(call, await _schedules(call).edit(name, **changes))


@operation("DELETE", "/v1/schedules/{name}", needs=Scope.OPERATE)
async def remove_schedule(call: Call, name: QueueName) -> ScheduleView:
    """Remove a schedule; jobs that it enqueued stay. The answer is what was removed."""
    schedule = await _one(call, name)
    await _schedules(call).remove(name)
    return _view(call, schedule)


@operation("POST", "/v1/schedules/{name}/pause", needs=Scope.OPERATE, repeatable=True)
async def pause_schedule(call: Call, name: QueueName) -> ScheduleView:
    """Let a schedule tick no more, until it is resumed."""
    await _one(call, name)
    return _view(call, await _schedules(call).edit(name, paused=True))


@operation("POST", "/v1/schedules/{name}/resume", needs=Scope.OPERATE, repeatable=True)
async def resume_schedule(call: Call, name: QueueName) -> ScheduleView:
    """Let a schedule tick again; what it missed meanwhile is not made up for."""
    await _one(call, name)
    return _view(call, await _schedules(call).edit(name, paused=False))


def _has_id(body: RunBody) -> bool:
    return body.id is not None


@operation(
    "POST",
    "/v1/schedules/{name}/run",
    needs=Scope.OPERATE,
    status=201,
    repeatable=_has_id,
)
async def run_schedule(call: Call, name: QueueName, body: RunBody) -> Ran:
    """Enqueue the job of a schedule now, besides its ticks."""
    await _one(call, name)
    async with call.noting("schedule.run", name):
        receipt = accepted(await _schedules(call).run_now(name, body.id or call.app.new_id()))
    return Ran(receipt.id, receipt.status)


@operation("GET", "/v1/schedules/{name}/ticks", needs=Scope.OPERATE)
async def show_ticks(call: Call, name: QueueName, query: TicksQuery) -> Ticks:
    """The next ticks of a schedule, or those it would have by another rule."""
    return _ticks(call, ruled(await _one(call, name), query.rule()), query.count)


@operation("GET", "/v1/ticks", needs=Scope.OPERATE)
async def preview_ticks(call: Call, query: TicksQuery) -> Ticks:
    """The next ticks of a rule that is not stored."""
    return _ticks(call, ruled(None, query.rule()), query.count)


OPERATIONS: tuple[Operation, ...] = (
    list_schedules,
    add_schedule,
    show_schedule,
    edit_schedule,
    remove_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
    show_ticks,
    preview_ticks,
)


def _schedules(call: Call) -> Schedules:
    return Schedules(call.engine, wall_ms)


async def _one(call: Call, name: str) -> Schedule:
    schedule = await _schedules(call).get(name)
    if schedule is None:
        text = f"schedule {name[:80]!r} does not exist"
        raise NotFound(f"{text}: GET /v1/schedules lists those that do")
    return schedule


async def _check_queue(call: Call, job: NewJob) -> None:
    """Now, instead of at three in the night."""
    if await find_queue(call.engine, job.queue) is None:
        raise admission.unknown(job.queue)


def _view(call: Call, schedule: Schedule) -> ScheduleView:
    ticks = _schedules(call).preview(schedule, 1)
    return schedule_view(schedule, ticks[0] if ticks else None, value=raw_of)


def _ticks(call: Call, schedule: Schedule, count: int) -> Ticks:
    return Ticks([show_at(tick) for tick in _schedules(call).preview(schedule, count)])
