"""Text for people: escaped hostile text, counts with plurals, durations."""

from __future__ import annotations

import unicodedata

UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
"""The units of a duration, in milliseconds."""
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str, *, one_line: bool = False) -> str:
    """The text with control and invisible characters escaped, such as \\x1b, so that the output of
    a job cannot control a terminal."""
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


def show_ms(ms: int) -> str:
    """A duration as its shortest exact text, such as 250ms, 30s or 2h."""
    for unit in ("w", "d", "h", "m", "s"):
        if ms and ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]}{unit}"
    return f"{ms}ms"
