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
from types import FrameType

import msgspec

from holdfast.errors import ConfigError
from holdfast.worker import processes
from holdfast.worker.child.handlers import TargetStore
from holdfast.worker.managed_process import (
    SUPERVISOR,
    TEMPLATE_FLAG,
    ManagedProcess,
    Program,
    ahead_pids,
)
from holdfast.worker.options import WorkerOptions

_log = logging.getLogger("holdfast.worker")

_EXIT_USAGE = 2


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
    before = set(processes.children(os.getpid())).difference(ahead_pids())
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
    arguments = (TEMPLATE_FLAG,) if options.has_template else ()
    return Program("a worker", SUPERVISOR, msgspec.json.encode(options), arguments)


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
                _put_off(managed, f"could not be started: {error}")
        return 0
    status = managed.process.poll()
    if status is None:
        return 0
    managed.ended()
    if status in (0, _EXIT_USAGE) or stopping:
        managed.over = True
        return status if status in (0, _EXIT_USAGE) else 0
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    _put_off(managed, f"ended by {how}")
    return 0


def _put_off(managed: ManagedProcess, why: str) -> None:
    pause_s = managed.put_off()
    _log.warning("%s %s; restarting it in %.1f s", managed.program.what, why, pause_s)


def main() -> None:
    """Entry point of a launcher process: the options come as one line on standard input."""
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    sys.exit(run(msgspec.json.decode(sys.stdin.buffer.readline(), type=list[WorkerOptions])))


if __name__ == "__main__":
    main()
