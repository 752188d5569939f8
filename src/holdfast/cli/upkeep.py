"""`holdfast up` and `holdfast backup`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from holdfast import __version__
from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json
from holdfast.cli.pages import program
from holdfast.core.text import printable
from holdfast.durations import show_at
from holdfast.events import EngineCalled, Happening, Pruned, Reaped, Ticked, Troubled

_TRY_NEXT = """\
the reaper, the pruner and the scheduler are running; Ctrl-C stops them
in another terminal:
  {program} enqueue --task hello --payload '{{"to": "world"}}'
  {program} status"""


def up(
    *,
    archive: Annotated[
        Path | None, Parameter(help="Keep finished jobs in this file before they are deleted.")
    ] = None,
    common: Common = COMMON,
) -> None:
    """Keep time: bring lapsed leases back, delete old jobs, run schedules."""
    asyncio.run(_up(common, archive))


def backup(file: Path, /, *, common: Common = COMMON) -> None:
    """Copy the queue file while work goes on."""
    asyncio.run(_backup(common, file))
    if common.json:
        print_json({"backup": str(file)})
    else:
        print(f"copied to {printable(str(file), one_line=True)}")


async def _up(common: Common, archive: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Holdfast(common.url) as app:
        if common.json:
            app.listeners.add(_print_as_json)
        else:
            print(f"holdfast {__version__} on {printable(app.place, one_line=True)}")
            print(_TRY_NEXT.format(program=program()), flush=True)
            app.listeners.add(_print)
        await app.upkeep(archive=archive).run(stop)
    if not common.json:
        print("stopped", flush=True)


async def _backup(common: Common, file: Path) -> None:
    async with Holdfast(common.url) as app:
        await app.backup(file)


def _print_as_json(happening: Happening) -> None:
    if not isinstance(happening, EngineCalled):
        print_json({"event": type(happening).__name__.lower(), **msgspec.to_builtins(happening)})


def _print(happening: Happening) -> None:
    match happening:
        case Reaped(overdue=overdue, expired=expired):
            line = f"{overdue} lapsed leases ended, {expired} expired jobs buried"
        case Pruned(deleted=deleted, archived=archived):
            line = f"{deleted} old jobs deleted, {archived} archived"
        case Ticked(schedule=schedule, tick_at=tick_at, status=status, text=text):
            line = f"schedule {schedule} at {show_at(tick_at)}: {text or status}"
        case EngineCalled() | Troubled():
            # Trouble is logged, to the standard error.
            return
    print(printable(line, one_line=True), flush=True)
