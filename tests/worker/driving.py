"""A child process as a supervisor has it, for tests: started, spoken to, and surely gone."""

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
from holdfast.worker.board import Board
from holdfast.worker.options import INHERITED
from holdfast.worker.wire import (
    Call,
    ChildSetup,
    Down,
    Ended,
    Ending,
    Frames,
    Given,
    Told,
    Up,
    frame,
    words_up,
)
from tests.patience import wait_until

PATIENCE_S = 60.0
"""Ends a hang; nothing is measured by it."""

Word = TypeVar("Word", bound=Up)


def given_job(payload: Any = None, **fields: Any) -> Given:
    data = payload if isinstance(payload, bytes) else codec.encode(payload)
    given = {"id": "j1", "queue": "q", "attempt": 1, "token": 7, "created_at": 1_000, **fields}
    return Given(payload=data, content_type="application/json", **given)


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
    """`words` are all it said so far."""

    def __init__(self, how: ChildSetup, cwd: Path | None = None) -> None:
        self.setup = how
        self.board = Board.make(how.slots)
        self.words: list[Up] = []
        self._number = 0
        self._frames = Frames()
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        environment = {
            **os.environ,
            "HOLDFAST_CHILD_SOCKET": str(theirs.fileno()),
            "HOLDFAST_CHILD_BOARD": str(self.board.descriptor),
            "HOLDFAST_CHILD_SETUP": msgspec.json.encode(how).decode(),
            "HOLDFAST_WORKER_ID": how.worker_id,
        }
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.worker.child"],
                pass_fds=(theirs.fileno(), self.board.descriptor),
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def say(self, *words: Down) -> None:
        self.socket.sendall(frame(list(words)))

    def call(
        self, task: str, payload: Any = None, timeout_ms: int | None = None, **fields: Any
    ) -> int:
        """The call's number."""
        self._number += 1
        fields.setdefault("id", f"j{self._number}")
        self.say(Call(self._number, task, (given_job(payload, **fields),), timeout_ms))
        return self._number

    def command(
        self, command: str | list[str], timeout_ms: int | None = None, **payload: Any
    ) -> int:
        return self.call("command", {"command": command, **payload}, timeout_ms)

    def run(
        self, command: str | list[str], timeout_ms: int | None = None, **payload: Any
    ) -> Ending:
        return self.ending(self.command(command, timeout_ms, **payload))

    def hear(self, kind: type[Word], suits: Callable[[Word], bool] = lambda _: True) -> Word:
        """The first such word, of those said already or still to come."""
        seen = 0
        while True:
            for word in self.words[seen:]:
                if isinstance(word, kind) and suits(word):
                    return word
            seen = len(self.words)
            data = self.socket.recv(1 << 20)
            assert data, f"the child hung up; it said {self.words[-3:]}"
            for body in self._frames.feed(data):
                self.words += words_up(body)

    def ending(self, number: int) -> Ending:
        return self.hear(Ended, lambda word: word.number == number).endings[0]

    def output(self, number: int) -> bytes:
        """All that the call printed, when it is over: told before, or with its ending."""
        last = self.ending(number).output
        told = [w.output for w in self.words if isinstance(w, Told) and w.number == number]
        return next((text for text in (last, *reversed(told)) if text is not None), b"")

    def survivors(self) -> list[int]:
        """Whatever was started for this worker and lives, the child itself aside."""
        found = processes.marked({b"HOLDFAST_WORKER_ID": self.setup.worker_id.encode()})
        return [pid for pid in found if pid != self.process.pid and is_alive(pid)]


@contextmanager
def started(cwd: Path | None = None, **fields: Any) -> Iterator[Child]:
    """A child with this setup, which is gone afterwards and left nothing behind."""
    child = Child(setup(**fields), cwd)
    try:
        yield child
        child.socket.close()
        child.process.wait(PATIENCE_S)
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
    """The process id that a script writes, with a newline, into this file."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())
