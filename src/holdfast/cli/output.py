"""Output of commands: JSON in pure ASCII, text without control characters, and exit codes."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, TextIO

from cyclopts import Parameter

from holdfast.cli.terminal.screen import can_draw, has_colour, make_console, print_paged
from holdfast.core.text import not_written, printable
from holdfast.errors import HoldfastError, NotFound, UnknownQueue, UsageError

TONES = {
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "red",
    "done": "green",
    "failed": "yellow",
    "dead": "red",
    "warning": "yellow",
    "critical": "red",
}
_CODES = {"red": 31, "green": 32, "yellow": 33}
_TONED = ("state", "health", "alert")
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
    whole: Sequence[str] = (),
) -> None:
    """Print a table, numbers aligned right. At a terminal it is not wider than that: columns
    without content are dropped first, then those of `less` and the last ones; long texts are cut
    with an ellipsis, and those of the columns `prose` are wrapped between words. Columns of
    `whole` are never cut, and neither is the first one: it names the row, and people copy it. A
    table that is longer than the terminal is shown by a pager.
    """
    from rich.cells import cell_len

    cells = [[printable(str(value), one_line=True) for value in row] for row in rows]
    is_terminal = sys.stdout.isatty()
    sizes = [
        _ColumnSize(
            name=name,
            widest=max([len(name), *(cell_len(row[at]) for row in cells)]),
            is_number=bool(rows) and all(isinstance(row[at], int) for row in rows),
            is_empty=not any(row[at] for row in rows),
            is_whole=name in whole,
        )
        for at, name in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns if is_terminal else _WIDTH_MAX
    widths = _fitting_widths(sizes, room, less)
    numbers = {at for at in widths if sizes[at].is_number}
    wrapped = {at for at in widths if columns[at] in prose}
    toned = {at for at in widths if columns[at] in _TONED}
    header = next(_lines(columns, widths, numbers, set()))
    lines = [header]
    if has_colour(sys.stdout):
        lines = [f"\033[1m{header}\033[0m"]
    else:
        toned = set()
    for row in cells:
        lines += _lines(row, widths, numbers, wrapped, toned)
    print_paged("\n".join(lines))


def _lines(
    cells: Sequence[str],
    widths: dict[int, int],
    numbers: set[int],
    wrapped: set[int],
    toned: Collection[int] = (),
) -> Iterator[str]:
    """The lines of one row of a table, with colours in the columns `toned`."""
    from rich.cells import cell_len, set_cell_size

    def fitting(text: str, width: int) -> str:
        return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"

    def padded(at: int, text: str) -> str:
        text = fitting(text, widths[at])
        spaces = " " * (widths[at] - cell_len(text))
        if at in toned:
            text = _coloured(text)
        return spaces + text if at in numbers else text + spaces

    texts = [
        _wrapped(cells[at], width) if at in wrapped else [cells[at]] for at, width in widths.items()
    ]
    for line in itertools.zip_longest(*texts, fillvalue=""):
        shown = (padded(at, text) for at, text in zip(widths, line, strict=True))
        yield (" " * _GAP).join(shown).rstrip()


def _coloured(text: str) -> str:
    """A state or health in its colour."""
    tone = TONES.get(re.split(r"\W", text, maxsplit=1)[0])
    return text if tone is None else f"\033[{_CODES[tone]}m{text}\033[0m"


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of this many cells, broken between words."""
    from rich.cells import cell_len

    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


class _ColumnSize(NamedTuple):
    name: str
    widest: int
    is_number: bool
    is_empty: bool
    is_whole: bool = False

    @property
    def narrowest(self) -> int:
        if self.is_number or self.is_whole:
            return self.widest
        return min(self.widest, max(_NARROW, len(self.name)))


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


def show_percent(fraction: float | None) -> str:
    """A fraction as "93 %"; not 100 % before everything is done."""
    # The small number makes up for fractions such as 0.29, which is stored as a little less.
    return "" if fraction is None else f"{math.floor(fraction * 100 + 1e-9)} %"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error if that is a terminal. Call it with each increment."""
    if not can_draw(sys.stderr):
        yield lambda _count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=make_console(sys.stderr),
        transient=True,
    )
    with bar:
        id_ = bar.add_task(what, total=total, rate="", share="")

        def advance(count: int) -> None:
            bar.advance(id_, count)
            task = bar.tasks[0]
            speed = task.finished_speed or task.speed
            share = show_percent(min(task.completed / total, 1)) if total else ""
            bar.update(id_, rate=f"{speed:,.0f}/s" if speed else "", share=share)

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
