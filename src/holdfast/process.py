"""Log output, the event loop, the clocks and private files, shared by every process of Holdfast.

Leases and due times go by the clock of the engine: see `engines.clock`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from holdfast.core.text import printable

Answer = TypeVar("Answer")

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_TEXTS_MAX = 20
_JOB_LINE = "%(asctime)s %(levelname)s [job %(job_id)s, attempt %(attempt)s] %(name)s: %(message)s"
_JOB_FIELDS = ("job_id", "attempt", "task", "queue")
"""Empty outside of jobs."""
_RECORD_FIELDS = frozenset(
    (*logging.makeLogRecord({}).__dict__, "asctime", "message", "taskName", "color_message")
)
_CHATTY = ("botocore", "boto3")
"""Loggers of libraries that say at the level INFO where they found credentials."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
boot_s: Callable[[], float] = partial(time.clock_gettime, _BOOT_CLOCK)
"""Seconds since boot. Unlike a monotonic clock it continues while the machine is suspended, so that
a worker measures its leases as the store does."""
boot_ns: Callable[[], int] = partial(time.clock_gettime_ns, _BOOT_CLOCK)
"""The same in nanoseconds."""


def wall_ms() -> int:
    """This machine's wall clock in milliseconds since 1970, which an operator may set."""
    return time.time_ns() // 1_000_000


class PrintableFormatter(logging.Formatter):
    """Escapes control characters, because a log line may contain text from a job. The message is
    one line, so that such a text cannot forge another; only a traceback has more."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (of the library)
        record.message = printable(record.message, one_line=True)
        return super().formatMessage(record)


class JobFormatter(PrintableFormatter):
    """Lines of text; those of an attempt have its job and number, and the others this format."""

    def __init__(self, outside: str) -> None:
        super().__init__(outside)
        self._inside = PrintableFormatter(_JOB_LINE)

    def format(self, record: logging.LogRecord) -> str:
        is_of_attempt = getattr(record, "job_id", "") and getattr(record, "attempt", 0)
        return self._inside.format(record) if is_of_attempt else super().format(record)


class JsonFormatter(logging.Formatter):
    """Each record as one line of JSON, with its `extra` fields and those of its job."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": json_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in record.__dict__.items():
            if name not in _RECORD_FIELDS and (value or name not in _JOB_FIELDS):
                line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line)


def json_time(at: float) -> str:
    """An instant as RFC 3339 writes it, with milliseconds, e.g. 2026-11-18T06:30:00.125Z."""
    ms = round(at * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ms // 1000))}.{ms % 1000:03}Z"


def json_line(values: Mapping[str, Any]) -> str:
    """One line of JSON. A value without a form in JSON is shown as text."""

    import msgspec

    try:
        return msgspec.json.encode(values, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        texts = {
            name: str(value).encode(errors="replace").decode() for name, value in values.items()
        }
        return msgspec.json.encode(texts).decode()


def log_to_stderr(
    program: str, level: LogLevel, log_format: LogFormat = "text", *, again: bool = False
) -> None:
    """Send log lines to standard error. Only for our own programs; an embedding program configures
    logging itself. Only the first call counts, unless it is to be set up `again`."""
    handler = logging.StreamHandler()
    text = JobFormatter(f"{program}: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    set_root_log(handler, level, force=again)


def set_root_log(handler: logging.Handler, level: LogLevel, *, force: bool) -> None:
    """Let this handler write all log records of a level; with `force` also if logging is set up."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=number, force=force)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class LogOnce:
    """Logs each warning once: one that comes back every minute would fill the log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._texts: set[str] = set()

    def warning(self, text: str) -> None:
        """Log a text, unless it was logged before; only the first twenty texts are."""
        if text not in self._texts and len(self._texts) < _TEXTS_MAX:
            self._texts.add(text)
            self._log.warning("%s", text)


def loop_runner() -> Callable[[Coroutine[Any, Any, Answer]], Answer]:
    """`uvloop.run` where uvloop is installed, else `asyncio.run`. The loop must not start child
    processes."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def local_token_file(address: str, port: int) -> Path:
    """The file with the token of a server at this loopback address, for programs of its own user,
    on systems that do not tell the users of connections apart."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    try:
        # After a change of user the variable may still name the folder of the previous one.
        is_own = folder.is_absolute() and folder.stat().st_uid == os.geteuid()
    except OSError:
        is_own = False
    if not is_own:
        home = os.path.expanduser("~")  # noqa: PTH111 (Path raises for a user without a home)
        folder = Path(home) / ".local/state" if home != "~" else Path(f"/run/user/{os.geteuid()}")
    return folder / "holdfast" / f"{address}-{port}.token"


def read_local_token(address: str, port: int) -> str:
    """The token in that file, if only this user can read and change it; else an empty text."""
    try:
        path = local_token_file(address, port)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
            found = os.fstat(descriptor)
            is_private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
            is_own = found.st_uid == os.geteuid()
            return file.read(1_024).decode("latin-1") if is_private and is_own else ""
    except OSError:
        return ""
