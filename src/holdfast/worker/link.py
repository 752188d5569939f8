"""One child process as its supervisor sees it: started, spoken to, watched, killed.

It knows nothing of jobs and leases, only of calls by number. A child's death is seen at once,
through its pidfd, and told once everything it managed to say has been read.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from contextlib import suppress
from typing import Protocol, cast

from holdfast.core.text import printable
from holdfast.worker.board import Board
from holdfast.worker.hand import Kind
from holdfast.worker.nursery import Ends, Process, Template, execute
from holdfast.worker.wire import ChildSetup, Down, Frames, Up, frame, words_up

_TAIL_MAX = 4096
_HUNG_UP_S = 3.0
_LAST_WORDS_S = 0.5
"""How long a dead child's socket may stay open in what it forked, before it is left."""


class Listener(Protocol):
    """Who is told about a child."""

    def heard(self, link: Link, words: list[Up]) -> None: ...

    def died(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """`status` is the exit status as `subprocess` gives it, None while the child lives."""

    killable = True
    template: Template | None = None
    """What it is forked from, if it is."""

    def __init__(self, setup: ChildSetup, listener: Listener, solo: bool) -> None:
        self.setup = setup
        self.solo = solo
        self.board = Board.make(setup.slots)
        self.status: int | None = None
        self.tail = b""
        self._listener = listener
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Down] = []
        self._closed = asyncio.Event()
        self._told = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._pidfd = -1
        self._output = -1
        self._hung_up = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def kind(self) -> Kind:
        """Of the jobs it is for."""
        if self.setup.target is None:
            return "command" if self.setup.webhook is None else "webhook"
        return "solo" if self.solo else "python"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        output, theirs_output = os.pipe()
        try:
            with theirs, os.fdopen(theirs_output, "wb") as sink:
                ends = Ends(theirs.fileno(), self.board.descriptor, sink.fileno())
                if self.template is not None:
                    self._process = await self.template.fork(self.setup, ends)
                if self._process is None:
                    self._process = execute(self.setup, ends)
        except BaseException:
            ours.close()
            os.close(output)
            raise
        os.set_blocking(output, False)
        self._output = output
        loop.add_reader(output, self._read_output)
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._see_death)
        await loop.create_connection(lambda: self, sock=ours)

    def say(self, words: list[Down]) -> None:
        """Nothing is heard any more by a child that has died, or was hung up on; its death is told
        anyway."""
        if self._transport is None:
            self._unsent += words
        elif not self._hung_up and not self._transport.is_closing():
            self._transport.write(frame(words))

    def kill(self) -> None:
        """The death is told as any other. One that runs commands is hung up on first: it then ends
        them and itself, while killed outright it would leave them for this process to find, which
        may be killed before it does."""
        transport = self._transport
        if self.setup.target is None and transport is not None and not self._hung_up:
            self._hung_up = True
            transport.write_eof()
            asyncio.get_running_loop().call_later(_HUNG_UP_S, self._kill_outright)
        else:
            self._kill_outright()

    def _kill_outright(self) -> None:
        """The whole group."""
        if self._process is not None and self._waiting is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def dead(self) -> None:
        """When its death has been told."""
        await self._told.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are of that class.
        self._transport = cast("asyncio.Transport", transport)
        unsent, self._unsent = self._unsent, []
        if unsent:
            self.say(unsent)

    def data_received(self, data: bytes) -> None:
        # All that came at once: after each hearing the child is given more, in a frame of its own.
        words = [word for body in self._frames.feed(data) for word in words_up(body)]
        if words:
            self._listener.heard(self, words)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        if self.status is None and self._waiting is None and not self._hung_up:
            # It hung up without dying: it is of no more use.
            self.kill()

    def _read_output(self) -> None:
        try:
            data = os.read(self._output, 65536)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
            return
        self.tail = (self.tail + data)[-_TAIL_MAX:]
        _pass_on(printable(data.decode(errors="replace")).encode())

    def _see_death(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        assert self._process is not None
        # What it forked may go on in its group, and holds the socket open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._waiting = asyncio.create_task(self._bury(status))

    async def _bury(self, status: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._closed.wait()
        if self._transport is not None:
            self._transport.abort()
        loop = asyncio.get_running_loop()
        self._read_output()
        loop.remove_reader(self._output)
        os.close(self._output)
        os.close(self._pidfd)
        self.status = status
        self._listener.died(self)
        self.board.close()
        self._told.set()


def _pass_on(data: bytes) -> None:
    """To this process's own standard error, as far as somebody reads it: whoever waits for a
    terminal that was stopped lets leases lapse."""
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    for at in range(0, len(data), select.PIPE_BUF):
        if not ready.poll(0):
            return
        with suppress(OSError):
            os.write(2, data[at : at + select.PIPE_BUF])
