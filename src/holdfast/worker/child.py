"""The process that runs jobs: `python -m holdfast.worker.child`, started by a supervisor.

It gets its socket, board and setup from the environment, or is forked with them. It takes calls
and answers with endings, knows no engine and no lease, and ends with its supervisor.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

import msgspec

from holdfast import tracing
from holdfast.worker import processes
from holdfast.worker.board import Board
from holdfast.worker.commands import Commands
from holdfast.worker.failures import failure_of
from holdfast.worker.handlers import Handler
from holdfast.worker.hands import Hands
from holdfast.worker.runner import Runner
from holdfast.worker.target import load_target
from holdfast.worker.wire import (
    Broken,
    ChildSetup,
    Frames,
    Ready,
    TaskInfo,
    Up,
    frame,
    words_down,
)

COMMAND = TaskInfo("command", gentle=True)
_SPARED = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    parent = os.getppid()
    descriptor = int(os.environ.pop("HOLDFAST_CHILD_SOCKET"))
    board_descriptor = int(os.environ.pop("HOLDFAST_CHILD_BOARD"))
    setup = msgspec.json.decode(os.environ.pop("HOLDFAST_CHILD_SETUP"), type=ChildSetup)
    end_with(parent, setup)
    target = setup.target or ""
    serve(setup, descriptor, board_descriptor, parent=parent, load=lambda: load_handlers(target))


def serve(
    setup: ChildSetup,
    descriptor: int,
    board_descriptor: int,
    *,
    parent: int,
    load: Callable[[], Mapping[str, Handler]],
) -> None:
    """Until the supervisor, whose process id is `parent`, wants no more."""
    # What a handler or a command starts must not hold them open.
    os.set_inheritable(descriptor, False)
    os.set_inheritable(board_descriptor, False)
    _let_forks_go(descriptor)
    connection = socket.socket(fileno=descriptor)
    board = Board(board_descriptor, setup.slots)
    if setup.target is None:
        tracing.begin("holdfast-worker")
        asyncio.run(_run_built_in(setup, board, connection, parent))
        tracing.end()
        end_at_once()
    try:
        handlers = load()
        # After the application, which may have its own way.
        tracing.begin("holdfast-worker")
    except BaseException as error:  # noqa: BLE001 (an application may even exit on import)
        connection.sendall(frame([Broken(failure_of(error))]))
        return
    asyncio.run(_run_handlers(setup, handlers, board, connection))


def load_handlers(target: str) -> Mapping[str, Handler]:
    """What was imported stays: looking through it again at every collection would be in vain, and
    would make a forked child copy all of it."""
    handlers = load_target(target).handlers
    gc.collect()
    gc.freeze()
    return handlers


def end_with(parent: int, setup: ChildSetup) -> None:
    """End with the supervisor, and only with it: signals to the whole service are its to judge."""
    faulthandler.enable(all_threads=False)
    for number in _SPARED:
        # Not SIG_IGN, which whatever is started from here would inherit.
        signal.signal(number, lambda *_: None)
    try:
        if setup.target is None:
            # Killed outright it would leave its commands behind: this signal makes it look up.
            processes.become_subreaper()
            processes.die_with_parent(parent, signal.SIGTERM)
        else:
            processes.die_with_parent(parent)
    except ProcessLookupError:
        os._exit(0)


def _let_forks_go(descriptor: int) -> None:
    """What a handler forks is an ordinary process again: signals end it, also those that come
    before it has taken its first step, and the supervisor is not its own."""
    masks = threading.local()

    def before() -> None:
        masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, _SPARED)

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
    setup: ChildSetup, handlers: Mapping[str, Handler], board: Board, connection: socket.socket
) -> None:
    line = await _Line.over(connection)
    line.hands = Runner(setup, handlers, board, line.send, line.finish)
    line.send([Ready(tuple(each.info for each in handlers.values()))])
    await line.close_when_finished()


async def _run_built_in(
    setup: ChildSetup, board: Board, connection: socket.socket, parent: int
) -> None:
    def look_up() -> None:
        if os.getppid() != parent:
            end_at_once()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, look_up)
    line = await _Line.over(connection)
    if setup.webhook is None:
        line.hands = _commands_class()(setup, board, line.send, line.finish)
        line.send([Ready((COMMAND,))])
    else:
        # It takes a while to import what speaks TLS: commands have no use for it.
        from holdfast.worker.webhook import webhook_handler

        handler = webhook_handler(setup.webhook)
        line.hands = Runner(setup, {handler.name: handler}, board, line.send, line.finish)
        line.send([Ready((handler.info,))])
    await line.close_when_finished()


def _commands_class() -> type[Commands]:
    if not tracing.is_on():
        return Commands
    from holdfast.worker.tracing import TracedCommands

    return TracedCommands


class _Line(asyncio.Protocol):
    """The socket to the supervisor."""

    def __init__(self) -> None:
        self.hands: Hands | None = None
        self._frames = Frames()
        self._finished = asyncio.Event()
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(cls, connection: socket.socket) -> _Line:
        _, line = await asyncio.get_running_loop().create_connection(cls, sock=connection)
        return line

    async def close_when_finished(self) -> None:
        await self._finished.wait()
        assert self._transport is not None
        # What was said last may still be on its way.
        self._transport.close()
        await self._closed.wait()

    def finish(self) -> None:
        self._finished.set()

    def send(self, words: list[Up]) -> None:
        assert self._transport is not None
        self._transport.write(frame(words))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.hands is not None
        for body in self._frames.feed(data):
            self.hands.take(words_down(body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._finished.is_set():
            end_at_once(0 if error is None or isinstance(error, ConnectionError) else 1)
        self._closed.set()


def end_at_once(status: int = 0) -> NoReturn:
    """Nobody wants any more what runs here, nor what it started."""
    for _ in range(500):
        processes.sweep_strangers(())
        if not processes.kill_descendants(os.getpid()):
            break
        time.sleep(0.002)
    os._exit(status)


if __name__ == "__main__":
    main()
