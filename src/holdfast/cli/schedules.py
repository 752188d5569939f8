"""`holdfast schedule list`, `remove`, `pause`, `resume` and `run`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.app import Holdfast, accepted
from holdfast.cli.admin import in_path, server_of
from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common, print_json, print_table, say
from holdfast.cli.pages import program
from holdfast.cli.running import running
from holdfast.core.model import NewJob
from holdfast.core.text import printable
from holdfast.durations import show_at, show_ms
from holdfast.upkeep import Schedule
from holdfast.views.schedules import schedule_view
from holdfast.views.values import COMMAND, command_of, plain, value_of

Name = Annotated[str, Parameter(help="The name of the schedule.")]


async def list_all(*, common: Common = COMMON) -> None:
    """List the schedules."""
    async with running(common) as app:
        schedules = await app.schedules.all()
    if common.json:
        print_json([_view(app, schedule) for schedule in schedules])
        return
    rows = [
        (
            schedule.name,
            schedule.cron or f"every {show_ms(schedule.every_ms or 0)}",
            schedule.zone if schedule.cron else "",
            schedule.job.queue,
            _doing(schedule.job),
            "" if schedule.last_tick is None else show_at(schedule.last_tick),
            "paused" if schedule.paused else "".join(next_ticks(app, schedule, 1)),
        )
        for schedule in schedules
    ]
    if rows:
        print_table(("schedule", "rule", "zone", "queue", "job", "last", "next"), rows)
    else:
        say(f"there is no schedule: add one with {program()} schedule add")


async def remove(name: Name, /, *, common: Common = COMMON) -> None:
    """Remove a schedule; jobs that it enqueued stay."""
    async with running(common) as app:
        schedule = await one(app, name)
        await app.schedules.remove(name)
    tell(app, schedule, "removed", common, ticks=0)


async def pause(name: Name, /, *, common: Common = COMMON) -> None:
    """Let a schedule tick no more, until it is resumed."""
    async with running(common) as app:
        await one(app, name)
        schedule = await app.schedules.edit(name, paused=True)
    tell(app, schedule, "paused", common, ticks=0)


async def resume(name: Name, /, *, common: Common = COMMON) -> None:
    """Let a schedule tick again; what it missed meanwhile is not made up for."""
    async with running(common) as app:
        await one(app, name)
        schedule = await app.schedules.edit(name, paused=False)
    tell(app, schedule, "resumed", common)


async def run(name: Name, /, *, common: Common = COMMON) -> None:
    """Enqueue the job of a schedule now, besides its ticks."""
    async with running(common) as app:
        await one(app, name)
        ask = server_of(app)
        if ask is None:
            receipt = accepted(await app.schedules.run_now(name, app.new_id()))
            ran = {"id": receipt.id, "status": str(receipt.status)}
        else:
            # A server would take the job for a producer's, and nobody's act.
            ran = await ask("POST", f"/v1/schedules/{in_path(name)}/run", {"id": app.new_id()})
    if common.json:
        print_json(ran)
    else:
        print(ran["id"])


async def one(app: Holdfast, name: str) -> Schedule:
    schedule = await app.schedules.get(name)
    if schedule is None:
        raise NotFound(f"schedule {name[:80]!r} does not exist: see {program()} schedule list")
    return schedule


def tell(app: Holdfast, schedule: Schedule, done: str, common: Common, ticks: int = 1) -> None:
    if common.json:
        print_json(_view(app, schedule))
        return
    next_ = "".join(f"; next tick {tick}" for tick in next_ticks(app, schedule, ticks))
    print(f"{done} schedule {schedule.name}{next_}")


def _view(app: Holdfast, schedule: Schedule) -> dict[str, Any]:
    ticks = app.schedules.preview(schedule, 1)
    return plain(schedule_view(schedule, ticks[0] if ticks else None))


def next_ticks(app: Holdfast, schedule: Schedule, count: int) -> list[str]:
    return [show_at(tick) for tick in app.schedules.preview(schedule, count)]


def _doing(job: NewJob) -> str:
    payload = value_of(job.payload, job.content_type) if job.task == COMMAND else None
    return printable(command_of(payload) or job.task, one_line=True)[:60]
