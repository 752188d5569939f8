"""A child process that runs jobs: `python -m holdfast.worker.child.main`.

Its supervisor passes it a socket, a board and a setup, in the environment or by forking it. It
receives calls and answers with endings, knows no engine and no lease, and dies with its
supervisor.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast import tracing
from holdfast.core.model import COMMAND_TASK
from holdfast.worker import processes
from holdfast.worker.child.attempt import failure_of
from holdfast.worker.child.handlers import LoadedApplication, load_application
from holdfast.worker.child.logs import set_up_logs
from holdfast.worker.child.printed import copy_printed
from holdfast.worker.child.runner import HandlerRunner, SupervisorConnection
from holdfast.worker.commands.runner import CommandRunner, TracedCommandRunner
from holdfast.worker.wire import (
    Board,
    ChildBroken,
    ChildReady,
    ChildSetup,
    TaskInfo,
    encode_frame,
)

_COMMAND = TaskInfo(COMMAND_TASK, gentle=True)
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Entry point of an executed child; a forked one starts at `serve`."""
    parent = os.getppid()
    descriptor = int(os.environ.pop("HOLDFAST_CHILD_SOCKET"))
    board_descriptor = int(os.environ.pop("HOLDFAST_CHILD_BOARD"))
    setup = msgspec.json.decode(os.environ.pop("HOLDFAST_CHILD_SETUP"), type=ChildSetup)
    end_with(parent, has_commands=setup.target is None)
    if setup.target:
        copy_printed()
    serve(setup, descriptor, board_descriptor, parent=parent, load=lambda: load_frozen(setup))


def serve(
    setup: ChildSetup,
    descriptor: int,
    board_descriptor: int,
    *,
    parent: int,
    load: Callable[[], LoadedApplication],
) -> None:
    """Run calls until the supervisor, whose process id is `parent`, ends this child."""
    # Processes that a handler or a command starts must not hold them open.
    os.set_inheritable(descriptor, False)
    os.set_inheritable(board_descriptor, False)
    _reset_forked_processes(descriptor)
    connection = socket.socket(fileno=descriptor)
    board = Board(board_descriptor, setup.slots)
    if setup.target is None:
        tracing.start_exporter("holdfast-worker")
        asyncio.run(_run_built_in(setup, board, connection, parent))
        tracing.flush_exporter()
        processes.end_at_once()
    try:
        application = load()
        # After the application, which may have set up tracing itself.
        tracing.start_exporter("holdfast-worker")
    except BaseException as error:  # noqa: BLE001 (an application may even exit on import)
        connection.sendall(encode_frame([ChildBroken(failure_of(error))]))
        return
    asyncio.run(_run_handlers(setup, application, board, connection))


def load_frozen(setup: ChildSetup) -> LoadedApplication:
    """Import the application. Imported objects stay, so the garbage collector ignores them:
    scanning them at every collection would free nothing, and would make a forked child copy them
    all.
    """
    application = load_application(setup.target or "")
    set_up_logs(setup.log_format, setup.log_level)
    gc.collect()
    gc.freeze()
    return application


def end_with(parent: int, *, has_commands: bool) -> None:
    """Die with the supervisor, and ignore signals to the whole service: the supervisor decides."""
    faulthandler.enable(all_threads=False)
    for number in _IGNORED_SIGNALS:
        # Not SIG_IGN, which every process started from here would inherit.
        signal.signal(number, lambda *_: None)
    try:
        if has_commands:
            # If it were killed outright, its commands would stay behind: this signal makes it
            # check.
            processes.become_subreaper()
            processes.die_with_parent(parent, signal.SIGTERM)
        else:
            processes.die_with_parent(parent)
    except ProcessLookupError:
        os._exit(0)


def _reset_forked_processes(descriptor: int) -> None:
    """Make processes that a handler forks ordinary ones: signals end them, even before their first
    step, and they do not hold the connection to the supervisor."""
    masks = threading.local()

    def before() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    def in_child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(OSError):
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.old)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


async def _run_handlers(
    setup: ChildSetup, application: LoadedApplication, board: Board, connection: socket.socket
) -> None:
    supervisor = await SupervisorConnection.over(connection)
    supervisor.runner = HandlerRunner(
        setup, application.handlers, board, supervisor.write, supervisor.finish
    )
    supervisor.write([application.ready])
    await supervisor.close_when_finished()


async def _run_built_in(
    setup: ChildSetup, board: Board, connection: socket.socket, parent: int
) -> None:
    def check_parent() -> None:
        if os.getppid() != parent:
            processes.end_at_once()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, check_parent)
    supervisor = await SupervisorConnection.over(connection)
    if setup.webhook is None:
        make = TracedCommandRunner if tracing.is_on() else CommandRunner
        supervisor.runner = make(setup, board, supervisor.write, supervisor.finish)
        supervisor.write([ChildReady((_COMMAND,))])
    else:
        # Importing a TLS client is slow, and commands do not need it.
        from holdfast.worker.webhooks.webhook import webhook_handler

        handler = webhook_handler(setup.webhook)
        supervisor.runner = HandlerRunner(
            setup, {handler.name: handler}, board, supervisor.write, supervisor.finish
        )
        supervisor.write([ChildReady((handler.info,))])
    await supervisor.close_when_finished()


if __name__ == "__main__":
    main()
