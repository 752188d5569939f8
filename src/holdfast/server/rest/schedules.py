"""Schedules over REST: jobs enqueued at every tick of a rule."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core import bounds, checks
from holdfast.core.checks import accepted
from holdfast.core.model import NewJob, Status
from holdfast.errors import Exists, NotFound, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import show_at
from holdfast.notation.job import JobId, QueueName, Seconds
from holdfast.ops.queues import find_queue
from holdfast.ops.schedules import (
    PastRun,
    ScheduleRule,
    Schedules,
    ScheduleView,
    new_schedule,
    past_runs,
    schedule_changes,
    schedule_view,
    with_rule,
)
from holdfast.ops.ticks import Missed, Schedule
from holdfast.ops.views import raw_of
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.rest.shapes import TickBody

_TICKS_MAX = 100


class TickJob(TickBody, forbid_unknown_fields=True):
    """The job of every tick. It has no id, key or start time: those belong to a single job."""

    def line(self) -> job_lines.JobLine:
        """The fields as a line of job notation."""
        return job_lines.JobLine(**{name: getattr(self, name) for name in self.__struct_fields__})


class RuleBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """When the schedule ticks: a `cron` rule in its `zone`, or `every` interval. `missed` is the
    policy for ticks that no scheduler handled within `grace`.
    """

    cron: Annotated[str, Meta(min_length=1, max_length=200, examples=["0 3 * * 1-5"])] | None = None
    every: Seconds | None = None
    zone: Annotated[str, Meta(max_length=80, examples=["Europe/Berlin"])] | None = None
    missed: Missed | None = None
    missed_max: Annotated[int, Meta(ge=1, le=bounds.BATCH_MAX)] | None = None
    grace: Seconds | None = None

    def rule(self) -> ScheduleRule:
        """The rule for `new_schedule`."""
        return ScheduleRule(
            **{name: getattr(self, name) for name in ScheduleRule.__struct_fields__}
        )


class NewSchedule(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """A new schedule: its rule, and the job that each tick enqueues."""

    name: QueueName
    job: TickJob


class ScheduleChanges(RuleBody, forbid_unknown_fields=True, kw_only=True):
    """Fields that are not given stay as they are. A new rule starts from now."""

    job: TickJob | None = None


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    """With an `id` the request can be repeated without adding a second job."""

    id: JobId | None = None


class TicksQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Show `count` ticks; of the given rule, if there is one."""

    cron: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    every: Seconds | None = None
    zone: Annotated[str, Meta(max_length=80)] | None = None
    count: Annotated[int, Meta(ge=1, le=_TICKS_MAX)] = 5

    def rule(self) -> ScheduleRule:
        """The rule to preview."""
        return ScheduleRule(cron=self.cron, every=self.every, zone=self.zone)


class RunsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Show at most `count` ticks."""

    count: Annotated[int, Meta(ge=1, le=_TICKS_MAX)] = 30


class ScheduleList(msgspec.Struct, frozen=True):
    """All schedules, by name."""

    schedules: list[ScheduleView]


class ScheduleRun(msgspec.Struct, frozen=True):
    """The enqueued job, or the one that existed already."""

    id: str
    status: Status


class PastRuns(msgspec.Struct, frozen=True):
    """The last ticks, newest first, as far back as jobs of them are stored."""

    runs: list[PastRun]


class Ticks(msgspec.Struct, frozen=True):
    """The times of the next ticks."""

    ticks: list[str]


@operation("GET", "/v1/schedules", needs=Scope.OBSERVE)
async def list_schedules(call: ApiCall) -> ScheduleList:
    """List schedules."""
    return ScheduleList([_view(call, each) for each in await _schedules(call).all()])


@operation("POST", "/v1/schedules", needs=Scope.OPERATE, status=201)
async def add_schedule(call: ApiCall, body: NewSchedule) -> ScheduleView:
    """Add a schedule. It starts with the first tick after now."""
    if await _schedules(call).get(body.name) is not None:
        where = f"/v1/schedules/{body.name}"
        raise Exists(f"schedule {body.name} exists already: PATCH {where} changes it")
    schedule = await new_schedule(call.engine, body.name, body.rule(), body.job.line())
    await _check_queue(call, schedule.job)
    await _schedules(call).add(schedule)
    return _view(call, schedule)


@operation("GET", "/v1/schedules/{name}", needs=Scope.OBSERVE)
async def show_schedule(call: ApiCall, name: QueueName) -> ScheduleView:
    """Show a schedule, with its next tick."""
    return _view(call, await _one(call, name))


@operation("PATCH", "/v1/schedules/{name}", needs=Scope.OPERATE, repeatable=True)
async def edit_schedule(call: ApiCall, name: QueueName, body: ScheduleChanges) -> ScheduleView:
    """Edit a schedule. Fields that are not given stay as they are."""
    line = job_lines.JobLine() if body.job is None else body.job.line()
    old = await _one(call, name)
    changes = schedule_changes(old, body.rule(), line)
    if not changes and body.job in (None, TickJob()):
        raise UsageError("nothing to change: give cron, every, job, …")
    if not changes:
        # Nothing differs, as after a repeated request.
        return _view(call, old)
    if "job" in changes:
        await _check_queue(call, changes["job"])
    return _view(call, await _schedules(call).edit(name, **changes))


@operation("DELETE", "/v1/schedules/{name}", needs=Scope.OPERATE)
async def remove_schedule(call: ApiCall, name: QueueName) -> ScheduleView:
    """Remove a schedule. Jobs that it enqueued stay. The answer is the removed schedule."""
    schedule = await _one(call, name)
    await _schedules(call).remove(name)
    return _view(call, schedule)


@operation("POST", "/v1/schedules/{name}/pause", needs=Scope.OPERATE, repeatable=True)
async def pause_schedule(call: ApiCall, name: QueueName) -> ScheduleView:
    """Pause a schedule until it is resumed."""
    await _one(call, name)
    return _view(call, await _schedules(call).edit(name, paused=True))


@operation("POST", "/v1/schedules/{name}/resume", needs=Scope.OPERATE, repeatable=True)
async def resume_schedule(call: ApiCall, name: QueueName) -> ScheduleView:
    """Resume a schedule. Ticks missed while it was paused are skipped."""
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
async def run_schedule(call: ApiCall, name: QueueName, body: RunBody) -> ScheduleRun:
    """Run a schedule now: enqueue its job in addition to its ticks."""
    await _one(call, name)
    async with call.noting("schedule.run", name):
        receipt = accepted(await _schedules(call).run_now(name, body.id or call.app.new_id()))
    return ScheduleRun(receipt.id, receipt.status)


@operation("GET", "/v1/schedules/{name}/ticks", needs=Scope.OBSERVE)
async def show_ticks(call: ApiCall, name: QueueName, query: TicksQuery) -> Ticks:
    """Show the next ticks of a schedule, or those it would have by another rule."""
    return _ticks(call, with_rule(await _one(call, name), query.rule()), query.count)


@operation("GET", "/v1/schedules/{name}/runs", needs=Scope.OBSERVE)
async def show_runs(call: ApiCall, name: QueueName, query: RunsQuery) -> PastRuns:
    """Show the past ticks of a schedule by its current rule, each with the state of its job. Jobs
    that were run by hand have ids of their own and are not listed."""
    schedule = await _one(call, name)
    return PastRuns(await past_runs(call.engine, schedule, wall_ms(), query.count))


@operation("GET", "/v1/ticks", needs=Scope.OBSERVE)
async def preview_ticks(call: ApiCall, query: TicksQuery) -> Ticks:
    """Preview the next ticks of a rule."""
    return _ticks(call, with_rule(None, query.rule()), query.count)


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
    show_runs,
    preview_ticks,
)


def _schedules(call: ApiCall) -> Schedules:
    return Schedules(call.engine, wall_ms)


async def _one(call: ApiCall, name: str) -> Schedule:
    schedule = await _schedules(call).get(name)
    if schedule is None:
        raise NotFound(f"unknown schedule {name[:80]!r}: see GET /v1/schedules")
    return schedule


async def _check_queue(call: ApiCall, job: NewJob) -> None:
    """Refuse an unknown queue now, not at the first tick."""
    if await find_queue(call.engine, job.queue) is None:
        raise checks.unknown_queue(job.queue)


def _view(call: ApiCall, schedule: Schedule) -> ScheduleView:
    ticks = _schedules(call).preview(schedule, 1)
    return schedule_view(schedule, ticks[0] if ticks else None, value=raw_of)


def _ticks(call: ApiCall, schedule: Schedule, count: int) -> Ticks:
    return Ticks([show_at(tick) for tick in _schedules(call).preview(schedule, count)])
