"""Logs of handlers: the job on every record, and the format and level that the worker chose.

The context variable `CURRENT` tells which call is running, in threads and in coroutines that run
concurrently; a thread that a handler starts itself has none. Log lines go to standard error, from
where they are copied to the output of their job.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.process import JobFormatter, JsonFormatter, LogFormat, LogLevel, set_root_log
from holdfast.worker.child.printed import CURRENT

_OUTSIDE = {"job_id": "", "attempt": 0, "task": "", "queue": ""}
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def current_job() -> dict[str, Any]:
    """The id, attempt, task and queue of the job that runs in this context; empty outside of jobs.
    For a batch they are those of its first job."""
    attempt = CURRENT.get()
    if attempt is None:
        return {}
    job = attempt.jobs[0]
    return {
        "job_id": job.id,
        "attempt": job.attempt,
        "task": attempt.task,
        "queue": job.queue,
    }


class AttemptFilter(logging.Filter):
    """Adds `job_id`, `attempt`, `task` and `queue` of the running job to log records, where a
    format can use them; they are empty outside of jobs. A worker adds it to every log handler that
    the application set up when it was imported."""

    def filter(self, record: logging.LogRecord) -> bool:
        # Not a record factory: that would make `extra={"task": …}` an error.
        for name, value in (current_job() or _OUTSIDE).items():
            record.__dict__.setdefault(name, value)
        return True


def set_up_logs(log_format: LogFormat | None, log_level: LogLevel | None) -> None:
    """Called when the application was imported. Logging that it set up itself is left alone,
    unless the worker has a format or a level; records have the job in either case."""
    if log_format is not None or log_level is not None or not any(_log_handlers()):
        json = log_format == "json"
        added = logging.StreamHandler(sys.stderr)
        added.setFormatter(JsonFormatter() if json else JobFormatter(_LINE))
        set_root_log(added, log_level or "info", force=True)
    add_filters()


def add_filters() -> None:
    """Let the records of every log handler have the job."""
    for handler in _log_handlers():
        if not any(isinstance(each, AttemptFilter) for each in handler.filters):
            handler.addFilter(AttemptFilter())


def _log_handlers() -> Iterator[logging.Handler]:
    """The handlers of all loggers, without those that write nothing."""
    named = list(logging.Logger.manager.loggerDict.values())
    loggers = [each for each in named if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *loggers):
        for handler in logger.handlers:
            if not isinstance(handler, logging.NullHandler):
                yield handler
