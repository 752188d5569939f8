"""The process that children are forked from: `python -m holdfast.worker.child.template`.

It loads Holdfast, waits for its setup, imports the application once and does nothing else: it opens
no engine, runs no job and keeps no descriptor that it passes to a child. It dies with its
supervisor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

# Every application needs it: it is loaded while the supervisor loads its own modules.
from holdfast.app import application  # noqa: F401
from holdfast.core.text import counted
from holdfast.worker import processes
from holdfast.worker.child.handlers import LoadedApplication
from holdfast.worker.child.main import end_with, load_frozen, serve
from holdfast.worker.child.printed import copy_printed
from holdfast.worker.wire import TEMPLATE_READY, ChildSetup, TemplateSetup

NAME = "holdfast-child"
"""The name of a forked child in process lists; its command line is the template's."""
_REQUEST_MAX = 1 << 17
_REPARENT_S = 0.0002


class ForkRequest(NamedTuple):
    """Setup of a child, and the descriptors of its socket, board and output."""

    setup: ChildSetup
    connection: int
    board: int
    output: int


def main() -> None:
    """Entry point of the process."""
    supervisor = os.getppid()
    connection = socket.socket(fileno=int(os.environ.pop("HOLDFAST_TEMPLATE_SOCKET")))
    connection.set_inheritable(False)
    end_with(supervisor, has_commands=False)
    before = _descriptors()
    setup = _wait_for_setup(connection)
    loaded: LoadedApplication | None = None
    error: BaseException | None = None
    copy_printed()
    try:
        loaded = load_frozen(setup)
    except BaseException as caught:  # noqa: BLE001 (an application may even exit on import)
        error = caught
    why_not = _why_not(before)
    connection.send(TEMPLATE_READY if error is not None else why_not.encode() or TEMPLATE_READY)
    # The first child reports a broken application. The next one imports it again: it may have been
    # fixed.
    request = _wait_for_request(connection, supervisor, once=error is not None)
    connection.close()
    _take_over(request)
    try:
        processes.die_with_parent(supervisor)
    except ProcessLookupError:
        os._exit(0)

    def load() -> LoadedApplication:
        if error is not None:
            raise error
        assert loaded is not None
        return loaded

    serve(request.setup, request.connection, request.board, parent=supervisor, load=load)


def _wait_for_setup(connection: socket.socket) -> ChildSetup:
    data = connection.recv(_REQUEST_MAX)
    if not data:
        os._exit(0)
    given = msgspec.json.decode(data, type=TemplateSetup)
    if given.url is not None:
        os.environ["HOLDFAST_URL"] = given.url
    assert given.setup.target is not None
    return given.setup


def _wait_for_request(connection: socket.socket, supervisor: int, *, once: bool) -> ForkRequest:
    """Returns in each child, never in the template itself."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_MAX, 3)
        if not data:
            os._exit(0)
        between = _fork(connection)
        if between == 0:
            _become_orphan(connection)
            _wait_for_parent(supervisor)
            os.setsid()
            try:
                connection.send(str(os.getpid()).encode())
            except BrokenPipeError:
                os._exit(0)  # The supervisor has ended.
            setup = msgspec.json.decode(data, type=ChildSetup)
            return ForkRequest(setup, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if between > 0:
            os.waitpid(between, 0)
        if once:
            os._exit(0)


def _become_orphan(connection: socket.socket) -> None:
    """The kernel reparents orphans to the nearest subreaper: the supervisor, which then sees the
    end of this child as if it had started it.
    """
    if _fork(connection) != 0:
        os._exit(0)


def _fork(connection: socket.socket) -> int:
    """Like `os.fork`; returns -1 if the machine cannot start a process, after reporting it."""
    try:
        return os.fork()
    except OSError:
        connection.send(b"no process to be had")
        return -1


def _wait_for_parent(supervisor: int) -> None:
    before = os.getppid()
    while (parent := os.getppid()) != supervisor:
        if parent != before:
            # The supervisor is gone, and a process above it became the parent.
            os._exit(0)
        time.sleep(_REPARENT_S)


def _take_over(request: ForkRequest) -> None:
    """Set up everything that an executed process would have of its own. The random module reseeds
    itself.
    """
    os.dup2(request.output, 1)
    os.dup2(request.output, 2)
    os.close(request.output)
    Path("/proc/self/comm").write_text(NAME)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def _why_not(before: set[int]) -> str:
    """Why the application must not be forked; empty if it may. Other threads would be missing in
    the child, and may hold a lock; a connection or a database would be shared by all."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (as in processes.py)
    if threads > 1:
        return f"importing it starts {counted(threads - 1, 'thread')}"
    for descriptor in sorted(_descriptors() - before):
        name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        # Files that are only read, or only written as logs are, can be shared.
        if not name.startswith("/") or access == os.O_RDWR:
            return f"importing it opens {name}"
    return ""


def _descriptors() -> set[int]:
    """Open descriptors, without the one that lists them."""
    found = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {each for each in found if os.path.lexists(f"/proc/self/fd/{each}")}


if __name__ == "__main__":
    main()
