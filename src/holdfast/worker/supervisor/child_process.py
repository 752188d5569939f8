"""One child process as its supervisor sees it: started, instructed, watched, killed.

It knows nothing of jobs and leases. A child is forked from a template process, which has imported
the application already, or else executed as a new interpreter. Its death is seen at once through
its pidfd, and reported when everything it managed to send has been received.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from holdfast.core.text import printable
from holdfast.process import LogFormat, json_line, json_time
from holdfast.worker.child.attempt import failure_of
from holdfast.worker.child.handlers import load_application
from holdfast.worker.child.logs import add_filters
from holdfast.worker.child.runner import HandlerRunner
from holdfast.worker.supervisor.held_leases import RunnerKind
from holdfast.worker.supervisor.template_process import TemplateProcess
from holdfast.worker.wire import (
    TEMPLATE_READY,
    Board,
    ChildBroken,
    ChildSetup,
    FrameReader,
    FromChild,
    TemplateSetup,
    ToChild,
    decode_from_child,
    encode_frame,
)

_log = logging.getLogger("holdfast.worker")

_TAIL_MAX = 4096
_HANG_UP_S = 3.0
"""How long a child may take to end its commands before it is killed."""
_LINGER_S = 0.5
"""How long a dead child's socket may stay open in processes that it forked."""
_LOCAL_END_S = 1.0
_ANSWER_S = 10.0
_REST_S = 30.0
"""The pause before a template that failed is tried again."""
_ANSWER_MAX = 4096
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 10.0


class ChildListener(Protocol):
    """Callbacks from a child process to the pool."""

    def received(self, process: ChildProcess, answers: list[FromChild]) -> None: ...

    def died(self, process: ChildProcess) -> None: ...


class ChildProcess(asyncio.Protocol):
    """`status` is the exit status as `subprocess` gives it, None while the child lives; `tail` is
    the end of its output.
    """

    killable = True
    template: ForkTemplate | None = None
    """The template it is forked from, if any."""

    def __init__(self, setup: ChildSetup, listener: ChildListener, solo: bool) -> None:
        self.setup = setup
        self.solo = solo
        self.board: Board = Board.make(setup.slots)
        self.status: int | None = None
        self.tail: bytes = b""
        self._listener = listener
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[ToChild] = []
        self._closed = asyncio.Event()
        self._reported = asyncio.Event()
        self._reaping: asyncio.Task[None] | None = None
        self._process: SpawnedProcess | None = None
        self._pidfd = -1
        self._output = -1
        self._hung_up = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def kind(self) -> RunnerKind:
        """The kind of jobs it runs."""
        if self.setup.target is None:
            return "command" if self.setup.webhook is None else "webhook"
        return "solo" if self.solo else "python"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        output, their_output = os.pipe()
        try:
            with theirs, os.fdopen(their_output, "wb") as sink:
                descriptors = ChildDescriptors(
                    theirs.fileno(), self.board.descriptor, sink.fileno()
                )
                if self.template is not None:
                    self._process = await self.template.fork(self.setup, descriptors)
                if self._process is None:
                    self._process = execute(self.setup, descriptors)
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

    def write(self, instructions: list[ToChild]) -> None:
        """Send nothing to a child that is dead or disconnected; its death is reported anyway."""
        if self._transport is None:
            self._unsent += instructions
        elif not self._hung_up and not self._transport.is_closing():
            self._transport.write(encode_frame(instructions))

    def kill(self) -> None:
        """Kill it; its death is reported like any other. For a child that runs commands the
        connection is closed first, so that it ends them and itself: killed outright, it would leave
        them to this process, which may be killed before it finds them.
        """
        transport = self._transport
        if self.setup.target is None and transport is not None and not self._hung_up:
            self._hung_up = True
            transport.write_eof()
            asyncio.get_running_loop().call_later(_HANG_UP_S, self._kill_group)
        else:
            self._kill_group()

    async def wait_dead(self) -> None:
        """Wait until its death was reported."""
        await self._reported.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not all event loops use transports of that class.
        self._transport = cast("asyncio.Transport", transport)
        unsent, self._unsent = self._unsent, []
        if unsent:
            self.write(unsent)

    def data_received(self, data: bytes) -> None:
        # All frames together: after each report the child gets more calls, in a frame of its own.
        answers = [answer for body in self._frames.feed(data) for answer in decode_from_child(body)]
        if answers:
            self._listener.received(self, answers)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        if self.status is None and self._reaping is None and not self._hung_up:
            # It closed the connection without dying: it is of no more use.
            self.kill()

    def _kill_group(self) -> None:
        if self._process is not None and self._reaping is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _read_output(self) -> None:
        try:
            data = os.read(self._output, 65536)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
            return
        self.tail = (self.tail + data)[-_TAIL_MAX:]
        write_stderr(printable(data.decode(errors="replace")).encode())

    def _see_death(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        assert self._process is not None
        # Processes that it forked may still run in its group, and hold the socket open.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._reaping = asyncio.create_task(self._reap(status))

    async def _reap(self, status: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
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
        self._reported.set()


class LocalChild(ChildProcess):
    """`--processes 0`: handlers run in the supervisor itself, behind the interface of a child.

    Nothing here can be killed; `kill` cancels what can be cancelled, only when the worker ends. A
    handler that blocks the interpreter also delays renewals, and one that blocks a thread runs past
    its timeout: child processes avoid both.
    """

    killable = False

    def __init__(self, setup: ChildSetup, listener: ChildListener, solo: bool) -> None:
        super().__init__(setup, listener, solo)
        self._runner: HandlerRunner | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Import the application here, and report it as a child would."""
        assert self.setup.target is not None
        try:
            application = load_application(self.setup.target)
            add_filters()
        except BaseException as error:  # noqa: BLE001 (an application may even exit on import)
            return self._receive([ChildBroken(failure_of(error))])
        self._runner = HandlerRunner(self.setup, application.handlers, self.board, self._receive)
        return self._receive([application.ready])

    def write(self, instructions: list[ToChild]) -> None:
        if self._runner is not None:
            asyncio.get_running_loop().call_soon(self._runner.receive, instructions)

    def kill(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    async def wait_dead(self) -> None:
        self.kill()
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    def _receive(self, answers: list[FromChild]) -> None:
        asyncio.get_running_loop().call_soon(self._listener.received, self, answers)

    async def _stop(self) -> None:
        if self._runner is not None:
            self._runner.stop()
            await asyncio.sleep(0)
        waited = 0.0
        while self.board.running() and waited < _LOCAL_END_S:
            await asyncio.sleep(0.01)
            waited += 0.01
        self.status: int | None = 0
        self._listener.died(self)


def make_child(setup: ChildSetup, listener: ChildListener, solo: bool) -> ChildProcess:
    """The child of a worker without child processes for Python; commands still have theirs."""
    return (ChildProcess if setup.target is None else LocalChild)(setup, listener, solo)


class ForkedProcess(NamedTuple):
    """A process that became a child of this one when its parent ended."""

    pid: int

    def wait(self) -> int:
        """The exit status as `subprocess` gives it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


SpawnedProcess: TypeAlias = subprocess.Popen[bytes] | ForkedProcess


class ChildDescriptors(NamedTuple):
    """The child's end of its socket, its board, and the pipe for its output."""

    connection: int
    board: int
    output: int


def execute(setup: ChildSetup, descriptors: ChildDescriptors) -> SpawnedProcess:
    """Start a new interpreter. Only from the main thread: a child dies with the thread that
    started it."""
    environment = {
        **os.environ,
        "HOLDFAST_CHILD_SETUP": msgspec.json.encode(setup).decode(),
        "HOLDFAST_CHILD_SOCKET": str(descriptors.connection),
        "HOLDFAST_CHILD_BOARD": str(descriptors.board),
        "HOLDFAST_WORKER_ID": setup.worker_id,
        "PYTHONUNBUFFERED": "1",
    }
    if setup.target is None:
        # A handler that enqueues needs the store's URL; commands must not see it.
        environment.pop("HOLDFAST_URL", None)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.worker.child.main"],
        pass_fds=(descriptors.connection, descriptors.board),
        stdin=subprocess.DEVNULL,
        stdout=descriptors.output,
        stderr=descriptors.output,
        env=environment,
        start_new_session=True,
    )


class ForkTemplate:
    """The template process, seen from the supervisor. It is `started` already, or else when first
    needed, and started again after it has died.
    """

    def __init__(self, setup: ChildSetup, started: TemplateProcess | None = None) -> None:
        self._setup = setup
        self._process = started
        self._socket: socket.socket | None = None
        """The connection to a template that has imported the application."""
        self._lock = asyncio.Lock()
        self._rests_until = 0.0
        self.busy: bool = False
        """This process may have a child now whose process id is not known yet."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def fork(self, setup: ChildSetup, descriptors: ChildDescriptors) -> ForkedProcess | None:
        """None if the child must be executed instead. Nothing is awaited after the answer, so that
        the caller knows the child before it looks for unknown processes. Raises TimeoutError if
        there was no answer. A child may start nevertheless: close these descriptors, and use
        neither them nor this template again.
        """
        async with self._lock:
            try:
                return await self._fork(setup, descriptors)
            except asyncio.CancelledError:
                self.end()
                raise
            except TimeoutError:
                self._rest(f"the template did not answer within {_ANSWER_S:g} s")
                raise
            except (OSError, ValueError) as error:
                self._rest(str(error))
                return None

    def end(self) -> None:
        """Kill the template."""
        self._socket = None
        if self._process is not None:
            self._process.end()
            self._process = None

    async def _fork(self, setup: ChildSetup, descriptors: ChildDescriptors) -> ForkedProcess | None:
        if self._socket is not None:
            with suppress(ConnectionError):
                return await self._request(self._socket, setup, descriptors)
            # It has died since the last time.
            self.end()
        if monotonic() < self._rests_until:
            return None
        connection = await self._start()
        return None if connection is None else await self._request(connection, setup, descriptors)

    async def _request(
        self, connection: socket.socket, setup: ChildSetup, descriptors: ChildDescriptors
    ) -> ForkedProcess:
        self.busy = True
        try:
            socket.send_fds(connection, [msgspec.json.encode(setup)], list(descriptors))
            async with asyncio.timeout(_ANSWER_S):
                return ForkedProcess(int(await _answer(connection)))
        finally:
            self.busy = False

    async def _start(self) -> socket.socket | None:
        """None if the application cannot be forked. The import may take any amount of time."""
        if self._process is None:
            self._process = TemplateProcess(self._setup.worker_id)
        connection = self._process.connection
        setup = TemplateSetup(setup=self._setup, url=os.environ.get("HOLDFAST_URL"))
        connection.send(msgspec.json.encode(setup))
        answer = await _answer(connection)
        if answer == TEMPLATE_READY:
            self._socket = connection
            return connection
        self.end()
        self._rests_until = math.inf
        _log.info(
            "each child process imports the application itself: %s", answer.decode(errors="replace")
        )
        return None

    def _rest(self, reason: str) -> None:
        self.end()
        self._rests_until = max(self._rests_until, monotonic() + _REST_S)
        _log.warning("child processes start more slowly for %.0f s: %s", _REST_S, reason)


class SpawnSchedule:
    """Schedules the start of children: at once, or after a pause that grows while they fail.
    `spawn` starts one, given its setup and whether it runs one job alone."""

    def __init__(self, spawn: Callable[[ChildSetup, bool], Awaitable[None]]) -> None:
        self._spawn = spawn
        self._under_way: set[asyncio.Task[None]] = set()
        self._pause_s = _PAUSE_S_FIRST
        self.solos: int = 0
        """Number of solo children that have not been started yet."""

    def later(self, setup: ChildSetup, *, solo: bool, after_s: float) -> None:
        """Start a child after this many seconds."""

        async def begin() -> None:
            try:
                await asyncio.sleep(after_s)
            finally:
                self.solos -= solo
            await self._spawn(setup, solo)

        self.solos += solo
        task = asyncio.create_task(begin())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def succeeded(self) -> None:
        """A child became ready."""
        self._pause_s = _PAUSE_S_FIRST

    def failed(self) -> float:
        """A child died before it was ready; returns how long to wait before the next one."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _PAUSE_S_MAX)
        return pause_s

    async def stop(self) -> None:
        """Start no more children."""
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _answer(connection: socket.socket) -> bytes:
    answer = await asyncio.get_running_loop().sock_recv(connection, _ANSWER_MAX)
    if not answer:
        raise ConnectionResetError("the template has died")
    return answer


def line_writer(log_format: LogFormat | None) -> Callable[[str, Mapping[str, Any]], None]:
    """A function that writes a line about the worker, like a log line, without ever waiting. Only
    lines of JSON have the fields."""

    def write_text(text: str, _fields: Mapping[str, Any]) -> None:
        write_stderr(f"holdfast: {printable(text, one_line=True)}\n".encode())

    def write_json(text: str, fields: Mapping[str, Any]) -> None:
        line = {"level": "info", "logger": "holdfast.worker", "message": text, **fields}
        write_stderr(f"{json_line({'time': json_time(time.time()), **line})}\n".encode())

    return write_json if log_format == "json" else write_text


def write_stderr(data: bytes) -> None:
    """Write as much as is possible without blocking: a supervisor that waited for a stopped
    terminal would let its leases expire.
    """
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    for at in range(0, len(data), select.PIPE_BUF):
        if not ready.poll(0):
            return
        with suppress(OSError):
            os.write(2, data[at : at + select.PIPE_BUF])
