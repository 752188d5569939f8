"""Before much is changed: the flags for it, the question that is asked first, where it is kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.exits import Declined
from holdfast.core.text import printable
from holdfast.errors import UsageError

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], help="Do not ask.", negative=())]
DryRun = Annotated[bool, Parameter(help="Say what would be done, and do nothing.", negative=())]
All = Annotated[bool, Parameter(help="Mean every one of them.", negative=())]


def sure(question: str, *, yes: bool) -> None:
    """Return when a person agrees, with --yes or at the terminal; else raise.

    Where nobody can be asked, nothing is done without --yes. The question goes to stderr: stdout
    is for what was asked for.
    """
    if yes:
        return
    if not can_ask():
        raise UsageError(f"{question} Nobody can be asked here: say --yes if you are sure")
    print(f"{printable(question, one_line=True)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was changed")


def archive_at(path: Path | None) -> str | None:
    """Where finished jobs are kept. Known to be impossible now, and not at night."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--archive {path}: there is no folder {path.absolute().parent}")
    return None if path is None else str(path.absolute())


def can_ask() -> bool:
    """Is there a person at the terminal?"""
    return bool(sys.stdin and sys.stdin.isatty())
