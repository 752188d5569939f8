"""The process that children are forked from: `python -m holdfast.worker.template`.

It imports the application once and does nothing else: it opens no engine, runs no job and keeps
nothing of what a child is given. It ends with its supervisor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.core.text import counted
from holdfast.worker import processes
from holdfast.worker.child import end_with, load_handlers, serve
from holdfast.worker.handlers import Handler
from holdfast.worker.nursery import READY
from holdfast.worker.wire import ChildSetup

NAME = "holdfast-child"
"""What a forked child is called in lists of processes: its command line is the template's."""
_REQUEST_MAX = 1 << 17
_REPARENT_S = 0.0002


class Birth(NamedTuple):
    """What a child is given: its setup, and the descriptors of its socket, board and output."""

    setup: ChildSetup
    connection: int
    board: int
    output: int


def main() -> None:
    supervisor = os.getppid()
    line = socket.socket(fileno=int(os.environ.pop("HOLDFAST_TEMPLATE_SOCKET")))
    line.set_inheritable(False)
    setup = msgspec.json.decode(os.environ.pop("HOLDFAST_CHILD_SETUP"), type=ChildSetup)
    end_with(supervisor, setup)
    before = _descriptors()
    assert setup.target is not None
    handlers: Mapping[str, Handler] = {}
    error: BaseException | None = None
    try:
        handlers = load_handlers(setup.target)
    except BaseException as caught:  # noqa: BLE001 (an application may even exit on import)
        error = caught
    why_not = _why_not(before)
    line.send(READY if error is not None else why_not.encode() or READY)
    # A broken application is told by the first child. The next one is to import it anew, because
    # somebody may have mended it.
    birth = _wait_for_birth(line, supervisor, once=error is not None)
    line.close()
    _settle_in(birth)
    try:
        processes.die_with_parent(supervisor)
    except ProcessLookupError:
        os._exit(0)

    def load() -> Mapping[str, Handler]:
        if error is not None:
            raise error
        return handlers

    serve(birth.setup, birth.connection, birth.board, parent=supervisor, load=load)


def _wait_for_birth(line: socket.socket, supervisor: int, *, once: bool) -> Birth:
    """Returns in each child; in the template itself, never."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(line, _REQUEST_MAX, 3)
        if not request:
            os._exit(0)
        between = _fork(line)
        if between == 0:
            _become_orphan(line)
            _wait_for_parent(supervisor)
            os.setsid()
            try:
                line.send(str(os.getpid()).encode())
            except BrokenPipeError:
                os._exit(0)  # The supervisor has ended.
            setup = msgspec.json.decode(request, type=ChildSetup)
            return Birth(setup, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if between > 0:
            os.waitpid(between, 0)
        if once:
            os._exit(0)


def _become_orphan(line: socket.socket) -> None:
    """The kernel gives orphans to the next subreaper above: that is the supervisor, which thereby
    sees the end of its children as if it had started them."""
    if _fork(line) != 0:
        os._exit(0)


def _fork(line: socket.socket) -> int:
    """As `os.fork`; -1 when there is no process to be had, which has been said then."""
    try:
        return os.fork()
    except OSError:
        line.send(b"no process to be had")
        return -1


def _wait_for_parent(supervisor: int) -> None:
    before = os.getppid()
    while (parent := os.getppid()) != supervisor:
        if parent != before:
            # The supervisor is gone, and somebody above it took this process.
            os._exit(0)
        time.sleep(_REPARENT_S)


def _settle_in(birth: Birth) -> None:
    """What an executed process would have of its own. The random module reseeds itself."""
    os.dup2(birth.output, 1)
    os.dup2(birth.output, 2)
    os.close(birth.output)
    Path("/proc/self/comm").write_text(NAME)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def _why_not(before: set[int]) -> str:
    """Why the application must not be forked; empty if it may. Other threads would be missing in
    the child, and maybe hold a lock; a connection or a database would be shared by all."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (as in processes.py)
    if threads > 1:
        return f"it starts {counted(threads - 1, 'thread')} when it is imported"
    for descriptor in sorted(_descriptors() - before):
        name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        # What is only read, or only written as logs are, can be shared.
        if not name.startswith("/") or access == os.O_RDWR:
            return f"it keeps {name} open when it is imported"
    return ""


def _descriptors() -> set[int]:
    """What is open, beside the look at it."""
    found = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {each for each in found if os.path.lexists(f"/proc/self/fd/{each}")}


if __name__ == "__main__":
    main()
