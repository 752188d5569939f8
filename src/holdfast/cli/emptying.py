"""`holdfast queue drain`, `clear` and `delete`: how a queue gets empty, or goes."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.bulk import act_on_all, count
from holdfast.cli.exits import Exit
from holdfast.cli.guards import DryRun, Yes, sure
from holdfast.cli.jobs import States
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program
from holdfast.cli.queues import Name, one
from holdfast.cli.running import running
from holdfast.core.model import JobFilter, QueueView, State
from holdfast.core.text import counted
from holdfast.core.verdict import Delete
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.explaining import save_pause

_LOOK_S = 0.5


async def drain(
    name: Name,
    /,
    *,
    wait: Annotated[bool, Parameter(help="Wait until it is empty.")] = True,
    wait_max: Annotated[
        str | None, Parameter(name="--timeout", help="Wait so long at most: 10m.")
    ] = None,
    common: Common = COMMON,
) -> int:
    """Accept no new job, and wait until those that are there have ended."""
    wait_ms_max = None if wait_max is None else to_ms("timeout", wait_max, UsageError)
    async with running(common) as app:
        view = await one(app, name)
        await app.declare(name, accepting=False)
        if view.queue.paused:
            say(f"queue {name} is paused: nothing ends until {program()} queue resume {name}")
        left = await _empty(app, name, wait_ms_max) if wait else await _left(app, name)
    if common.json:
        print_json({"queue": name, "accepting": False, "left": left})
    elif left:
        there = "is" if left == 1 else "are"
        print(f"queue {name} accepts no new job; {counted(left, 'job')} {there} left")
    else:
        print(f"queue {name} is empty, and accepts no new job")
    if not common.json:
        say(f"open it again with {program()} queue update {name} --accepting")
    return Exit.WAITING if wait and left else Exit.DONE


async def clear(
    name: Name,
    /,
    *,
    state: States = None,
    force: Annotated[
        bool, Parameter(help="Also those that run; their leases are lost.", negative=())
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Delete the jobs of a queue that wait, or those in the states that are named."""
    states = set(state or [State.WAITING]) | ({State.LEASED} if force else set())
    if State.LEASED in states and not force:
        raise UsageError("leased jobs are deleted with --force alone: their workers lose them")
    wanted = JobFilter(queue=name, states=tuple(each for each in State if each in states))
    async with running(common) as app:
        await one(app, name)
        found = await count(app, wanted)
        deleted = 0
        if not dry_run and found.number:
            sure(f"Delete {found} of queue {name} for good?", yes=yes)
            deleted = await act_on_all(app, wanted, Delete(force=force), "deleting")
    if common.json:
        print_json({"queue": name, "found": found.number, "more": found.more, "deleted": deleted})
    else:
        done = f"would delete {found}" if dry_run else f"deleted {counted(deleted, 'job')}"
        print(f"{done} of queue {name}")


async def delete(
    name: Name,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Common = COMMON,
) -> None:
    """Remove a queue and every job in it, running ones too."""
    async with running(common) as app:
        view = await one(app, name, counts=True)
        held = _held(view)
        if not dry_run:
            if held:
                sure(f"Delete queue {name} with its {counted(held, 'job')} for good?", yes=yes)
            await app.drop(name)
            await save_pause(app.engine, name, None)
    if common.json:
        print_json({"queue": name, "jobs": held, "deleted": not dry_run})
    else:
        done = "would delete" if dry_run else "deleted"
        jobs = f" and its {counted(held, 'job')}" if held else ""
        print(f"{done} queue {name}{jobs}")


async def _empty(app: Holdfast, name: str, wait_ms_max: int | None) -> int:
    """Until no job waits or runs, or the time is over; how many are left."""
    until = None if wait_ms_max is None else time.monotonic() + wait_ms_max / 1000
    while left := await _left(app, name):
        if until is not None and time.monotonic() >= until:
            break
        await asyncio.sleep(_LOOK_S)
    return left


async def _left(app: Holdfast, name: str) -> int:
    view = await one(app, name, counts=True)
    # Overdue jobs are leased ones too.
    return view.ready + view.delayed + view.blocked + view.leased


def _held(view: QueueView) -> int:
    names = ("ready", "delayed", "blocked", "leased", "done", "dead", "cancelled")
    return sum(int(getattr(view, each)) for each in names)
