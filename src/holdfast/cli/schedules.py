"""`holdfast schedule …`: add, change, list and preview schedules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from cyclopts import Parameter

from holdfast.app.application import Holdfast
from holdfast.cli.flags import TickFlags, option
from holdfast.cli.help_pages import program
from holdfast.cli.output import COMMON, Common, print_either, print_json, print_table, say
from holdfast.cli.session import open_app, path_segment, server_of
from holdfast.core.checks import accepted
from holdfast.core.model import COMMAND_TASK, NewJob
from holdfast.core.text import printable
from holdfast.errors import NotFound, UsageError
from holdfast.notation import job_lines
from holdfast.notation.durations import show_at
from holdfast.ops import schedules
from holdfast.ops.queues import find_queue
from holdfast.ops.schedules import schedule_view
from holdfast.ops.ticks import Schedule, rule_words
from holdfast.ops.views import command_of, plain, value_of

Name = Annotated[str, Parameter(help="Name of the schedule.")]
Command = Annotated[
    str,
    Parameter(name="COMMAND", help="-- and a command with its arguments.", show_env_var=False),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RuleFlags:
    """The rule of a schedule, and its policy for missed ticks."""

    cron: Annotated[
        str | None,
        option("CRON", 'Minute, hour, day, month and weekday, e.g. "0 3 * * 1-5", or @daily.'),
    ] = None
    every: Annotated[str | None, option("DURATION", "Run at this interval instead, e.g. 10m.")] = (
        None
    )
    zone: Annotated[
        str | None, option("ZONE", "Time zone of --cron, e.g. Europe/Berlin. [default: UTC]")
    ] = None
    missed: Annotated[
        Literal["skip", "once", "all"] | None,
        option(
            "POLICY",
            "If times were missed: skip them, run once, or run for all of them. [default: once]",
        ),
    ] = None
    missed_max: Annotated[
        int | None, option("N", "With --missed all, run at most the latest N. [default: 100]")
    ] = None
    grace: Annotated[
        str | None,
        option("DURATION", "Count a time as missed once it is this late. [default: 1m]"),
    ] = None

    def rule(self) -> schedules.ScheduleRule:
        """The rule. Raises UsageError, before a store is opened."""
        if self.cron is not None and self.every is not None:
            raise UsageError("a schedule has either --cron or --every, not both")
        rule = schedules.ScheduleRule(**asdict(self))
        rule.fields()
        return rule


_NO_RULE = RuleFlags()
_NO_FLAGS = TickFlags()


async def list_all(*, common: Common = COMMON) -> None:
    """List schedules with their next time, in local time and in UTC.

    The local time is that of the rule's time zone, or of this machine for an interval. The last
    column says whether a person or the code of a program made the schedule.
    """
    async with open_app(common) as app:
        schedules = await app.schedules.all()
    if common.json:
        print_json([_view(app, schedule) for schedule in schedules])
        return
    rows = [
        (
            schedule.name,
            rule_words(schedule),
            *_next_columns(app, schedule),
            schedule.job.queue,
            _title(schedule.job),
            "" if schedule.last_tick is None else show_at(schedule.last_tick),
            "a person" if schedule.program is None else f"code of {schedule.program}",
        )
        for schedule in schedules
    ]
    if rows:
        columns = ("schedule", "rule", "next", "UTC", "queue", "job", "last", "made by")
        print_table(columns, rows, less=("last", "queue", "job", "made by"), whole=("next", "UTC"))
    else:
        say(f'there are no schedules: add one with "{program()} schedule add"')


async def add(
    name: Name,
    /,
    *command: Command,
    rule: RuleFlags = _NO_RULE,
    flags: TickFlags = _NO_FLAGS,
    common: Common = COMMON,
) -> None:
    """Add a schedule, which enqueues a job regularly.

    The job is a command, a webhook, or a task with a payload.

      holdfast schedule add nightly --cron "0 3 * * *" -- ./backup.sh
      holdfast schedule add report --every 1h --task report:send
    """
    given = rule.rule()
    if not given.has_rule:
        raise UsageError("the rule is missing: give --cron or --every")
    line = _line(flags, command)
    async with open_app(common, create=True) as app:
        schedule = await schedules.new_schedule(app.engine, name, given, line)
        await _check_queue(app, schedule.job)
        await app.schedules.add(schedule)
    _print_schedule(app, schedule, "added", common)


async def edit(
    name: Name,
    /,
    *command: Command,
    rule: RuleFlags = _NO_RULE,
    flags: TickFlags = _NO_FLAGS,
    common: Common = COMMON,
) -> None:
    """Change a schedule.

    Fields that are not given stay as they are. A new rule applies from now on. A schedule that is
    declared in code is restored when a worker of its program starts: change the code instead.
    """
    given = rule.rule()
    line = _line(flags, command)
    async with open_app(common) as app:
        old = await read_schedule(app, name)
        changes = schedules.schedule_changes(old, given, line)
        if "job" in changes:
            await _check_queue(app, changes["job"])
        if not changes:
            raise UsageError("nothing to change: give --cron, --every, --payload, …")
        schedule = await app.schedules.edit(name, **changes)
    _print_schedule(app, schedule, "changed", common)
    _warn_of_code(schedule, "change the code, too")


async def remove(name: Name, /, *, common: Common = COMMON) -> None:
    """Remove a schedule. Jobs that it enqueued stay.

    A schedule that is declared in code is restored when a worker of its program starts: remove it
    from the code, or pause it.
    """
    async with open_app(common) as app:
        schedule = await read_schedule(app, name)
        await app.schedules.remove(name)
    _print_schedule(app, schedule, "removed", common, ticks=0)
    _warn_of_code(schedule, "remove it from the code, too, or pause it instead")


async def pause(name: Name, /, *, common: Common = COMMON) -> None:
    """Pause a schedule until it is resumed."""
    async with open_app(common) as app:
        await read_schedule(app, name)
        schedule = await app.schedules.edit(name, paused=True)
    _print_schedule(app, schedule, "paused", common, ticks=0)


async def resume(name: Name, /, *, common: Common = COMMON) -> None:
    """Resume a schedule. Times during the pause are skipped."""
    async with open_app(common) as app:
        await read_schedule(app, name)
        schedule = await app.schedules.edit(name, paused=False)
    _print_schedule(app, schedule, "resumed", common)


async def run(name: Name, /, *, common: Common = COMMON) -> None:
    """Enqueue the job of a schedule now, in addition to its regular times."""
    async with open_app(common) as app:
        await read_schedule(app, name)
        ask = server_of(app)
        if ask is None:
            receipt = accepted(await app.schedules.run_now(name, app.new_id()))
            ran = {"id": receipt.id, "status": str(receipt.status)}
        else:
            # The server does it, so that it is in the audit log.
            ran = await ask("POST", f"/v1/schedules/{path_segment(name)}/run", {"id": app.new_id()})
    print_either(ran, ran["id"], common)


async def preview(
    name: Name | None = None,
    /,
    *,
    rule: RuleFlags = _NO_RULE,
    count: Annotated[int, option("N", "Show this many times.")] = 5,
    common: Common = COMMON,
) -> None:
    """Show the next times of a schedule, or of a rule before it is stored."""
    async with open_app(common) as app:
        given = rule.rule()
        old = None if name is None else await read_schedule(app, name)
        if old is None and not given.has_rule:
            raise UsageError("name a schedule, or give a rule with --cron or --every")
        schedule = schedules.with_rule(old, given)
    ticks = app.schedules.preview(schedule, count)
    if common.json:
        print_json([show_at(tick) for tick in ticks])
    else:
        print("\n".join(f"{show_at(tick)}  {local_time(schedule, tick)}" for tick in ticks))


async def read_schedule(app: Holdfast, name: str) -> Schedule:
    """The schedule. Raises NotFound."""
    schedule = await app.schedules.get(name)
    if schedule is None:
        raise NotFound(f'schedule "{name[:80]}" does not exist; see "{program()} schedule list"')
    return schedule


async def _check_queue(app: Holdfast, job: NewJob) -> None:
    """Refuse a missing queue now, not at the first tick."""
    if await find_queue(app.engine, job.queue) is None:
        create = f"{program()} queue create {job.queue}"
        raise NotFound(f'queue {job.queue} does not exist: create it with "{create}"')


def _line(flags: TickFlags, command: tuple[str, ...]) -> job_lines.JobLine:
    line = flags.line()
    if command:
        if line.command is not None:
            raise UsageError("give the command with --command or after --, not both")
        line.command = list(command)
    return line


def _print_schedule(
    app: Holdfast, schedule: Schedule, done: str, common: Common, ticks: int = 1
) -> None:
    next_ = "".join(
        f"; next run {show_at(tick)}, {local_time(schedule, tick)}"
        for tick in app.schedules.preview(schedule, ticks)
    )
    print_either(_view(app, schedule), f"{done} schedule {schedule.name}{next_}", common)


def _warn_of_code(schedule: Schedule, remedy: str) -> None:
    """Say that a worker undoes a change by hand."""
    if schedule.program is not None:
        say(
            f"the code of {schedule.program} declares schedule {schedule.name}: its workers restore"
            f" it when they start; {remedy}"
        )


def _view(app: Holdfast, schedule: Schedule) -> dict[str, Any]:
    ticks = app.schedules.preview(schedule, 1)
    return plain(schedule_view(schedule, ticks[0] if ticks else None))


def _next_columns(app: Holdfast, schedule: Schedule) -> tuple[str, str]:
    """The next tick in local time and in UTC."""
    if schedule.paused:
        return "paused", ""
    ticks = app.schedules.preview(schedule, 1)
    return (local_time(schedule, ticks[0]), show_at(ticks[0])) if ticks else ("never", "")


def local_time(schedule: Schedule, tick: int) -> str:
    """A tick in the time zone of a cron rule, such as "Thu 2026-11-19 03:00 CET"; for an interval,
    in that of this machine."""
    instant = datetime.fromtimestamp(tick // 1000, UTC)
    local = instant.astimezone(None if schedule.cron is None else ZoneInfo(schedule.zone))
    return local.strftime("%a %Y-%m-%d %H:%M:%S %Z").replace(":00 ", " ")


def _title(job: NewJob) -> str:
    payload = value_of(job.payload, job.content_type) if job.task == COMMAND_TASK else None
    return printable(command_of(payload) or job.task, one_line=True)[:60]
