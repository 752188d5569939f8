"""A failure as people read it: its type and message in one line, and the frames of its traceback
that are in the user's code.

Texts and traces are hostile: any input gives an answer in bounded time, and whoever prints it makes
it printable first.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.checks import clean_text
from holdfast.core.fingerprint import FRAME, MARGIN, is_user_code
from holdfast.core.model import Failure
from holdfast.core.verdict import Bury, Retry, Verdict
from holdfast.errors import ConfigError

TRACE_LINES_MAX = 40
_TITLE_MAX = 500
_OF_A_FRAME = ("    ", "  [Previous line repeated")
"""The lines after a frame that belong to it: the source, and marks below it."""


def title(failure: Failure) -> str:
    """Type and message: `KeyError: 'customer'`. The message of a process that ended says it all."""
    of_process = failure.exit_code is not None or failure.signal is not None
    kind = "" if of_process else failure.type
    text = ": ".join(filter(None, (kind, failure.message))) or failure.type or str(failure.kind)
    return text if len(text) <= _TITLE_MAX else f"{text[: _TITLE_MAX - 1]}…"


def line(failure: Failure) -> str:
    """The title, and the innermost frame of the user's code: `… at mail.py:12 in send`."""
    found = [frame for frame in map(FRAME.match, _lines(failure.trace)) if frame is not None]
    own = [frame for frame in found if is_user_code(frame["path"])]
    if not own:
        return title(failure)
    frame = own[-1]
    file = frame["path"].replace("\\", "/").rpartition("/")[2]
    return f"{title(failure)} at {file}:{frame['line']} in {frame['function']}"


def import_error(failure: Failure) -> str:
    """Why an application cannot be imported, and where, if its own code is at fault. A wrong name
    of an application is a ConfigError without a place, and its message says it all."""
    found = line(failure)
    return found.removeprefix(f"{ConfigError.__name__}: ")


def with_output(verdict: Verdict, output: bytes) -> Verdict:
    """The verdict on an attempt with this output. A failed attempt keeps it in its failure, because
    the next attempt replaces the output of the job."""
    if not isinstance(verdict, Retry | Bury) or verdict.failure is None:
        return verdict
    text = clean_text(output.decode(errors="replace"))
    return replace(verdict, failure=replace(verdict.failure, output=text))


def user_trace(trace: str) -> list[str]:
    """The lines of a traceback without the frames of libraries; all of them if no frame is in the
    user's code. The outermost frames of a long traceback are left out."""
    kept: list[str] = []
    found = skipping = False
    for written in _lines(trace):
        frame = FRAME.match(written)
        if frame is not None:
            skipping = not is_user_code(frame["path"])
            found = found or not skipping
        elif skipping and not _plain(written).startswith(_OF_A_FRAME):
            skipping = False
        if not skipping:
            kept.append(written)
    lines = kept if found else _lines(trace)
    left_out = len(lines) - TRACE_LINES_MAX
    return lines if left_out <= 0 else [f"… {left_out} lines left out …", *lines[left_out:]]


def _lines(trace: str) -> list[str]:
    return trace.split("\n") if trace.strip() else []


def _plain(line: str) -> str:
    """A line without the margin that an exception group gives it."""
    margin = MARGIN.match(line)
    return line[margin.end() :] if margin else line
