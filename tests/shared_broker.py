"""One RabbitMQ for all processes of a test run, started when the first test needs it.

The process in which pytest was started owns it; workers that it forked ask it over a socket.
"""

import json
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import cast
from uuid import uuid4

from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ, RabbitNode, TlsFiles
from tests.certificates import self_signed


class SharedBroker:
    """Nothing is started before `get`. The process that creates this object is the owner."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._server: PrivateRabbitMQ | None = None
        self._missing: ServiceUnavailable | None = None
        self._lock = threading.Lock()
        # A name that starts with NUL leaves no file behind.
        self._listener = _Listener(f"\0holdfast-broker-{uuid4().hex}", self)
        self._thread: threading.Thread | None = None

    def get(self) -> RabbitNode:
        """The broker; raises ServiceUnavailable where it cannot be had, without a second look."""
        if os.getpid() != self._owner:
            return _ask(self._listener.address)
        with self._lock:
            if self._missing is not None:
                raise self._missing
            if self._server is None:
                try:
                    server = PrivateRabbitMQ(tls=certificates)
                    server.start()
                except ServiceUnavailable as error:
                    self._missing = error
                    raise
                self._server = server
            return self._server.node

    def serve(self) -> None:
        """Answer forked processes from now on."""
        # A daemon, so that it does not keep alive a process that failed to close it.
        self._thread = threading.Thread(target=self._listener.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the broker."""
        if self._thread is not None:
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()
        if self._server is not None:
            self._server.stop()


def certificates(folder: Path) -> TlsFiles:
    """One certificate that is both the broker's and the authority's: `self_signed` with the signer
    "server" makes certificates for clients in the same folder."""
    certificate, key = self_signed(folder, "server")
    return TlsFiles(ca=certificate, certificate=certificate, key=key)


def _ask(address: str) -> RabbitNode:
    """The broker of the process that listens there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rb") as stream:
            answer = json.loads(stream.read())
    if "missing" in answer:
        raise ServiceUnavailable(answer["missing"])
    if "failed" in answer:
        raise RuntimeError(answer["failed"])
    return RabbitNode(**answer)


class _Listener(socketserver.UnixStreamServer):
    """Answers one by one: all wait for the same broker."""

    request_queue_size = 128

    def __init__(self, address: str, broker: SharedBroker) -> None:
        super().__init__(address, _Answer)
        self.address = address
        self.broker = broker


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        try:
            answer = cast(_Listener, self.server).broker.get()._asdict()
        except ServiceUnavailable as error:
            answer = {"missing": str(error)}
        except Exception as error:  # noqa: BLE001 (becomes the answer)
            answer = {"failed": repr(error)}
        self.wfile.write(json.dumps(answer).encode())
