"""Servers in processes of their own, and raw bytes to them."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.server.main import ServeOptions
from holdfast.server.settings import ServerSettings
from tests.cli.program import command, environment

TIMEOUT_S = 60
_WITHOUT = (
    "import sys; sys.modules['httptools'] = None; from holdfast.server.main import main; main()"
)


class ServerProcess(NamedTuple):
    url: str
    popen: "subprocess.Popen[str]"

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000

    @property
    def peak_mb(self) -> float:
        """The most memory it ever had."""
        text = Path(f"/proc/{self.popen.pid}/status").read_text()
        [line] = [line for line in text.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024 / 1_000_000

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=TIMEOUT_S)

    def exchange(self, data: bytes) -> bytes:
        """Send raw bytes, and read the answer until the server closes."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            return read_all(connection)

    def get(self, path: str) -> tuple[int, Any]:
        return _told(self.exchange(request("GET", path)))

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        return _told(self.exchange(request("POST", path, json.dumps(body).encode())))


def _told(said: bytes) -> tuple[int, Any]:
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += [f"content-length: {len(body)}", "content-type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_all(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        part = connection.recv(65_536)
        assert part, said
        said += part
    return said


@contextlib.contextmanager
def server_process(
    folder: Path, *flags: str, url: str = "sqlite:///jobs.db", port: int = 0
) -> Iterator[ServerProcess]:
    """`holdfast serve` as a person starts it, on a free port unless one is given."""
    popen = subprocess.Popen(
        command("serve", "--port", str(port), "--url", url, "--json", *flags),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with _ended(popen):
        assert popen.stdout is not None
        line = popen.stdout.readline()
        assert line, popen.communicate()
        yield ServerProcess(json.loads(line)["server"], popen)


@contextlib.contextmanager
def server_process_with(
    settings: ServerSettings,
    folder: Path,
    url: str = "sqlite:///jobs.db",
    *,
    without_httptools: bool = False,
    code: str | None = None,
) -> Iterator[ServerProcess]:
    """The program that `holdfast up` starts, with settings that no flag has. `code` is run
    instead."""
    code = _WITHOUT if without_httptools else code
    start = ["-m", "holdfast.server.main"] if code is None else ["-c", code]
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        ready, theirs = os.pipe()
        descriptor = listening.fileno()
        popen = subprocess.Popen(
            [sys.executable, *start],
            cwd=folder,
            env=environment(HOLDFAST_READY=str(theirs)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs, descriptor),
            text=True,
        )
        os.close(theirs)
    with _ended(popen):
        assert popen.stdin is not None
        options = ServeOptions(url=url, settings=settings, descriptor=descriptor)
        popen.stdin.write(msgspec.json.encode(options).decode() + "\n")
        popen.stdin.flush()
        with open(ready) as told:  # noqa: PTH123 (a descriptor)
            name = told.read()
        assert name, popen.communicate()
        yield ServerProcess(name, popen)


@contextlib.contextmanager
def _ended(popen: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        with popen:
            try:
                yield
            finally:
                popen.kill()
    finally:
        popen.wait()


def over_tls(process: ServerProcess, context: ssl.SSLContext, data: bytes) -> bytes:
    with (
        process.connect() as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(data)
        return read_all(connection)
