"""Hostile text made fit to be shown: a terminal must not be driven by what a job printed."""

from __future__ import annotations

import unicodedata

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with everything that is not seen written out, such as \\x1b."""
    kept = "" if one_line else "\n\t"
    return "".join(
        char if char in kept or unicodedata.category(char) not in _UNSEEN else _escaped(char)
        for char in text
    )


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
