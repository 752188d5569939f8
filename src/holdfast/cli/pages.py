"""The help of every command as text, so that help is there before a parser could be loaded.

A test compares them with what the parser prints, and says how to write them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).with_name("help")


def page(command: Sequence[str]) -> str | None:
    """The help of a command, such as `queue create`; None when there is no such command."""
    if not all(word.isalpha() for word in command):
        return None
    path = FOLDER / f"{'-'.join(['holdfast', *command])}.txt"
    return path.read_text() if path.exists() else None


def write() -> None:
    from holdfast.cli.root import helps

    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for command, text in helps().items():
        (FOLDER / f"{'-'.join(['holdfast', *command])}.txt").write_text(text)
