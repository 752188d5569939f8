"""Output of commands: JSON in pure ASCII, text without control characters, and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, TextIO

from cyclopts import Parameter

from holdfast.core.text import not_written, printable
from holdfast.errors import HoldfastError, NotFound, UnknownQueue, UsageError

_WIDTH_MAX = 10_000
_NARROW = 12
_GAP = 2


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


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    less: Sequence[str] = (),
    prose: Sequence[str] = (),
) -> None:
    """Print a table, numbers aligned right. At a terminal it is not wider than that: columns
    without content are dropped first, then those of `less` and the last ones; long texts are cut
    with an ellipsis, and those of the columns `prose` are wrapped between words. The first column
    names the row: people copy it, so it is never cut.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text, because rich reads a plain string as markup.
    cells = [[Text(printable(str(value), one_line=True)) for value in row] for row in rows]
    console = Console(highlight=False)
    console.width = console.width if sys.stdout.isatty() else _WIDTH_MAX
    sizes = [
        _ColumnSize(
            name=name,
            widest=max([len(name), *(row[at].cell_len for row in cells)]),
            is_number=bool(rows) and all(isinstance(row[at], int) for row in rows),
            is_empty=not any(row[at] for row in rows),
        )
        for at, name in enumerate(columns)
    ]
    widths = _fitting_widths(sizes, console.width, less)
    console.width = max(console.width, sum(widths.values()) + _GAP * len(widths))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for at, width in widths.items():
        table.add_column(
            columns[at],
            justify="right" if sizes[at].is_number else "left",
            overflow="ellipsis",
            no_wrap=columns[at] not in prose,
            width=width,
        )
    for row in cells:
        table.add_row(*(row[at] for at in widths))
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


class _ColumnSize(NamedTuple):
    name: str
    widest: int
    is_number: bool
    is_empty: bool

    @property
    def narrowest(self) -> int:
        return self.widest if self.is_number else min(self.widest, max(_NARROW, len(self.name)))


def _fitting_widths(
    sizes: Sequence[_ColumnSize], width: int, less: Sequence[str]
) -> dict[int, int]:
    """The columns to show, by position, and their widths."""

    def room(taken: Iterable[int]) -> int:
        """The columns left over; the last column needs no gap."""
        every = list(taken)
        return width - sum(every) - _GAP * (len(every) - 1)

    shown = dict(enumerate(size.widest for size in sizes))
    least = {at: size.narrowest for at, size in enumerate(sizes)} | {0: sizes[0].widest}
    if room(shown.values()) >= 0:
        return shown
    for at in _by_importance(sizes, less):
        # An empty column is dropped before anything is cut.
        too_wide = shown if sizes[at].is_empty else {each: least[each] for each in shown}
        if room(too_wide.values()) < 0:
            del shown[at]
    while room(shown.values()) < 0:
        widest = max(shown, key=lambda at: (shown[at] > least[at], shown[at]))
        if shown[widest] <= least[widest]:
            break
        shown[widest] -= 1
    return shown


def _by_importance(sizes: Sequence[_ColumnSize], less: Sequence[str]) -> list[int]:
    """The positions of all columns but the first, in the order in which they are dropped."""

    def rank(at: int) -> tuple[bool, int, int]:
        name = sizes[at].name
        return (
            not sizes[at].is_empty,
            less.index(name) if name in less else len(less),
            -at,
        )

    return sorted(range(1, len(sizes)), key=rank)


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
        raise UsageError(not_written(path, error)) from None
    return os.fdopen(number, "w", encoding="ascii")
