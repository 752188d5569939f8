"""`holdfast schedule add`, `edit` and `preview`: when a job is enqueued again, and which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.cli import newjob
from holdfast.cli.exits import NotFound
from holdfast.cli.jobflags import TickFlags
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.cli.schedules import Name, next_ticks, one, tell
from holdfast.config import settings
from holdfast.core.model import NewJob
from holdfast.durations import to_ms
from holdfast.errors import ConfigError, UsageError
from holdfast.upkeep import Schedule


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Rule:
    """When it ticks, and what becomes of ticks that were missed."""

    cron: Annotated[
        str | None, Parameter(help='Minute hour day month weekday: "0 3 * * 1-5", or @daily.')
    ] = None
    every: Annotated[str | None, Parameter(help="An interval instead: 10m.")] = None
    zone: Annotated[str | None, Parameter(help="The time zone of --cron: Europe/Berlin.")] = None
    missed: Annotated[
        Literal["skip", "once", "all"] | None,
        Parameter(help="What to do about ticks when nobody was there; once."),
    ] = None
    missed_max: Annotated[int | None, Parameter(help="With all: the latest so many.")] = None
    grace: Annotated[str | None, Parameter(help="How late is not missed yet; 1m.")] = None

    def fields(self) -> dict[str, Any]:
        """Of a Schedule; a new rule takes the place of the other one."""
        if self.cron is not None and self.every is not None:
            raise UsageError("a schedule has either --cron or --every, not both")
        given: dict[str, Any] = {
            name: value
            for name in ("zone", "missed", "missed_max")
            if (value := getattr(self, name)) is not None
        }
        if self.cron is not None:
            given |= {"cron": self.cron, "every_ms": None}
        if self.every is not None:
            given |= {"every_ms": to_ms("every", self.every, ConfigError), "cron": None}
        if self.grace is not None:
            given["grace_ms"] = to_ms("grace", self.grace, ConfigError)
        return given


_RULE = Rule()
_FLAGS = TickFlags()

Command = Annotated[
    str, Parameter(name="COMMAND", help="-- and a command with its arguments.", show_env_var=False)
]


async def add(
    name: Name,
    /,
    *command: Command,
    rule: Rule = _RULE,
    flags: TickFlags = _FLAGS,
    common: Common = COMMON,
) -> None:
    """Enqueue a job again and again: `add NAME --cron "0 3 * * *" -- CMD ARGS…`."""
    fields = rule.fields()
    if not {"cron", "every_ms"} & set(fields):
        raise UsageError("say when: --cron or --every")
    line = _line(flags, command)
    async with running(common, create=True) as app:
        job = newjob.make(line, newjob.base_of(newjob.Line(), await settings(app.engine)))
        schedule = Schedule(name=name, job=job, **fields)
        await _check_queue(app, job)
        await app.schedules.add(schedule)
    tell(app, schedule, "added", common)


async def edit(
    name: Name,
    /,
    *command: Command,
    rule: Rule = _RULE,
    flags: TickFlags = _FLAGS,
    common: Common = COMMON,
) -> None:
    """Change a schedule; what is not given stays. A new rule starts afresh from now."""
    changes = rule.fields()
    line = _line(flags, command)
    async with running(common) as app:
        old = await one(app, name)
        job = _changed(old.job, line)
        if job != old.job:
            await _check_queue(app, job)
            changes["job"] = job
        if not changes:
            raise UsageError("nothing to change: give --cron, --every, --payload, …")
        schedule = await app.schedules.edit(name, **changes)
    tell(app, schedule, "changed", common)


async def preview(
    name: Name | None = None,
    /,
    *,
    rule: Rule = _RULE,
    count: Annotated[int, Parameter(help="So many ticks.")] = 5,
    common: Common = COMMON,
) -> None:
    """Show the next ticks of a schedule, or of a rule that is not stored."""
    async with running(common) as app:
        fields = rule.fields()
        if name is not None:
            schedule = replace(await one(app, name), **fields)
        elif {"cron", "every_ms"} & set(fields):
            schedule = Schedule(name="preview", job=NewJob(id="preview", task="none"), **fields)
        else:
            raise UsageError("name a schedule, or give a rule with --cron or --every")
    ticks = next_ticks(app, schedule, count)
    if common.json:
        print_json(ticks)
    else:
        print("\n".join(ticks))


async def _check_queue(app: Holdfast, job: NewJob) -> None:
    """Now, instead of at three in the night."""
    if not any(view.queue.name == job.queue for view in await app.queues(counts=False)):
        raise NotFound(
            f"queue {job.queue} does not exist: create it with {program()} queue create {job.queue}"
        )


def _line(flags: TickFlags, command: tuple[str, ...]) -> newjob.Line:
    line = flags.line()
    if command:
        if line.command is not None:
            raise UsageError("a command is given with --command or after --, not both")
        line.command = list(command)
    return line


def _changed(old: NewJob, line: newjob.Line) -> NewJob:
    """The old job with what is given; its overrides are settings of their own."""
    given = {name for name in newjob.FIELDS if getattr(line, name) not in (None, msgspec.UNSET)}
    if not given:
        return old
    if not given & {"command", "task"}:
        line.task = old.task
    made = newjob.make(line, newjob.Base({}))
    fields: dict[str, Any] = {
        name: getattr(made, name) for name in given & set(old.__struct_fields__)
    }
    if given & {"command", "task"}:
        fields |= {"task": made.task, "payload": made.payload}
    for name in ("delay", "expires"):
        if name in given:
            fields[f"{name}_ms"] = getattr(made, f"{name}_ms")
    if "to" in given:
        fields |= {"queue": made.queue, "expires_ms": made.expires_ms}
    own = {
        name: value
        for name in made.overrides.__struct_fields__
        if (value := getattr(made.overrides, name)) is not None
    }
    return replace(old, **fields, overrides=replace(old.overrides, **own))
