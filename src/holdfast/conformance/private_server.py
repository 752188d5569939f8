"""PrivateServer: a server process that a test creates, kills, restarts and removes.

Nothing is written outside one temporary directory. A watching process, which is this file run as a
script, waits for the end of the owner, even by SIGKILL; then it ends whatever still runs in that
directory and removes it.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

START_S_MAX = 120
STOP_S_MAX = 60
POLL_S = 0.01
RETRY_S = 0.05
RECLAIM_S = 5.0


class ServiceUnavailable(Exception):
    """A service needed by a test is not available; the message says why and what to do."""


class PrivateServer:
    """One server in a directory of its own. Blocking; usable as a context manager.

    Its address stays the same across `kill` and `restart`. When the owning process ends in any way,
    SIGKILL included, the server is stopped and its directory removed.
    """

    title: ClassVar[str]
    graceful: ClassVar[signal.Signals]
    """Ends the server in order, with its data complete."""
    immediate: ClassVar[signal.Signals]
    """Ends it without that."""
    transient: ClassVar[tuple[str, ...]] = ()
    """Texts in the log of a failed start that may succeed when it is repeated."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._port = 0
        self._user: str | None = None
        self._group: str | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._reclaimer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it is down."""
        server = self._server
        return server.pid if server is not None and server.poll() is None else None

    @property
    def log(self) -> str:
        """The server's log so far."""
        path = self._directory and self._directory / "log"
        return path.read_text(errors="replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it accepts connections; the first start creates its
        files."""
        assert self.pid is None, "the server is running already"
        is_first = self._directory is None
        try:
            if is_first:
                self._directory = self._make_directory()
                self._create(self._directory)
            self._launch(is_first)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """SIGKILL the server; its children notice by themselves, as in a real crash."""
        assert self._server is not None, "the server was not started"
        self._server.kill()
        self._server.wait()

    def restart(self) -> None:
        """Start it again on the same port after a kill; a running server is shut down first."""
        if self.pid is not None:
            assert self._server is not None
            self._server.send_signal(self.graceful)
            self._server.wait(STOP_S_MAX)
        self.start()

    def stop(self) -> None:
        """Stop the server and remove its files; harmless when repeated."""
        if self.pid is not None:
            assert self._server is not None
            self._server.send_signal(self.immediate)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(STOP_S_MAX)
            self._server.kill()
            self._server.wait()
        if self._directory is not None:
            reclaim(self._directory, self.immediate)
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        if self._reclaimer is not None:
            # Killed, because a forked child may keep open the pipe whose end it waits for.
            self._reclaimer.kill()
            self._reclaimer.communicate()
        self._directory = self._server = self._reclaimer = None
        self._helpers = []

    def _create(self, directory: Path) -> None:
        """Make the files of a new server."""

    def _choose_address(self, directory: Path) -> None:
        """Choose the port, before the first start and again when that port was taken meanwhile."""
        [self._port] = free_ports(1)

    def _command(self, directory: Path) -> Sequence[str | Path]:
        """The line that starts the server in the foreground."""
        raise NotImplementedError

    def _environment(self, directory: Path) -> Mapping[str, str]:
        raise NotImplementedError

    def _is_ready(self, directory: Path) -> bool:
        """Whether the process just started accepts connections."""
        raise NotImplementedError

    def _complaint(self, log: str) -> str:
        """The part of a log that explains a failed start."""
        return log[-2000:]

    def _make_directory(self) -> Path:
        prefix = f"holdfast-{self.title.lower()}-"
        directory = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
        # This file as a script, without the package: it starts in a few milliseconds.
        script = [sys.executable, "-I", "-S", __file__, str(directory)]
        script.append(str(self.immediate.value))
        self._reclaimer = subprocess.Popen(script, stdin=subprocess.PIPE, start_new_session=True)
        return directory

    def _launch(self, is_first: bool) -> None:
        """After a crash the old children may hold resources for a while: retry until they exit."""
        assert self._directory is not None
        deadline = time.monotonic() + START_S_MAX
        while True:
            if is_first:
                self._choose_address(self._directory)
            if self._try_launch(self._directory, deadline):
                return
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{self.title} did not start: {self._complaint(self.log)}")
            time.sleep(RETRY_S)

    def _try_launch(self, directory: Path, deadline: float) -> bool:
        start = len(self.log)
        self._server = self._spawn(directory, self._command(directory))
        while self._server.poll() is None and time.monotonic() < deadline:
            if self._is_ready(directory):
                return True
            time.sleep(POLL_S)
        refusal = self.log[start:]
        if self._server.poll() is not None and not any(text in refusal for text in self.transient):
            raise ServiceUnavailable(f"{self.title} refused to start: {self._complaint(refusal)}")
        return False

    def _spawn(self, directory: Path, command: Sequence[str | Path]) -> "subprocess.Popen[bytes]":
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment(directory),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
                group=self._group,
            )


def free_ports(count: int) -> list[int]:
    """Free ports below the range of outgoing connections: while the server is down, a client that
    reconnects could otherwise get this very port as its own and connect to itself."""
    with contextlib.ExitStack() as stack:
        ports = list[int]()
        for _ in range(1000):
            port = random.randrange(10_240, 32_000)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ServiceUnavailable("no free port on 127.0.0.1 between 10240 and 32000")


def reclaim(directory: Path, first: signal.Signals) -> None:
    """Stop whatever still runs in the directory, with the first signal, then with SIGKILL; remove
    it."""
    for number in (first, signal.SIGKILL):
        deadline = time.monotonic() + RECLAIM_S
        signalled = set[int]()
        while (pids := _processes_in(directory)) and time.monotonic() < deadline:
            for pid in pids - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                signalled.add(pid)
            time.sleep(POLL_S)
    shutil.rmtree(directory, ignore_errors=True)


def _processes_in(directory: Path) -> set[int]:
    """The server and its children: all have a working directory in there."""
    found = set[int]()
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        # Processes may end meanwhile, and those of other users cannot be read.
        with contextlib.suppress(OSError):
            if entry.readlink().is_relative_to(directory):
                found.add(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reclaim(Path(sys.argv[1]), signal.Signals(int(sys.argv[2])))
