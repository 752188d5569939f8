"""A child process for tests, started and instructed as by a supervisor, and killed at the end."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.core import codec
from holdfast.worker import processes
from holdfast.worker.options import INHERITED
from holdfast.worker.wire import (
    Board,
    CallJob,
    CallsEnded,
    ChildCalls,
    ChildSetup,
    Ending,
    FrameReader,
    FromChild,
    NoteUpdate,
    ToChild,
    decode_from_child,
    encode_frame,
)
from tests.wait import wait_until

TIMEOUT_S = 60.0
"""Only ends a test that hangs."""

Answer = TypeVar("Answer", bound=FromChild)


def given_job(payload: Any = None, **fields: Any) -> CallJob:
    data = payload if isinstance(payload, bytes) else codec.encode(payload)
    given = {"id": "j1", "queue": "q", "attempt": 1, "token": 7, "created_at": 1_000, **fields}
    return CallJob(payload=data, content_type="application/json", **given)


def setup(**fields: Any) -> ChildSetup:
    given: dict[str, Any] = {
        "worker": "w",
        "worker_id": uuid.uuid4().hex,
        "slots": 4,
        "environment": INHERITED,
        "grace_ms": 300,
        **fields,
    }
    return ChildSetup(**given)


class Child:
    """`answers` are all that came so far."""

    def __init__(self, how: ChildSetup, cwd: Path | None = None) -> None:
        self.setup = how
        self.board = Board.make(how.slots)
        self.answers: list[FromChild] = []
        self._number = 0
        self._frames = FrameReader()
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        environment = {
            **os.environ,
            "HOLDFAST_CHILD_SOCKET": str(theirs.fileno()),
            "HOLDFAST_CHILD_BOARD": str(self.board.descriptor),
            "HOLDFAST_CHILD_SETUP": msgspec.json.encode(how).decode(),
            "HOLDFAST_WORKER_ID": how.worker_id,
        }
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.worker.child.main"],
                pass_fds=(theirs.fileno(), self.board.descriptor),
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def write(self, *instructions: ToChild) -> None:
        self.socket.sendall(encode_frame(instructions))

    def call(
        self, task: str, payload: Any = None, timeout_ms: int | None = None, **fields: Any
    ) -> int:
        """Start a call; returns its number."""
        self._number += 1
        fields.setdefault("id", f"j{self._number}")
        self.write(ChildCalls(self._number, task, [(given_job(payload, **fields),)], timeout_ms))
        return self._number

    def command(
        self, command: str | list[str], timeout_ms: int | None = None, **payload: Any
    ) -> int:
        return self.call("command", {"command": command, **payload}, timeout_ms)

    def run(
        self, command: str | list[str], timeout_ms: int | None = None, **payload: Any
    ) -> Ending:
        return self.ending(self.command(command, timeout_ms, **payload))

    def wait_for(
        self, kind: type[Answer], suits: Callable[[Answer], bool] = lambda _: True
    ) -> Answer:
        """The first such answer, of those received or still to come."""
        seen = 0
        while True:
            for answer in self.answers[seen:]:
                if isinstance(answer, kind) and suits(answer):
                    return answer
            seen = len(self.answers)
            data = self.socket.recv(1 << 20)
            assert data, f"the child hung up; it said {self.answers[-3:]}"
            for body in self._frames.feed(data):
                self.answers += decode_from_child(body)

    def ending(self, number: int) -> Ending:
        return self.wait_for(CallsEnded, lambda answer: number in answer.numbers).endings[0]

    def output(self, number: int) -> bytes:
        """All output of an ended call, from its notes or its ending."""
        last = self.ending(number).output
        told = [w.output for w in self.answers if isinstance(w, NoteUpdate) and w.number == number]
        return next((text for text in (last, *reversed(told)) if text is not None), b"")

    def survivors(self) -> list[int]:
        """Living processes of this worker, without the child itself."""
        found = processes.marked({b"HOLDFAST_WORKER_ID": self.setup.worker_id.encode()})
        return [pid for pid in found if pid != self.process.pid and is_alive(pid)]


@contextmanager
def started(cwd: Path | None = None, **fields: Any) -> Iterator[Child]:
    """A child with this setup; afterwards it is gone and left no process."""
    child = Child(setup(**fields), cwd)
    try:
        yield child
        child.socket.close()
        child.process.wait(TIMEOUT_S)
        wait_until(lambda: not child.survivors())
    finally:
        child.socket.close()
        if child.process.poll() is None:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        for pid in child.survivors():
            processes.kill(pid)
        child.board.close()


def is_alive(pid: int) -> bool:
    stat = processes.stat(pid)
    return stat is not None and stat.state not in "ZX"


def wait_for_pid(path: Path) -> int:
    """The process id that a script writes into this file."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())
