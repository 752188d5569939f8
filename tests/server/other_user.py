"""Connections that another user of this machine makes."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

OTHER_UID = 65_534

_CONNECT = """
import os, socket, sys
uid, host, port, data, then = sys.argv[1:]
"".encode("idna")
if uid:
    # The interpreter may be in a folder that only root can read: nothing is imported after this.
    os.setgroups([]); os.setresgid(*[int(uid)] * 3); os.setresuid(*[int(uid)] * 3)
connection = socket.create_connection((host, int(port)), 60)
connection.sendall(bytes.fromhex(data))
print("connected", flush=True)
if then == "read":
    while part := connection.recv(65_536):
        sys.stdout.buffer.write(part)
else:
    sys.stdin.read()
"""


def exchange_as_other_user(address: tuple[str, int], data: bytes) -> bytes:
    """Send raw bytes, and read the answer until the server closes."""
    with _connected(address, data, "read") as process:
        assert process.stdout is not None
        return process.stdout.read()


@contextlib.contextmanager
def connection_of_other_user(address: tuple[str, int], data: bytes = b"") -> Iterator[None]:
    """A connection that stays until the block ends."""
    with _connected(address, data, "stay"):
        yield


@contextlib.contextmanager
def _connected(
    address: tuple[str, int], data: bytes, then: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Root becomes another user; any other user needs subordinate ids. Without them the test fails
    and says what was not tested."""
    is_root = os.geteuid() == 0
    line = [] if is_root else ["unshare", "--user", "--map-auto", "--setuid", "1", "--"]
    line += [sys.executable, "-c", _CONNECT, str(OTHER_UID) if is_root else "", address[0]]
    with subprocess.Popen(
        [*line, str(address[1]), data.hex(), then],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"connected\n":
            error = process.communicate()[1].decode()
            pytest.fail(
                "NOT TESTED: whether another user is kept out. Run the tests as root, or give your"
                f" user subordinate ids in /etc/subuid (package uidmap): {error}",
                pytrace=False,
            )
        yield process
