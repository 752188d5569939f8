"""`holdfast schedule add`, `edit` and `preview`: when a job is enqueued again, and which."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from holdfast import newjob, scheduling
from holdfast.app import Holdfast
from holdfast.cli.exits import NotFound
from holdfast.cli.jobflags import TickFlags
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.cli.schedules import Name, next_ticks, one, tell
from holdfast.core.model import NewJob
from holdfast.errors import UsageError
from holdfast.queues import find_queue


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

    def said(self) -> scheduling.Rule:
        if self.cron is not None and self.every is not None:
            raise UsageError("a schedule has either --cron or --every, not both")
        rule = scheduling.Rule(**asdict(self))
        # What cannot be read is refused before a store is opened.
        rule.fields()
        return rule


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
    said = rule.said()
    if not said.says_when:
        raise UsageError("say when: --cron or --every")
    line = _line(flags, command)
    async with running(common, create=True) as app:
        schedule = await scheduling.new_schedule(app.engine, name, said, line)
        await _check_queue(app, schedule.job)
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
    said = rule.said()
    line = _line(flags, command)
    async with running(common) as app:
        old = await one(app, name)
        changes = scheduling.changes_of(old, said, line)
        if "job" in changes:
            await _check_queue(app, changes["job"])
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
        said = rule.said()
        old = None if name is None else await one(app, name)
        if old is None and not said.says_when:
            raise UsageError("name a schedule, or give a rule with --cron or --every")
        schedule = scheduling.ruled(old, said)
    ticks = next_ticks(app, schedule, count)
    if common.json:
        print_json(ticks)
    else:
        print("\n".join(ticks))


async def _check_queue(app: Holdfast, job: NewJob) -> None:
    """Now, instead of at three in the night."""
    if await find_queue(app.engine, job.queue) is None:
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
