"""`holdfast top`: queues, workers and what runs, live."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.output import COMMON, Common, print_json, show_age
from holdfast.cli.running import running
from holdfast.core.model import JobFilter, State
from holdfast.core.text import printable
from holdfast.durations import to_ms
from holdfast.errors import UsageError
from holdfast.views.queues import COUNTS, worth_showing
from holdfast.views.status import TopView, top_view
from holdfast.views.values import plain
from holdfast.worker.registry import Workers

if TYPE_CHECKING:
    from rich.console import RenderableType

_JOBS = 15
_NUMBERS = (*COUNTS, "failed", "attempt", "progress")


async def top(
    *,
    interval: Annotated[str, Parameter(help="How often it looks.")] = "1s",
    once: Annotated[bool, Parameter(help="Look once and end.", negative=())] = False,
    common: Common = COMMON,
) -> None:
    """Watch queues, workers and running jobs. Ctrl-C ends it; with --json a line each time."""
    interval_s = max(to_ms("interval", interval, UsageError) / 1000, 0.1)
    async with running(common) as app:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if common.json:
            while not stop.is_set():
                print_json(plain(await snapshot(app)))
                if once:
                    return
                await _pause(stop, interval_s)
        else:
            await live(app, stop, interval_s=interval_s, once=once or not sys.stdout.isatty())


async def snapshot(app: Holdfast) -> TopView:
    """Everything that is shown."""
    views = await app.queues()
    workers = await Workers(app.engine).all()
    page = await app.find(JobFilter(states=(State.LEASED,)), limit=_JOBS)
    return top_view(views, workers, page.jobs)


async def live(
    app: Holdfast, stop: asyncio.Event, *, interval_s: float, once: bool = False
) -> None:
    """Draw it again and again, on the terminal's other screen; elsewhere once, at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if once or not console.is_terminal:
        if not once:
            await stop.wait()
        console.print(_picture(await snapshot(app), app.place))
        return
    first = _picture(await snapshot(app), app.place)
    with Live(first, console=console, screen=True, auto_refresh=False) as screen:
        while not stop.is_set():
            screen.update(_picture(await snapshot(app), app.place), refresh=True)
            await _pause(stop, interval_s)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _picture(told: TopView, place: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(*columns: str) -> Table:
        made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=False)
        for column in columns:
            side: Literal["left", "right"] = "right" if column in _NUMBERS else "left"
            made.add_column(column, no_wrap=True, overflow="ellipsis", justify=side)
        return made

    def add(to: Table, *values: object, style: str = "") -> None:
        to.add_row(*(Text(printable(str(value), one_line=True)) for value in values), style=style)

    queues = table("queue", *COUNTS, "oldest")
    for queue in filter(worth_showing, told.queues):
        counts = (f"{getattr(queue, name):,}" for name in COUNTS)
        add(queues, queue.name, *counts, show_age(queue.oldest_age_ms))
    workers = table("worker", "health", "running", "done", "failed", "heartbeat")
    colours = {"healthy": "green", "degraded": "yellow", "unhealthy": "red"}
    for worker in told.workers:
        add(
            workers,
            worker.name,
            worker.health + (" cordoned" if worker.cordoned else ""),
            f"{worker.running}/{worker.capacity}",
            worker.done,
            worker.failed,
            f"{show_age(worker.heartbeat_age_ms)} ago",
            style=colours.get(worker.health, ""),
        )
    jobs = table("running", "queue", "attempt", "progress", "worker")
    for job in told.jobs:
        progress = "" if job.progress is None else f"{job.progress:.0%}"
        add(jobs, job.does, job.queue, job.attempt, progress, job.worker or "")
    title = Text(f"holdfast on {printable(place, one_line=True)}", style="bold")
    return Group(title, Text(), queues, Text(), workers, Text(), jobs)
