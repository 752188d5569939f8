"""Which local connections need no token: those of the server's own user and of root. Where every
caller needs one, the dashboard's session of these users counts over plain HTTP.

The kernel is asked once for each connection. An answer counts only if the other end is still held
by a process: the kernel reports an abandoned socket as root's. Where the system cannot tell, a
private file holds a token for the server's own user.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.ops.tokens import access_key_of
from holdfast.process import local_token_file
from holdfast.server.settings import ServerSettings

_log = logging.getLogger("holdfast.server")

OWN_USER = "own_user"
"""The key in the state of an ASGI scope: True if the connection needs no token."""

_ROOT = 0
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT = 1, 4, 5, 8
_PEER_STATES = (_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2)
"""States of the other end that belong to this connection. A socket that listens on the same port,
or that is connecting from it anew, belongs to somebody else."""
_OPEN_STATES = (_ESTABLISHED, _CLOSE_WAIT)

Address = tuple[str, int]


class Owner(NamedTuple):
    """The user of a socket, and its TCP state."""

    uid: int
    state: int


class OwnerSource(Protocol):
    """A way to ask the kernel for the owner of a local socket. Raises OSError if it fails."""

    def owner(self, local: Address, remote: Address) -> Owner | None:
        """The owner of the socket with these addresses; None if no process holds one."""
        ...


class LocalUsers:
    """Admits connections of the server's own user and of root without a token. `token` is set if
    the system cannot tell: callers may then send it instead, and AWS clients sign with the access
    key derived from it."""

    def __init__(
        self, sources: Sequence[OwnerSource], *, uid: int | None = None, token: str | None = None
    ) -> None:
        self._sources = tuple(sources)
        self._uids = (_ROOT, os.geteuid() if uid is None else uid)
        self.token = token
        self._access_key = None if token is None else access_key_of(token)

    def admits(self, connection: Any) -> bool:
        """True if the other end of an accepted connection belongs to an admitted user."""
        return owner_of(connection, self._sources) in self._uids

    def accepts(self, token: str) -> bool:
        """True for the token of a system that cannot tell."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    def secret_of(self, key_id: str) -> str | None:
        """The secret of the access key derived from `token`; None for any other key."""
        if self._access_key is None or self._access_key[0] != key_id:
            return None
        return self._access_key[1]


def owner_of(connection: Any, sources: Sequence[OwnerSource]) -> int | None:
    """The uid of the other end of an accepted connection; None if it is not known."""
    try:
        local, remote = (
            _address(each) for each in (connection.getpeername(), connection.getsockname())
        )
    except OSError:
        return None
    for source in sources:
        try:
            owner = source.owner(local, remote)
            # Asked last: while this end was open, nobody else could have had the other addresses.
            state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            continue
        if owner is None or owner.state not in _PEER_STATES or state not in _OPEN_STATES:
            return None
        return owner.uid
    return None


def _address(name: tuple[Any, ...]) -> Address:
    """The address of a socket; an IPv4 one mapped to IPv6 as IPv4, since the kernel finds both."""
    host: str = name[0].partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host, name[1]


class SocketDiagnostics:
    """INET_DIAG over netlink: one question for one socket, whatever the number of sockets."""

    _ASK, _PROTOCOL, _BY_FAMILY = 1, 4, 20
    _HEADER = struct.Struct("=IHHII")
    _REQUEST = struct.Struct("=BBBBI")
    _ADDRESSES = struct.Struct(">HH16s16s")
    _ANY_INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    _ANSWER = struct.Struct("=BBBB48xIIIII")

    def owner(self, local: Address, remote: Address) -> Owner | None:
        family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
        hosts = [socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (local, remote)]
        addresses = self._ADDRESSES.pack(local[1], remote[1], *hosts)
        request = self._REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        body = request + addresses + self._ANY_INTERFACE_AND_COOKIE
        size = self._HEADER.size
        header = self._HEADER.pack(size + len(body), self._BY_FAMILY, self._ASK, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, self._PROTOCOL) as kernel:
            # The kernel answers within the call that sends the question.
            kernel.setblocking(False)
            kernel.send(header + body)
            answer = kernel.recv(4096)
        kind = self._HEADER.unpack_from(answer)[1]
        if kind != self._BY_FAMILY:
            return None
        _, state, _, _, _, _, _, uid, inode = self._ANSWER.unpack_from(answer, size)
        return Owner(uid, state) if inode else None


class SocketTables:
    """/proc/net/tcp and tcp6, for systems without INET_DIAG: slower with many sockets."""

    _FILES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

    def owner(self, local: Address, remote: Address) -> Owner | None:
        names = [
            [_in_table(host, port, mapped=m) for host, port in (local, remote)] for m in (0, 1)
        ]
        for path, wanted in zip(self._FILES, names, strict=True):
            if not path.exists():
                continue
            for line in path.read_text("ascii").splitlines()[1:]:
                columns = line.split()
                if columns[1:3] == wanted and int(columns[9]):
                    return Owner(int(columns[7]), int(columns[3], 16))
        return None


def _in_table(host: str, port: int, *, mapped: int) -> str:
    """An address as these tables write it: words in the byte order of the machine."""
    if mapped and ":" not in host:
        host = f"::ffff:{host}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    words = struct.iter_unpack("=I", socket.inet_pton(family, host))
    return f"{''.join(f'{word:08X}' for (word,) in words)}:{port:04X}"


def working_sources(address: str) -> list[OwnerSource]:
    """The ways to ask that know the owner of a connection which this process makes itself."""
    if not sys.platform.startswith("linux") or _is_ambiguous(os.geteuid()):
        return []
    found: list[OwnerSource] = []
    for make in (SocketDiagnostics, SocketTables):
        with contextlib.suppress(OSError, ValueError, IndexError):
            source = make()
            with _own_connection(address) as accepted:
                if owner_of(accepted, [source]) == os.geteuid():
                    found.append(source)
    return found


def _is_ambiguous(uid: int) -> bool:
    """True if users of other user namespaces look like this one: the kernel shows every user that
    the namespace does not map as the overflow user."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        maps_all = sum(int(length) for _, _, length in ranges) >= 0xFFFFFFFF
    except (OSError, ValueError):
        return True
    return uid == overflow and not maps_all


@contextlib.contextmanager
def _own_connection(address: str) -> Iterator[socket.socket]:
    """The accepted end of a connection that this process makes to itself."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as listening,
        socket.create_connection(listening.getsockname()[:2]) as own,
    ):
        while True:
            accepted, name = listening.accept()
            with accepted:
                # Any user of the machine may connect first.
                if name == own.getsockname():
                    yield accepted
                    return


@contextlib.contextmanager
def local_users(settings: ServerSettings, listening: socket.socket) -> Iterator[LocalUsers | None]:
    """The local users that need no token, or whose session counts over plain HTTP; None if the
    server does not tell users apart. Holds the token's file while the server runs."""
    if not settings.on_loopback:
        yield None
        return
    if settings.auth_on:
        found = working_sources(listening.getsockname()[0])
        yield LocalUsers(found) if found else None
        return
    if settings.auth is False:
        _log.warning(
            "--no-auth: every user of this machine can read and change all jobs without a token"
        )
        yield None
        return
    address, port = listening.getsockname()[:2]
    sources = working_sources(address)
    path = local_token_file(address, port)
    # A server that was killed may have left its file: the token in it is not valid here.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    if sources:
        yield LocalUsers(sources)
        return
    token = f"hf_{secrets.token_hex(6)}_{secrets.token_hex(32)}"
    try:
        _write_private(path, token)
    except OSError as error:
        _log.warning(
            "this system does not tell which user a connection belongs to, and %s cannot be"
            " written (%s): every caller needs a token, see holdfast token create",
            *(path, error.strerror),
        )
        yield None
        return
    _log.warning(
        "this system does not tell which user a connection belongs to: every caller needs a token;"
        " holdfast itself reads the one in %s",
        path,
    )
    try:
        yield LocalUsers((), token=token)
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == token:
                path.unlink()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:  # noqa: PTH123 (a descriptor)
            file.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
