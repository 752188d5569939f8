"""`holdfast queue drain`, `clear` and `delete`: how a queue gets empty, or goes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.bulk import count, delete_all
from holdfast.cli.exits import Exit
from holdfast.cli.guards import DryRun, Yes, sure
from holdfast.cli.jobs import States
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.pages import program
from holdfast.cli.queues import Name, one
from holdfast.cli.running import progress, running
from holdfast.core.model import JobFilter, State
from holdfast.core.text import counted
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.queues import drop_queue, held_by, left_in, until_empty
from holdfast.views.queues import Cleared, Drained, Dropped
from holdfast.views.values import plain


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
        engine = app.engine
        left = await until_empty(engine, name, wait_ms_max) if wait else await left_in(engine, name)
    if common.json:
        print_json(plain(Drained(queue=name, accepting=False, left=left)))
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
        found = await count(app.engine, wanted)
        deleted = 0
        if not dry_run and found.number:
            sure(f"Delete {found} of queue {name} for good?", yes=yes)
            with progress("deleting", found.number) as advance:
                # No more than there were: others may be coming in all the time.
                most = None if found.more else found.number
                deleted = await delete_all(
                    app.engine, wanted, force=force, most=most, advance=advance
                )
    if common.json:
        number, more = found
        print_json(plain(Cleared(queue=name, found=number, more=more, deleted=deleted)))
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
        held = held_by(view)
        if not dry_run:
            if held:
                sure(f"Delete queue {name} with its {counted(held, 'job')} for good?", yes=yes)
            await drop_queue(app.engine, name)
    if common.json:
        print_json(plain(Dropped(queue=name, jobs=held, deleted=not dry_run)))
    else:
        done = "would delete" if dry_run else "deleted"
        jobs = f" and its {counted(held, 'job')}" if held else ""
        print(f"{done} queue {name}{jobs}")
