"""What reaches the terminal: JSON that is pure ASCII, or text without a single control byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.core.text import printable

_WIDTH_MAX = 10_000
_NARROW = 12


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Common:
    """What every command takes."""

    url: Annotated[str | None, Parameter(help="Where the jobs are: sqlite:///work.db.")] = None
    json: Annotated[bool, Parameter(help="Print JSON alone.", negative=())] = False


COMMON = Common()


def say(text: str) -> None:
    """A line for a person, beside what was asked for."""
    print(printable(text, one_line=True), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One line, every character beyond ASCII escaped, so that no terminal can be driven by it."""
    print(json.dumps(value, ensure_ascii=True), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Numbers to the right; as wide as it must be, also where the terminal is narrower: cells of
    two letters a line help nobody."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text, because a plain string would be read as markup.
    cells = [[Text(printable(str(value), one_line=True)) for value in row] for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    needed = 0
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int) for row in rows)
        # The first names the row: whoever copies it wants it whole.
        whole = numeric or at == 0
        widest = max([len(column), *(row[at].cell_len for row in cells)])
        narrowest = widest if whole else min(widest, _NARROW)
        needed += narrowest + 2
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=whole,
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
    """How long, to two units at most: 840ms, 12.5s, 3m 20s, 5h 7m, 12d 3h."""
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
