"""A private server for tests that can be killed and restarted at the same address."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_RUN = "import sys; from holdfast.cli import main; sys.argv[0] = 'holdfast'; main()"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class PrivateServer:
    """`holdfast serve` in a child process that dies with this one. Without upkeep, only recorded
    clients change the store."""

    def __init__(
        self, store: str, directory: Path, *, flags: Sequence[str] = (), upkeep: bool = False
    ) -> None:
        self._store = store
        self._flags = flags if upkeep else ("--no-upkeep", *flags)
        self._log = directory / "server.log"
        self._port = _free_port()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.restart()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def restart(self) -> None:
        """Start the server; returns when it listens."""
        command = [sys.executable, "-c", _RUN, "serve", "--json", *self._flags]
        command += ["--url", self._store, "--port", str(self._port)]
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")
        }
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Safe: no thread runs yet, and the function only calls the kernel.
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the server did not start: {self.log[-2000:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
