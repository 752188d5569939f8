"""What reaches the terminal: JSON that is pure ASCII, or text without a single control byte."""

from __future__ import annotations

import json
import logging
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Common:
    """What every command takes."""

    url: Annotated[str | None, Parameter(help="Where the jobs are.", env_var="HOLDFAST_URL")] = None
    json: Annotated[bool, Parameter(help="Print JSON alone.", negative=())] = False


COMMON = Common()


def program() -> str:
    """What a person types to run this: `./hf` in a clone, else `holdfast`."""
    return printable(os.environ.get("HOLDFAST_COMMAND") or "holdfast", one_line=True)


def print_json(value: Any) -> None:
    """One line, every character beyond ASCII escaped, so that no terminal can be driven by it."""
    print(json.dumps(value, ensure_ascii=True), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for at, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(
            column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in rows:
        # As Text, because a plain string would be read as markup.
        table.add_row(*(Text(printable(str(value), one_line=True)) for value in row))
    Console(highlight=False).print(table)


def printable(text: str, *, one_line: bool = False) -> str:
    """Hostile text with everything that is not seen written out, such as \\x1b."""
    kept = "" if one_line else "\n\t"
    return "".join(
        char if char in kept or unicodedata.category(char) not in _UNSEEN else _escaped(char)
        for char in text
    )


class PrintableFormatter(logging.Formatter):
    """Log lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
