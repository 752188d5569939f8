"""Text for people: what is hostile made fit to be shown, and how many there are of a thing."""

from __future__ import annotations

import unicodedata

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with everything that is not seen written out, such as \\x1b: a terminal must not be
    driven by what a job printed."""
    kept = "" if one_line else "\n\t"
    return "".join(
        char if char in kept or unicodedata.category(char) not in _UNSEEN else _escaped(char)
        for char in text
    )


def counted(count: int, noun: str) -> str:
    """1 job, 2 jobs, 1,000 jobs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
