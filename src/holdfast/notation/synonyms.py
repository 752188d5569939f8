"""Suggestions for unknown names: the name here of what other queues call otherwise, or else a name
that is spelled alike. Options in Python, JSON fields, HTTP bodies and flags share the table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS: dict[str, tuple[str, ...]] = {
    "acks_late": (),
    "actor_name": ("name",),
    "at_front": ("priority",),
    "autoretry_for": ("retry_on",),
    "bind": (),
    "countdown": ("delay",),
    "cron": (),
    "dead_deadline": ("expires",),
    "default_retry_delay": ("backoff",),
    "defer": ("delay",),
    "defer_by": ("delay",),
    "defer_until": ("run_at",),
    "depends_on": ("after",),
    "eta": ("run_at",),
    "failure_ttl": ("dead_retention",),
    "items": ("jobs", "verdicts", "renewals"),
    "job_id": ("id",),
    "max_retries": ("max_attempts",),
    "max_tries": ("max_attempts",),
    "messages": ("jobs", "verdicts", "renewals"),
    "pass_context": (),
    "queueing_lock": ("key",),
    "rate_limit": ("rate", "limits"),
    "result_ttl": ("retention",),
    "retries": ("max_attempts",),
    "retry_delay": ("backoff",),
    "retry_jitter": ("backoff",),
    "soft_time_limit": ("timeout",),
    "task_id": ("id",),
    "throws": ("give_up_on",),
    "time_limit": ("timeout",),
    "ttl": ("expires",),
    "unique": ("key",),
    "visibility_timeout": ("lease",),
}
"""The names that other queues give an option, with its names here, of which the first known one is
suggested. Without a name here there is no such option."""

_EXPLAINED = dict.fromkeys(("max_retries", "retries"), ", which counts the first attempt too")
_CONTEXT = "a handler gets the running job by a parameter ctx: Context"
_RETENTION = 'a queue has a retention: see "holdfast queue update"'
_ELSEWHERE = {
    "acks_late": "leave it out, because a job always ends after its handler",
    "bind": _CONTEXT,
    "cron": 'only schedules have a rule: @app.schedule(cron=…), or "holdfast schedule add"',
    "failure_ttl": _RETENTION,
    "pass_context": _CONTEXT,
    "result_ttl": _RETENTION,
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
