"""A program that the launcher keeps running, and the process that runs it now.

It imports little: the command line starts the process of the first worker with it, before it loads
anything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import NamedTuple

SUPERVISOR = "holdfast.worker.supervisor"
TEMPLATE_FLAG = "--template"
"""Tells a supervisor to start its template before anything else."""
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.2, 5.0
_STEADY_S = 5.0


class Program(NamedTuple):
    """A Python module that reads its `options` as one line from standard input and writes its name
    to the descriptor HOLDFAST_READY. It inherits these `descriptors` at every start."""

    what: str
    module: str
    options: bytes
    arguments: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


class StartedProcess(NamedTuple):
    """A process that waits for its options, and the pipe that its name comes through."""

    process: subprocess.Popen[bytes]
    ready: int


_ahead: list[StartedProcess] = []
"""At most one: the process of the first worker, started before its options were known."""


def start_ahead(*, template: bool) -> None:
    """Start the process of a worker that will get its options from `ManagedProcess.start`; with
    `template`, also its template. If this process is killed, both end with it."""
    with suppress(OSError):
        arguments = (TEMPLATE_FLAG,) if template else ()
        _ahead.append(_execute(Program("a worker", SUPERVISOR, b"", arguments)))


def end_ahead() -> None:
    """End the process that was started ahead, if no worker needed it. Its template ends with it."""
    while _ahead:
        process, ready = _ahead.pop()
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()
        os.close(ready)


def ahead_pids() -> list[int]:
    """The process that was started ahead, while it waits for its options."""
    return [started.process.pid for started in _ahead]


class ManagedProcess:
    """A program and the process that runs it now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.start_at: float = 0.0
        self.over = False
        self.passed: int = 0
        """Number of signals passed on to this process."""
        self.name: str = ""
        self.ready: int = -1
        self._pause_s = _PAUSE_S_FIRST
        self._started_at = 0.0

    def start(self) -> None:
        """Start it. Its name comes through a pipe when it is ready for work."""
        self._started_at = time.monotonic()
        self.passed = 0
        is_worker = self.program.module == SUPERVISOR
        started = _ahead.pop() if is_worker and _ahead else _execute(self.program)
        self.process, self.ready = started
        os.set_blocking(self.ready, False)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(self.program.options + b"\n")
            self.process.stdin.flush()

    def ended(self) -> None:
        """Forget the process that has ended. After a long run, the next pause is short again."""
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process = None
        if time.monotonic() - self._started_at > _STEADY_S:
            self._pause_s = _PAUSE_S_FIRST

    def put_off(self) -> float:
        """Postpone the next start, each time for longer; returns for how many seconds."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _PAUSE_S_MAX)
        self.start_at = time.monotonic() + pause_s
        return pause_s

    def pass_signals(self, times: int) -> None:
        """Pass signals on, including those that arrived while the process was starting."""
        if self.process is not None and self.passed < times:
            self.passed += 1
            self.process.send_signal(signal.SIGTERM)

    def read_name(self) -> None:
        """Read its name if it has arrived; nothing else follows it."""
        with suppress(BlockingIOError):
            name = os.read(self.ready, 1024).decode()
            self.name = name or self.name
            os.close(self.ready)
            self.ready = -1


def _execute(program: Program) -> StartedProcess:
    ready, theirs = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 (a module of our own)
            [sys.executable, "-m", program.module, *program.arguments],
            stdin=subprocess.PIPE,
            pass_fds=(theirs, *program.descriptors),
            env={**os.environ, "HOLDFAST_READY": str(theirs)},
            start_new_session=True,
        )
    except OSError:
        os.close(ready)
        raise
    finally:
        os.close(theirs)
    return StartedProcess(process, ready)
