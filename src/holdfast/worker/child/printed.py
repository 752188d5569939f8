"""Copies the standard output and error of a child to the output of the job that prints.

A context variable tells which call is running, in threads and in coroutines; a thread that a
handler starts itself has none. The text still goes to the child's own output.
"""

from __future__ import annotations

import io
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.worker.child.attempt import Attempt

CURRENT: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
"""The attempt that runs in this context."""


def copy_printed() -> None:
    """Replace `sys.stdout` and `sys.stderr`. Call it before the application is imported: a log
    handler keeps the stream that it finds."""
    for name in ("stdout", "stderr"):
        text = getattr(sys, name)
        if isinstance(text, io.TextIOWrapper):
            copied: Any = CopiedStream(text)
            copied = io.TextIOWrapper(
                copied, encoding=text.encoding, errors=text.errors, write_through=True
            )
            setattr(sys, name, copied)


class CopiedStream(io.BufferedIOBase):
    """The binary stream below `sys.stdout`: passes everything on to the real one."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        # A text stream that nobody refers to would close the stream below it.
        self._text = text
        self._stream = text.buffer

    def write(self, data: Any) -> int:
        attempt = CURRENT.get()
        if attempt is not None:
            attempt.write_output(bytes(data))
        self._stream.write(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True
