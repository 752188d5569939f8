"""Starts workers as processes, restarts them, and leaves no process behind. It can run other
programs in the same way, as long as there is a worker. It holds no engine and runs no user code, so
that neither can crash it. Processes that a dead supervisor leaves behind become children of this
one, which is a subreaper, and are killed.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

import msgspec

from holdfast.errors import ConfigError
from holdfast.worker import processes
from holdfast.worker.child.handlers import TargetStore
from holdfast.worker.options import WorkerOptions

_log = logging.getLogger("holdfast.worker")

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.2, 5.0
_STEADY_S = 5.0
_EXIT_USAGE = 2


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A Python module that reads its `options` as one line from standard input and writes its name
    to the descriptor HOLDFAST_READY. It inherits these `descriptors` at every start."""

    what: str
    module: str
    options: bytes
    descriptors: tuple[int, ...] = ()


class ManagedProcess:
    """A program and the process that runs it now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.pause_s = _PAUSE_S_FIRST
        self.start_at = 0.0
        self.started_at = 0.0
        self.over = False
        self.passed = 0
        """Number of signals passed on to this process."""
        self.name = ""
        self.ready = -1

    def start(self) -> None:
        """Start it. Its name comes through a pipe when it is ready for work."""
        self.started_at = time.monotonic()
        self.passed = 0
        ready, theirs = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 (a module of our own)
                [sys.executable, "-m", self.program.module],
                stdin=subprocess.PIPE,
                pass_fds=(theirs, *self.program.descriptors),
                env={**os.environ, "HOLDFAST_READY": str(theirs)},
                start_new_session=True,
            )
        except OSError:
            os.close(ready)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ready, False)
        self.ready = ready
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(self.program.options + b"\n")
            self.process.stdin.flush()

    def put_off(self, why: str) -> None:
        """Postpone the next start, each time for longer."""
        _log.warning("%s; restarting it in %.1f s", why, self.pause_s)
        self.start_at = time.monotonic() + self.pause_s
        self.pause_s = min(self.pause_s * 2, _PAUSE_S_MAX)

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


def run(
    workers: Sequence[WorkerOptions],
    *,
    programs: Sequence[Program] = (),
    started: Callable[[list[str]], None] | None = None,
    asked: Callable[[int], None] | None = None,
) -> int:
    """Run until every worker, and then every other program, has ended. The first SIGTERM or SIGINT
    drains the workers, the second stops them at once; `asked` is called with the number of the
    signal, 1 or 2. `started` is called with the names, those of the workers first. Returns 0, or
    the exit code of a program that could not start. Only for a process without other children: it
    kills any child it does not know.
    """
    processes.become_subreaper()
    before = processes.children(os.getpid())
    supervisors = [ManagedProcess(as_program(options)) for options in workers]
    others = [ManagedProcess(program) for program in programs]
    everything = [*supervisors, *others]
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signals, reported = 0, 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    code = 0
    while not all(managed.over for managed in everything):
        alone = all(managed.over for managed in supervisors)
        for managed in everything:
            requests = max(signals, 1) if alone else signals
            code = max(code, _keep_running(managed, stopping=requests > 0))
            managed.pass_signals(requests)
        if code == _EXIT_USAGE and not signals:
            signals = reported = 1
            continue
        if started is not None and all(managed.name for managed in everything):
            started([managed.name for managed in everything])
            started = None
        # Processes of a dead supervisor are children of this one now.
        known = [managed.process.pid for managed in everything if managed.process]
        processes.sweep_strangers([*before, *known])
        unnamed = {managed.ready: managed for managed in everything if managed.ready >= 0}
        if asked is not None and signals > reported:
            reported += 1
            asked(reported)
        readable, _, _ = select.select([wake_read, *unnamed], [], [], 0.5)
        for descriptor in readable:
            if descriptor == wake_read:
                os.read(wake_read, 4096)
            else:
                unnamed[descriptor].read_name()
    while processes.sweep_strangers(before):
        time.sleep(0.01)
    return code


def store_of(target: str) -> str:
    """The URL of the store that an application names. A process of its own imports it, because no
    user code runs in the launcher. ConfigError if it cannot be imported or names no store."""
    ready, theirs = os.pipe()
    with os.fdopen(ready, "rb") as answer:
        try:
            process = subprocess.Popen(  # noqa: S603 (a module of our own)
                [sys.executable, "-m", "holdfast.worker.child.handlers", target, str(theirs)],
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                # The workers import it again, and show its output.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(theirs)
        with process:
            line = answer.readline()
    if not line:
        raise ConfigError(f"{target} cannot be imported: it ended the process that imported it")
    store = msgspec.json.decode(line, type=TargetStore)
    if store.error:
        raise ConfigError(f"{target} cannot be imported: {store.error}")
    if store.url is None:
        raise ConfigError(f"{target} was created with an engine, not with a URL: give --url")
    return store.url


def as_program(options: WorkerOptions) -> Program:
    """The program that runs a worker."""
    encoded = msgspec.json.encode(options)
    return Program(what="a worker", module="holdfast.worker.supervisor.main", options=encoded)


def _keep_running(managed: ManagedProcess, *, stopping: bool) -> int:
    """Start or restart the program if it should run; returns the exit code to pass on."""
    if managed.over:
        return 0
    if managed.process is None:
        if stopping:
            managed.over = True
        elif time.monotonic() >= managed.start_at:
            try:
                managed.start()
            except OSError as error:
                managed.put_off(f"{managed.program.what} could not be started: {error}")
        return 0
    status = managed.process.poll()
    if status is None:
        return 0
    assert managed.process.stdin is not None
    with suppress(BrokenPipeError):
        managed.process.stdin.close()
    managed.process = None
    if status in (0, _EXIT_USAGE) or stopping:
        managed.over = True
        return status if status in (0, _EXIT_USAGE) else 0
    if time.monotonic() - managed.started_at > _STEADY_S:
        managed.pause_s = _PAUSE_S_FIRST
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    managed.put_off(f"{managed.program.what} ended by {how}")
    return 0


def main() -> None:
    """Entry point of a launcher process: the options come as one line on standard input."""
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    sys.exit(run(msgspec.json.decode(sys.stdin.buffer.readline(), type=list[WorkerOptions])))


if __name__ == "__main__":
    main()
