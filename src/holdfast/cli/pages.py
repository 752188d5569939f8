"""The help of every command as text, so that help is there before a parser could be loaded.

A test compares them with what the parser prints, and says how to write them anew.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).with_name("help")
NAME = "holdfast"
_SAME = ("holdfast", "queuectl")


def program() -> str:
    """What a person types to run this: `./hf` in a clone, else the name it was started by."""
    given = os.environ.get("HOLDFAST_COMMAND", "")
    if given and given.isprintable():
        return given
    name = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 (pathlib is slower)
    return name if name in _SAME else NAME


def asked(arguments: Sequence[str]) -> str | None:
    """The help that --help asks for, wherever it stands before `--`, or a group's name alone."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    line = [word for word in arguments[:end] if word != "--json"]
    if "--help" not in line and "-h" not in line:
        return page(line) if line == list(arguments) and _is_group(line) else None
    flags = [at for at, word in enumerate(line) if word.startswith("-")]
    words = line[: flags[0]]
    if len(words) < 2 or not _is_group(words[:1]):
        return page(words[:1])
    return page(words[:2])


def _is_group(words: Sequence[str]) -> bool:
    return len(words) == 1 and words[0].isalpha() and any(FOLDER.glob(f"{NAME}-{words[0]}-*.txt"))


def page(command: Sequence[str]) -> str | None:
    """The help of a command, such as `queue create`; None when there is no such command."""
    if not all(word.replace("-", "").isalpha() for word in command):
        return None
    path = FOLDER / f"{'-'.join([NAME, *command])}.txt"
    return named(path.read_text()) if path.exists() else None


def named(text: str) -> str:
    """Help in which the program has the name it was started by."""
    return re.sub(rf"\b{NAME}(?=\s)", lambda _match: program(), text)


def write() -> None:
    from holdfast.cli.root import helps

    # Made before any is removed: one that cannot be made must not take the others with it.
    told = helps()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for command, text in told.items():
        (FOLDER / f"{'-'.join([NAME, *command])}.txt").write_text(text)
