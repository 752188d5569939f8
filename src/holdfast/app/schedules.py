"""Schedules in code: what `@app.schedule` declares, as the records that workers store."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import NewJob
from holdfast.errors import UsageError
from holdfast.notation.durations import Duration
from holdfast.notation.job import TickOptions
from holdfast.notation.options import expected, unknown_names
from holdfast.ops.schedules import ScheduleRule, checked_schedule
from holdfast.ops.ticks import Missed, Schedule

if TYPE_CHECKING:
    from holdfast.app.task import AnyTask

CallArguments = tuple[Any, ...] | list[Any] | Mapping[str, Any]


class ScheduleOptions(TickOptions, total=False):
    """The name of a schedule, the arguments of its jobs, its policy for missed ticks, and the
    options of its jobs."""

    name: str | None
    """Name of the schedule; by default that of the task, with a dot for the colon."""
    arguments: CallArguments
    """Arguments of the task, in order or by name."""
    missed: Missed
    """For ticks that no scheduler handled in time: `skip` them, enqueue one job for all (`once`),
    or one for each (`all`)."""
    missed_max: int
    """With `all`, at most this many missed ticks."""
    grace: Duration
    """How late a tick may be before it counts as missed."""


class TaskSchedule(NamedTuple):
    """A schedule of a task. Its job is made later: a type hint of the task may name something that
    is defined below it."""

    task: AnyTask
    rule: Schedule
    arguments: CallArguments
    options: TickOptions

    @property
    def name(self) -> str:
        return self.rule.name

    def schedule(self) -> Schedule:
        """The schedule with its job. InvalidJob if the arguments do not fit the task."""
        using = self.task.using(**self.options)
        if isinstance(self.arguments, Mapping):
            job = using.job(**self.arguments)
        else:
            job = using.job(*self.arguments)
        # Each tick has an id of its own; this one must be the same at every start.
        return replace(self.rule, job=replace(job, id=self.rule.job.id))


def task_schedule(task: AnyTask, rule: ScheduleRule, options: ScheduleOptions) -> TaskSchedule:
    """The schedule, checked as far as it can be without the task's type hints."""
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    known = ScheduleOptions.__annotations__
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise UsageError(unknown_names("a schedule", unknown, known))
    if not rule.has_rule:
        raise UsageError(
            f'the schedule of {task.name} has no rule: give cron="0 2 * * *" or every="15m"'
        )
    name = expected("name", given.pop("name", _default_name(task.name)), str)
    arguments = expected("arguments", given.pop("arguments", ()), tuple | list | Mapping)
    policy = {key: given.pop(key) for key in ("missed", "missed_max", "grace") if key in given}
    job = NewJob(id=f"schedule:{name[:80]}", task=task.name)
    fields = replace(rule, **policy).fields()
    checked = checked_schedule(Schedule(name=name, job=job, **fields))
    return TaskSchedule(task, checked, arguments, cast("TickOptions", given))


def _default_name(task: str) -> str:
    """The task's name, with dots in place of characters that names of schedules cannot have."""
    return re.sub(r"[^A-Za-z0-9_.-]", ".", task)[:80]


def program_name(given: str | None) -> str:
    """The name of a program: the given one, or else the module that creates the application."""
    if given is None:
        return re.sub(r"[^A-Za-z0-9_.-]", "-", _creating_module())[:80] or "main"
    if not bounds.QUEUE_NAME.match(expected("name", given, str)):
        raise UsageError(
            f"name {given[:80]!r} of a Holdfast is not valid: use 1 to 80 characters of A-Z a-z 0-9"
            " _ . -"
        )
    return given


def _creating_module() -> str:
    from holdfast.app.task import module_name

    frame = inspect.currentframe()
    assert frame is not None, "this Python has frames"
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("holdfast."):
        frame = frame.f_back
    return module_name(str(frame.f_globals.get("__name__")))
