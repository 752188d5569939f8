"""Suggestions for unknown names: the name here of what other queues call otherwise, or else a name
that is spelled alike. Options in Python, JSON fields, HTTP bodies and flags share the table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS: dict[str, tuple[str, ...]] = {
    "countdown": ("delay",),
    "dead_deadline": ("expires",),
    "defer": ("delay",),
    "defer_by": ("delay",),
    "defer_until": ("run_at",),
    "depends_on": ("after",),
    "eta": ("run_at",),
    "items": ("jobs", "verdicts", "renewals"),
    "max_retries": ("max_attempts",),
    "max_tries": ("max_attempts",),
    "messages": ("jobs", "verdicts", "renewals"),
    "rate_limit": ("rate", "limits"),
    "retries": ("max_attempts",),
    "ttl": ("expires",),
    "visibility_timeout": ("lease",),
}
"""The names that other queues give an option, with its names here, of which the first known one is
suggested."""

_EXPLAINED = dict.fromkeys(("max_retries", "retries"), ", which counts the first attempt too")
_ELSEWHERE = {
    "rate_limit": 'a task has a rate, such as rate="100/m", and a queue has limits: see'
    ' "holdfast queue limit"',
}
READ_ONLY = ("state", "attempts", "created_at", "updated_at")
"""Fields of a printed job that a new job cannot have: the queue sets them."""


def ignored_note(names: Iterable[str]) -> str:
    """The note for these fields of pasted jobs, which were ignored; "" if there are none."""
    ignored = ", ".join(sorted(names))
    return f"ignored {ignored}: the queue sets such fields itself" if ignored else ""


def suggestion(wrong: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant; None if none of the known ones fits."""
    names = list(known)
    meant = SYNONYMS.get(wrong)
    if meant is not None:
        return next((name for name in meant if name in names), None)
    close = difflib.get_close_matches(wrong, names, 1)
    return close[0] if close else None


def remedy(wrong: str, known: Iterable[str], shape: str = "{}") -> str:
    """The remedy for an unknown name, e.g. "did you mean after?"; "" if no known name is like it.
    `shape` formats the suggested name."""
    meant = suggestion(wrong, known)
    if meant is None:
        return _ELSEWHERE.get(wrong, "")
    return f"did you mean {shape.format(meant)}{_EXPLAINED.get(wrong, '')}?"
