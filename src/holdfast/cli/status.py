"""`holdfast status` and `holdfast top`: queues, workers and running jobs, once or live."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.app.application import Holdfast
from holdfast.cli.breakers import print_breakers
from holdfast.cli.flags import option, switch
from holdfast.cli.gates import print_gates
from holdfast.cli.help_pages import program
from holdfast.cli.output import (
    COMMON,
    TONES,
    Common,
    print_json,
    print_table,
    say,
    show_age,
    show_percent,
)
from holdfast.cli.redrives import print_redrives
from holdfast.cli.session import open_app
from holdfast.cli.terminal.screen import can_draw, make_console
from holdfast.core.breaker import BreakerState
from holdfast.core.explain import ABSENT_MS, serves
from holdfast.core.model import JobFilter, QueueView, State
from holdfast.core.text import printable
from holdfast.engines.base import NO_RECORDS
from holdfast.engines.extras import Partitioned, extra
from holdfast.errors import UsageError
from holdfast.notation.durations import to_ms
from holdfast.ops.alerts import AlertView, alert_views
from holdfast.ops.queues import COUNTS, QueueCounts, queue_counts, worth_showing
from holdfast.ops.status import StoreStatus, TopView, read_status, status_view, top_view
from holdfast.ops.views import plain
from holdfast.ops.workers import Workers, WorkerView, worker_details

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_JOBS = 15
_KEYS_MAX = 64
"""Bytes of one read of the keyboard."""
_STATUS_COUNTS = ("ready", "delayed", "failed", "blocked", "leased", "overdue", "done", "dead")
_NUMBERS = (*COUNTS, "failed", "attempt", "progress")
_KEYS_SHORT = "q quits · ? shows the keys"
_KEYS = "q quits · p pauses or continues · s sorts queues by ready jobs or by name · ? hides this"


async def status(*, common: Common = COMMON) -> None:
    """Show queues, workers, alerts, redrives and gates."""
    async with open_app(common) as app:
        found = await read_status(app.engine)
        partitioned = extra(app.engine, Partitioned)
        partitions = [] if partitioned is None else partitioned.partitions()
    for each in partitions:
        if each.out_ms is not None:
            age = show_age(each.out_ms)
            say(f"partition {each.name} has been shut out for {age}, with its jobs: {each.text}")
    if common.json:
        print_json(plain(status_view(found)))
        return
    views, workers = found.queues, found.workers
    if found.alerts:
        print_alerts(alert_views(found.alerts))
        print()
    print_counts(visible_queues(views), found)
    print()
    if workers:
        print_workers(workers)
        for name in unserved(views, workers):
            start = f"{program()} worker start --queues {name}"
            say(f'queue {name} has ready jobs and no worker: start one with "{start}"')
    elif app.engine.traits.records:
        say_no_worker()
    else:
        say(f"workers, breakers, gates and alerts are not shown: {NO_RECORDS}")
    open_breakers = {
        key: each
        for key, each in found.breakers.items()
        if each.record.state is not BreakerState.CLOSED
    }
    if open_breakers:
        print()
        print_breakers(open_breakers)
    if found.redrives:
        print()
        print_redrives(found.redrives)
    if found.gates:
        print()
        print_gates(found.gates)


async def top(
    *,
    interval: Annotated[str, option("DURATION", "Refresh this often.")] = "1s",
    once: Annotated[bool, switch("Print once and exit.")] = False,
    common: Common = COMMON,
) -> None:
    """Watch queues, workers and running jobs live.

    q or Ctrl-C quits, p pauses the display, s sorts the queues by ready jobs or by name, and ?
    shows the keys. Without a terminal it prints once. With --json it prints a line at every
    refresh.
    """
    interval_s = max(to_ms("--interval", interval, UsageError) / 1000, 0.1)
    async with open_app(common) as app:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if common.json:
            while not stop.is_set():
                print_json(plain(await snapshot(app)))
                if once:
                    return
                await _pause(interval_s, stop)
        else:
            await draw_live(app, stop, interval_s=interval_s, once=once or not can_draw(sys.stdout))


async def snapshot(app: Holdfast) -> TopView:
    """Read the queues, workers and running jobs that `top` shows; without those that the store
    cannot list."""
    views = await app.queues()
    traits = app.engine.traits
    workers = await Workers(app.engine).all() if traits.records else []
    if not traits.inspect:
        return top_view(views, workers, ())
    page = await app.find(JobFilter(states=(State.LEASED,)), limit=_JOBS)
    # A list has no progress: only a complete job does.
    jobs = await asyncio.gather(*(app.get(job.id) for job in page.jobs))
    running = [job for job in jobs if job is not None and job.state is State.LEASED]
    return top_view(views, workers, running)


async def draw_live(
    app: Holdfast,
    stop: asyncio.Event,
    *,
    interval_s: float,
    once: bool = False,
    place: str | None = None,
) -> None:
    """Draw `top` on the terminal's alternate screen until `stop`, or until a person quits, which
    sets it; without a terminal, once. `place` is shown in the title, by default the place of the
    store."""
    from rich.live import Live

    display = _Display(place or app.place, stop)
    console = make_console(sys.stdout)
    if once or not can_draw(sys.stdout):
        if not once:
            await stop.wait()
        console.print(display.rendered(await snapshot(app)))
        return
    view = await _unless_stopped(snapshot(app), stop)
    with (
        _read_keys(display.press) as display.has_keys,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        while view is not None:
            screen.update(display.rendered(view), refresh=True)
            await _pause(interval_s, stop, display.pressed)
            display.pressed.clear()
            if not display.paused:
                view = await _unless_stopped(snapshot(app), stop)
            if stop.is_set():
                return


@contextmanager
def _read_keys(act: Callable[[str], None]) -> Iterator[bool]:
    """Call `act` with each key, without Enter, while the block runs; yields whether there are keys
    to read.

    The terminal is set back however the block ends. It stays as it is if standard input is not a
    terminal, or belongs to another program in the foreground. Ctrl-C still interrupts.
    """
    descriptor = _own_terminal()
    if descriptor is None:
        yield False
        return
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(BlockingIOError):
            data = os.read(descriptor, _KEYS_MAX)
            if not data:
                # The terminal is gone.
                loop.remove_reader(descriptor)
            # An arrow or function key is one sequence that begins with Escape.
            for key in "" if data.startswith(b"\x1b") else data.decode(errors="ignore"):
                act(key)

    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        loop.add_reader(descriptor, read)
        yield True
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _own_terminal() -> int | None:
    """The descriptor of standard input, if it is a terminal that this process may read."""
    try:
        descriptor = sys.stdin.fileno()
        if os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp():
            return descriptor
    except (OSError, ValueError, AttributeError):
        pass
    return None


async def _unless_stopped(
    coroutine: Coroutine[Any, Any, TopView], stop: asyncio.Event
) -> TopView | None:
    """The result, or None if `stop` comes first: a store that does not answer must not keep a
    person from quitting."""
    reading = asyncio.ensure_future(coroutine)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        reading.cancel()
        return None
    return await reading


class _Display:
    """The view of `top`, and the keys that change it."""

    def __init__(self, place: str, stop: asyncio.Event) -> None:
        self._place = place
        self._stop = stop
        self._by_name = True
        self._helps = False
        self.has_keys = False
        self.paused = False
        self.pressed = asyncio.Event()

    def press(self, key: str) -> None:
        """Do what a key says."""
        match key.lower():
            case "q":
                self._stop.set()
            case "p":
                self.paused = not self.paused
            case "s":
                self._by_name = not self._by_name
            case "?":
                self._helps = not self._helps
            case _:
                return
        self.pressed.set()

    def rendered(self, view: TopView) -> RenderableType:
        """The screen."""
        from rich.console import Group
        from rich.text import Text

        queues = list(filter(worth_showing, view.queues))
        if not self._by_name:
            queues.sort(key=lambda queue: (-queue.ready, queue.name))
        parts = [_rendered(queues, view, self._place)]
        if self.has_keys:
            state = "paused · " if self.paused else ""
            parts += [Text(), Text(state + (_KEYS if self._helps else _KEYS_SHORT), style="dim")]
        return Group(*parts)


def visible_queues(views: list[QueueView]) -> list[QueueView]:
    """The queues to show to people; --json prints all."""
    return [view for view in views if worth_showing(queue_counts(view))]


def unserved(views: list[QueueView], workers: list[WorkerView]) -> list[str]:
    """Queues with ready jobs that no current worker serves."""
    present = [each.record for each in workers if each.age_ms <= ABSENT_MS]
    waiting = [view.queue.name for view in views if view.ready and not view.queue.paused]
    return [name for name in waiting if not any(serves(each, name) for each in present)]


def print_alerts(alerts: Sequence[AlertView]) -> None:
    """Print alerts as a table."""
    rows = [(each.severity, each.rule, each.text, f"since {each.raised_at}") for each in alerts]
    print_table(("alert", "rule", "what", "when"), rows, less=("when",), prose=("what",))
    if any(each.stale for each in alerts):
        say("some alerts may be out of date: only a running server checks them")


def print_counts(views: list[QueueView], status: StoreStatus | None = None) -> None:
    """Print the counts of queues as a table; those of failed jobs come from the status."""
    columns = COUNTS if status is None else _STATUS_COUNTS
    rows = [
        (
            view.queue.name + queue_state(view, " ({})"),
            *(
                _failed(view, status) if name == "failed" else count_of(view, name)
                for name in columns
            ),
            show_age(view.oldest_age_ms),
        )
        for view in views
    ]
    print_table(("queue", *columns, "oldest"), rows, less=("overdue", "blocked", "oldest"))


def _failed(view: QueueView, status: StoreStatus | None) -> int | str:
    if status is None or status.failed is None:
        return ""
    count = status.failed.get(view.queue.name, 0)
    return f"{count}+" if count and status.failed_more else count


def print_workers(workers: list[WorkerView]) -> None:
    """Print workers as a table."""
    rows = []
    for each in workers:
        view = worker_details(each)
        marks = [mark for mark in ("cordoned", "stopping") if getattr(view, mark)]
        rows.append(
            (
                view.name,
                ", ".join([view.health, *marks]),
                f"{view.running}/{view.capacity}",
                view.done,
                view.failed,
                " ".join(view.queues),
                f"{view.host}:{view.pid}",
                f"{show_age(each.age_ms)} ago",
                view.why,
            )
        )
    columns = ("worker", "health", "running", "done", "failed", "queues", "where", "heard", "why")
    print_table(columns, rows, less=("where", "done", "failed", "heard"), prose=("why",))


def say_no_worker() -> None:
    """Say how to start a worker."""
    say(f'there are no workers: start one with "{program()} worker start"')


def count_of(view: QueueView, name: str) -> int | str:
    """A count, with a plus if it is a lower bound."""
    count: int = getattr(view, name)
    return f"{count}+" if name in view.estimated else count


def queue_state(view: QueueView, shape: str = "{}") -> str:
    """ "paused", "closed" or both; "" for a queue that is open."""
    states = ["paused"] if view.queue.paused else []
    states += [] if view.queue.accepting else ["closed"]
    return shape.format(", ".join(states)) if states else ""


async def _pause(seconds: float, *events: asyncio.Event) -> None:
    """Wait for one of the events, at most this long."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()


def _rendered(shown: list[QueueCounts], view: TopView, place: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    queues = _table("queue", *COUNTS, "oldest")
    for queue in shown:
        counts = (f"{getattr(queue, name):,}" for name in COUNTS)
        _add(queues, queue.name, *counts, show_age(queue.oldest_age_ms))
    workers = _table("worker", "health", "running", "done", "failed", "heartbeat")
    for worker in view.workers:
        _add(
            workers,
            worker.name,
            worker.health + (" cordoned" if worker.cordoned else ""),
            f"{worker.running}/{worker.capacity}",
            worker.done,
            worker.failed,
            f"{show_age(worker.heartbeat_age_ms)} ago",
            style=TONES.get(worker.health, ""),
        )
    jobs = _table("running", "queue", "attempt", "progress", "worker")
    for job in view.jobs:
        _add(
            jobs,
            job.does,
            job.queue,
            job.attempt,
            show_percent(job.progress),
            job.worker or "",
        )
    title = Text(f"holdfast on {printable(place, one_line=True)}", style="bold")
    return Group(title, Text(), queues, Text(), workers, Text(), jobs)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column in _NUMBERS else "left"
        table.add_column(column, no_wrap=True, overflow="ellipsis", justify=side)
    return table


def _add(table: Table, *values: object, style: str = "") -> None:
    from rich.text import Text

    cells = (Text(printable(str(value), one_line=True)) for value in values)
    table.add_row(*cells, style=style)
