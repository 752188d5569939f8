"""Where a worker's children come from: forked from the template, or executed afresh.

A fork takes some milliseconds, because the application is imported already. Whenever there is no
fork to be had, for whatever reason, the child is executed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.worker.wire import ChildSetup

_log = logging.getLogger("holdfast.worker")

_ANSWER_S = 10.0
_REST_S = 30.0
"""A template that came to nothing is not tried again before."""
READY = b"ready"
_ANSWER_MAX = 4096


class Forked(NamedTuple):
    """A process that became this one's child when its parent ended."""

    pid: int

    def wait(self) -> int:
        """The exit status as `subprocess` gives it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


Process: TypeAlias = subprocess.Popen[bytes] | Forked


class Ends(NamedTuple):
    """The child's: descriptors of its socket, its board, and the pipe for its output."""

    connection: int
    board: int
    output: int


def execute(setup: ChildSetup, ends: Ends) -> Process:
    """A new interpreter. From the main thread alone: a child dies with the thread that started
    it."""
    environment = _environment(setup)
    environment["HOLDFAST_CHILD_SOCKET"] = str(ends.connection)
    environment["HOLDFAST_CHILD_BOARD"] = str(ends.board)
    if setup.target is None:
        # Commands need not know where the jobs are, nor how to get in; a handler that enqueues
        # does.
        environment.pop("HOLDFAST_URL", None)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.worker.child"],
        pass_fds=(ends.connection, ends.board),
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=ends.output,
        env=environment,
        start_new_session=True,
    )


class Template:
    """The process that has the application imported; started when first needed, and again when it
    has died."""

    def __init__(self, setup: ChildSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._rests_until = 0.0
        self.busy = False
        """This process may have a child just now whose number nobody knows yet."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def fork(self, setup: ChildSetup, ends: Ends) -> Forked | None:
        """None when it must be executed instead. Nothing is awaited after the answer: whoever has
        it knows the child before anybody can look for strangers.

        Raises TimeoutError if there was no answer: a child may come all the same, so that these
        ends must be closed, and neither they nor this template be used again.
        """
        async with self._lock:
            try:
                return await self._fork(setup, ends)
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
        """With whatever is in its group."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _fork(self, setup: ChildSetup, ends: Ends) -> Forked | None:
        if self._line is not None:
            with suppress(ConnectionError):
                return await self._ask(self._line, setup, ends)
            # It has died since the last time.
            self.end()
        if monotonic() < self._rests_until:
            return None
        line = await self._start()
        return None if line is None else await self._ask(line, setup, ends)

    async def _ask(self, line: socket.socket, setup: ChildSetup, ends: Ends) -> Forked:
        self.busy = True
        try:
            socket.send_fds(line, [msgspec.json.encode(setup)], list(ends))
            async with asyncio.timeout(_ANSWER_S):
                return Forked(int(await _answer(line)))
        finally:
            self.busy = False

    async def _start(self) -> socket.socket | None:
        """None when the application cannot be forked. The import takes as long as it takes."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        environment = _environment(self._setup)
        environment["HOLDFAST_TEMPLATE_SOCKET"] = str(theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (it takes a millisecond)
                [sys.executable, "-m", "holdfast.worker.template"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=environment,
                start_new_session=True,
            )
        answer = await _answer(self._line)
        if answer == READY:
            return self._line
        self.end()
        self._rests_until = math.inf
        _log.info("children are executed, not forked: %s", answer.decode(errors="replace"))
        return None

    def _rest(self, why: str) -> None:
        self.end()
        self._rests_until = max(self._rests_until, monotonic() + _REST_S)
        _log.warning("children are executed, not forked, for %.0f s: %s", _REST_S, why)


async def _answer(line: socket.socket) -> bytes:
    answer = await asyncio.get_running_loop().sock_recv(line, _ANSWER_MAX)
    if not answer:
        raise ConnectionResetError("the template has died")
    return answer


def _environment(setup: ChildSetup) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_CHILD_SETUP": msgspec.json.encode(setup).decode(),
        "HOLDFAST_WORKER_ID": setup.worker_id,
        "PYTHONUNBUFFERED": "1",
    }
