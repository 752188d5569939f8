"""Starts workers as processes of their own, starts them again, and leaves nothing behind. Other
programs may run beside them in the same way, as long as there is a worker.

It holds no engine and runs nobody's code, so there is nothing for it to die of. What a dead
supervisor leaves becomes this process's child, as the system is told at the start, and is killed.
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

from holdfast.worker import processes
from holdfast.worker.options import WorkerOptions

_log = logging.getLogger("holdfast.worker")

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.2, 5.0
_STEADY_S = 5.0
_EXIT_USAGE = 2


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A module of Python that takes its `options` as one line on its standard input and writes
    its name to the descriptor HOLDFAST_READY. It keeps these `descriptors`, started again too."""

    what: str
    module: str
    options: bytes
    descriptors: tuple[int, ...] = ()


class Post:
    """One program's place, and the process that fills it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.pause_s = _PAUSE_S_FIRST
        self.start_at = 0.0
        self.started_at = 0.0
        self.over = False
        self.told = 0
        """Signals that this process got."""
        self.name = ""
        self.ready = -1

    def start(self) -> None:
        """Its name comes through a pipe when it is ready for work."""
        self.started_at = time.monotonic()
        self.told = 0
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
        """Until a while from now, each time longer."""
        _log.warning("%s; it starts again in %.1f s", why, self.pause_s)
        self.start_at = time.monotonic() + self.pause_s
        self.pause_s = min(self.pause_s * 2, _PAUSE_S_MAX)

    def tell(self, times: int) -> None:
        """Pass on what was heard, also what came while the process was being started."""
        if self.process is not None and self.told < times:
            self.told += 1
            self.process.send_signal(signal.SIGTERM)

    def hear(self) -> None:
        """Read its name, if it has come; nothing more comes after it."""
        with suppress(BlockingIOError):
            name = os.read(self.ready, 1024).decode()
            self.name = name or self.name
            os.close(self.ready)
            self.ready = -1


def run(
    workers: Sequence[WorkerOptions],
    *,
    beside: Sequence[Program] = (),
    started: Callable[[list[str]], None] | None = None,
    asked: Callable[[int], None] | None = None,
) -> int:
    """Until every worker has ended, and then what is beside them. The first SIGTERM or SIGINT
    drains them, the second stops them at once; `asked` hears which it was. `started` hears the
    names, those of the workers first. The exit code is 0, or that of one that could not even start.

    For a process that has no other children: whatever becomes its child is killed.
    """
    processes.become_subreaper()
    before = processes.children(os.getpid())
    posts = [Post(as_program(options)) for options in workers]
    others = [Post(program) for program in beside]
    everything = [*posts, *others]
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signals, told = 0, 0

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    code = 0
    while not all(post.over for post in everything):
        alone = all(post.over for post in posts)
        for post in everything:
            wishes = max(signals, 1) if alone else signals
            code = max(code, _tend(post, stopping=wishes > 0))
            post.tell(wishes)
        if code == _EXIT_USAGE and not signals:
            signals = told = 1
            continue
        if started is not None and all(post.name for post in everything):
            started([post.name for post in everything])
            started = None
        # What a dead supervisor left behind is ours now.
        known = [post.process.pid for post in everything if post.process]
        processes.sweep_strangers([*before, *known])
        unheard = {post.ready: post for post in everything if post.ready >= 0}
        if asked is not None and signals > told:
            told += 1
            asked(told)
        readable, _, _ = select.select([wake_read, *unheard], [], [], 0.5)
        for descriptor in readable:
            if descriptor == wake_read:
                os.read(wake_read, 4096)
            else:
                unheard[descriptor].hear()
    while processes.sweep_strangers(before):
        time.sleep(0.01)
    return code


def as_program(options: WorkerOptions) -> Program:
    encoded = msgspec.json.encode(options)
    return Program(what="a worker", module="holdfast.worker.main", options=encoded)


def _tend(post: Post, *, stopping: bool) -> int:
    """Start, or start again, what should run; the exit code that must be passed on."""
    if post.over:
        return 0
    if post.process is None:
        if stopping:
            post.over = True
        elif time.monotonic() >= post.start_at:
            try:
                post.start()
            except OSError as error:
                post.put_off(f"{post.program.what} could not be started: {error}")
        return 0
    status = post.process.poll()
    if status is None:
        return 0
    assert post.process.stdin is not None
    with suppress(BrokenPipeError):
        post.process.stdin.close()
    post.process = None
    if status in (0, _EXIT_USAGE) or stopping:
        post.over = True
        return status if status in (0, _EXIT_USAGE) else 0
    if time.monotonic() - post.started_at > _STEADY_S:
        post.pause_s = _PAUSE_S_FIRST
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    post.put_off(f"{post.program.what} ended by {how}")
    return 0


def main() -> None:
    """In a process of its own: the options come as one line on the standard input."""
    processes.die_with_parent(os.getppid(), signal.SIGTERM)
    sys.exit(run(msgspec.json.decode(sys.stdin.buffer.readline(), type=list[WorkerOptions])))


if __name__ == "__main__":
    main()
