"""Output of commands: JSON in pure ASCII, text without control characters, and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, TextIO

from cyclopts import Parameter

from holdfast.core.text import printable
from holdfast.errors import HoldfastError, NotFound, UnknownQueue, UsageError

_WIDTH_MAX = 10_000
_NARROW = 12


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Common:
    """The flags of every command."""

    url: Annotated[
        str | None,
        Parameter(
            metavar="URL",
            help="Store or server that holds the jobs, e.g. sqlite:///work.db.",
        ),
    ] = None
    json: Annotated[bool, Parameter(help="Print only JSON.", negative=())] = False


COMMON = Common()


class Exit(IntEnum):
    """The exit codes that scripts can rely on; `docs/cli.md` has the same table."""

    DONE = 0
    FAILED = 1
    """The engine failed, or part of the work was not done."""
    USAGE = 2
    """The command line, a value or a setting is wrong; nothing was changed."""
    NOT_FOUND = 3
    """No such job, queue, worker, schedule or setting."""
    UNDONE = 4
    """The awaited job ended dead or cancelled."""
    WAITING = 5
    """The awaited job did not end in time; it continues."""
    INTERRUPTED = 130
    """Ctrl-C."""


class Declined(HoldfastError):
    """The user did not confirm: nothing was changed."""

    code = "declined"


def exit_for(error: HoldfastError) -> Exit:
    """The exit code of an error."""
    match error:
        case NotFound() | UnknownQueue():
            return Exit.NOT_FOUND
        case UsageError():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def say(text: str) -> None:
    """Print a note for people on standard error."""
    print(printable(text, one_line=True), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one line with all non-ASCII characters escaped, so that it is safe to display."""
    print(json.dumps(value, ensure_ascii=True), flush=True)


def print_either(view: Any, text: str, common: Common) -> None:
    """Print the view with --json, otherwise the text."""
    if common.json:
        print_json(view)
    else:
        print(printable(text, one_line=True), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, numbers aligned right. It may be wider than the terminal: columns of two
    letters would be unreadable."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text, because rich reads a plain string as markup.
    cells = [[Text(printable(str(value), one_line=True)) for value in row] for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    needed = 0
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int) for row in rows)
        # The first column names the row: people copy it, so it is never wrapped.
        unwrapped = numeric or at == 0
        widest = max([len(column), *(row[at].cell_len for row in cells)])
        narrowest = widest if unwrapped else min(widest, _NARROW)
        needed += narrowest + 2
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=unwrapped,
            min_width=narrowest,
        )
    for row in cells:
        table.add_row(*row)
    console = Console(highlight=False)
    console.width = max(console.width, needed) if sys.stdout.isatty() else _WIDTH_MAX
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def show_age(ms: int | None) -> str:
    """A duration in at most two units: 840ms, 12.5s, 3m 20s, 5h 7m, 12d 3h."""
    if ms is None:
        return ""
    if ms < 1_000:
        return f"{max(ms, 0)}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error if that is a terminal. Call it with each increment."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    with bar:
        id_ = bar.add_task(what, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(id_, count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(id_, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


def new_private_file(path: str) -> TextIO:
    """A new file that only its owner can read, for what may be confidential. UsageError if it
    exists or cannot be created."""
    try:
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists and is not overwritten: give a new path") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    return os.fdopen(number, "w", encoding="ascii")
