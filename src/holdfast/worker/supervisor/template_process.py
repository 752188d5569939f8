"""Starts the process that children are forked from. It imports little: a supervisor starts its
template before it loads anything else, so that both load at the same time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress


class TemplateProcess:
    """A template that waits for its setup on `connection`. It marks its children with the id of
    their worker."""

    def __init__(self, worker_id: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection: socket.socket = ours
        self.connection.setblocking(False)
        marks = {"HOLDFAST_WORKER_ID": worker_id, "PYTHONUNBUFFERED": "1"}
        descriptor = {"HOLDFAST_TEMPLATE_SOCKET": str(theirs.fileno())}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.worker.child.template"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, **marks, **descriptor},
                start_new_session=True,
            )
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Kill the template and its process group."""
        self.connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
