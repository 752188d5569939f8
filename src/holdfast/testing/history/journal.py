"""A history on disk: one file per process, appended to with one write per line.

What was written before a kill -9 is there afterwards; a torn last line is left out when read.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.verdict import Amendment
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.testing.history.lines import Entry, Line, Phase, answered, asked

NOTHING_HAPPENED = (UsageError, EngineUnavailable)
"""Only these prove that a call changed nothing; whatever else is raised leaves it open."""


class Journal:
    """Writes the lines of one process. `instant_ns` must be comparable between all of a run."""

    def __init__(
        self,
        process: str,
        write: Callable[[Line], None],
        instant_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.process = process
        self._write = write
        self._instant_ns = instant_ns
        self._calls = itertools.count(1)

    def begin(self, op: str, argument: Any, amendment: Amendment | None = None) -> int:
        """The `inv` line; the number ties the second line to it."""
        call = next(self._calls)
        self._line("inv", op, call, asked(op, argument, amendment))
        return call

    def end(self, call: int, op: str, argument: Any, answer: Any) -> None:
        """The second line; `answer` may be the exception that was raised."""
        if isinstance(answer, BaseException):
            phase: Phase = "fail" if isinstance(answer, NOTHING_HAPPENED) else "info"
            self._line(phase, op, call, {"error": f"{type(answer).__name__}: {answer}"[:300]})
        else:
            self._line("ok", op, call, answered(op, argument, answer))

    def note(self, op: str, **facts: Any) -> None:
        self._line("note", op, 0, {"facts": facts})

    def note_job(self, op: str, entry: Entry) -> None:
        self._line("note", op, 0, {"jobs": (entry,)})

    def _line(self, phase: Phase, op: str, call: int, fields: dict[str, Any]) -> None:
        line = Line(
            process=self.process,
            at_ns=self._instant_ns(),
            phase=phase,
            op=op,
            call=call,
            **fields,
        )
        self._write(line)


def to_file(path: Path) -> Callable[[Line], None]:
    """A writer for `Journal`. The descriptor is open as long as the writer lives."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    encoder = msgspec.json.Encoder()

    def write(line: Line) -> None:
        data = encoder.encode(line) + b"\n"
        written = os.write(descriptor, data)
        assert written == len(data), f"{path} took {written} of {len(data)} bytes: disk full?"

    return write


def read_journals(directory: Path) -> list[Line]:
    """Every line of every `*.jsonl` file there, by time."""
    decoder = msgspec.json.Decoder(Line)
    lines = []
    for path in sorted(directory.glob("*.jsonl")):
        for text in path.read_bytes().splitlines(keepends=True):
            if text.endswith(b"\n"):
                lines.append(decoder.decode(text))
    lines.sort(key=lambda line: line.at_ns)
    return lines
