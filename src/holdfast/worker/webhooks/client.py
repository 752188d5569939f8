"""An HTTP client that sends one request to a public address, and the secrets that sign requests.

The host name is resolved once, every address is checked, and the connection goes to the very
address that was checked. TLS and the Host header keep the name. It follows no redirects, uses no
proxy, keeps no connection open, and reads no more than it stores. A secret stays in its file and in
the process that signs: it never appears in a job, record, log or error.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from holdfast.errors import ConfigError, UsageError
from holdfast.worker.wire import WebhookSetup

BODY_MAX = 64 * 1024
_HEAD_MAX = 32 * 1024
_CONNECT_S = 10.0
_ADDRESSES_MAX = 3
_INTERIM_MAX = 5
_SECRET_MIN = 16
_SECRETS_MAX = 8

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20", "168.63.129.16/32"),
    )
)
"""Networks registered as not global, which some versions of Python do not know; and the address at
which Azure serves each machine its configuration."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\Z")


class AddressRefused(UsageError):
    """Webhooks go to public addresses; others must be allowed with --webhook-allow."""

    code = "address_refused"


class Unreachable(Exception):
    """Nothing at this address accepts connections and speaks HTTP."""


class NoAnswer(Exception):
    """The receiver did not answer in time."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """One request; `target` is the path with its query."""

    method: str
    secure: bool
    host: str
    port: int
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """One response. `body` has at most its first 64 KiB; `truncated` is true if there was more."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool = False
    duration_ms: int = 0


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class WebhookClient:
    """`setup.allow` lists networks that may be reached although they are not public."""

    def __init__(self, setup: WebhookSetup, resolve: Resolve = resolve) -> None:
        self._allow = [ipaddress.ip_network(each) for each in setup.allow]
        self._resolve = resolve
        self._ca_file = setup.ca_file

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file)

    async def ask(self, request: WebhookRequest, timeout_s: float) -> WebhookResponse:
        """Send the request; raises NoAnswer, Unreachable or AddressRefused."""
        began = monotonic()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                answer = await self._send(request, limit)
        except TimeoutError:
            raise NoAnswer(f"{request.host} did not answer within {timeout_s:g} s") from None
        duration_ms = round((monotonic() - began) * 1000)
        return WebhookResponse(
            answer.status, answer.headers, answer.body, answer.truncated, duration_ms
        )

    async def _send(self, request: WebhookRequest, limit: asyncio.Timeout) -> WebhookResponse:
        addresses = await self._addresses(request)
        reader, writer = await self._connect(request, addresses)
        try:
            writer.write(_head(request) + request.body)
            with suppress(ConnectionError):
                # A receiver that refuses early may have answered before all was sent.
                await writer.drain()
            return await _read(reader, request.method, limit)
        except (OSError, EOFError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise Unreachable(f"{request.host} gave an invalid answer: {text}") from None
        finally:
            # Without waiting: data still in transit is not needed.
            writer.transport.abort()

    async def _addresses(self, request: WebhookRequest) -> list[str]:
        """The addresses of the host, if each may be reached: a name with public and private
        addresses is a mistake or an attack."""
        try:
            found = await self._resolve(request.host, request.port)
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise Unreachable(f"{request.host} cannot be resolved: {text}") from None
        if not found:
            raise Unreachable(f"{request.host} has no address")
        for each in found:
            if not self.may_reach(each):
                raise AddressRefused(
                    f"{request.host} resolves to {each}, which is not a public address: allow its"
                    " network with --webhook-allow"
                )
        return found[:_ADDRESSES_MAX]

    def may_reach(self, text: str) -> bool:
        """True if this address is public or allowed."""
        try:
            # An address with a zone, as in fe80::1%eth0, is in no network.
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        reached = effective_address(address)
        allowed = any(address in each or reached in each for each in self._allow)
        return allowed or is_public(reached)

    async def _connect(
        self, request: WebhookRequest, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        why = ""
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(
                        address,
                        request.port,
                        limit=_HEAD_MAX,
                        ssl=self.tls if request.secure else None,
                        server_hostname=request.host if request.secure else None,
                    )
            except TimeoutError:
                why = f"no connection within {_CONNECT_S:g} s"
            except ssl.SSLCertVerificationError as error:
                why = f"its certificate is not trusted: {error.verify_message}"
            except ssl.SSLError as error:
                why = f"TLS failed: {error.reason or 'it does not speak TLS'}"
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else str(error)
        raise Unreachable(f"{request.host} cannot be reached: {why}")


class Secrets:
    """A file with one secret per line, the newest first; empty lines and lines that begin with #
    are ignored. It is read again when it has changed, so that secrets can be rotated while the
    worker runs.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._secrets: tuple[bytes, ...] = ()

    def read(self) -> tuple[bytes, ...]:
        """The current secrets; the last ones read if the file cannot be read now."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._stamp:
                self._secrets = parse_secrets(self._path.read_bytes(), self._path)
                self._stamp = stamp
        except OSError as error:
            if not self._secrets:
                raise ConfigError(
                    f"the webhook secrets cannot be read from {self._path}: {error.strerror}"
                ) from None
        return self._secrets


def parse_secrets(text: bytes, path: Path) -> tuple[bytes, ...]:
    """The secrets in a file's text; raises ConfigError."""
    lines = [line.strip() for line in text.splitlines()]
    secrets = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(secrets) <= _SECRETS_MAX:
        raise ConfigError(
            f"{path} has {len(secrets)} secrets: give 1 to {_SECRETS_MAX}, one per line"
        )
    if any(len(secret) < _SECRET_MIN for secret in secrets):
        raise ConfigError(
            f"a secret in {path} is shorter than {_SECRET_MIN} characters: make one with"
            " `openssl rand -hex 32`"
        )
    return secrets


def signature(secrets: Sequence[bytes], timestamp: int, body: bytes) -> str:
    """`t=1700000000,v1=…` with one v1 for each secret, so that a receiver may know any of them."""
    signed = str(timestamp).encode() + b"." + body
    made = [hmac.new(secret, signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={each}" for each in made)])


def effective_address(address: Address) -> Address:
    """The IPv4 address embedded in an IPv6 address; otherwise the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        low = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.ipv4_mapped is not None or address in _NAT64 or int(address) >> 32 == 0:
            return low
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
    return address


def is_public(address: Address) -> bool:
    """True for a unicast address of the public internet."""
    odd = address.is_multicast or address.is_reserved or address.is_unspecified
    local = address.is_link_local or address.is_loopback or address.is_private
    site = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (odd or local or site or special)


def _head(request: WebhookRequest) -> bytes:
    name = f"[{request.host}]" if ":" in request.host else request.host
    usual = request.port == (443 if request.secure else 80)
    headers = {
        "Host": name if usual else f"{name}:{request.port}",
        "User-Agent": "holdfast",
        "Accept-Encoding": "identity",
        **request.headers,
        "Content-Length": str(len(request.body)),
        "Connection": "close",
    }
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _read(
    reader: asyncio.StreamReader, method: str, limit: asyncio.Timeout
) -> WebhookResponse:
    """Once a status has arrived, the receiver has answered: a body that takes too long is cut
    off.
    """
    for _ in range(_INTERIM_MAX):
        status, headers = await _read_head(reader)
        if status >= 200:
            break
    else:
        raise ValueError("it sent no final status")
    if status in (204, 304) or method == "HEAD":
        return WebhookResponse(status, headers, b"")
    until = limit.when()
    limit.reschedule(None)
    try:
        async with asyncio.timeout_at(until):
            body, truncated = await _read_body(reader, headers)
    except TimeoutError:
        body, truncated = b"", True
    return WebhookResponse(status, headers, body, truncated)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"its headers are longer than {_HEAD_MAX} bytes") from None
    except asyncio.IncompleteReadError:
        raise ValueError("it closed the connection before the end of its headers") from None
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS.match(first)
    if match is None:
        raise ValueError("it does not speak HTTP/1.1")
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    return int(match[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> tuple[bytes, bool]:
    """The stored part of the body. An incomplete body is accepted: only the status counts."""
    length = headers.get("content-length", "")
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _read_chunks(reader)
    if re.fullmatch(r"\d{1,15}", length, re.ASCII):
        most = min(int(length), BODY_MAX)
        return await _read_most(reader, most), int(length) > BODY_MAX
    body = await _read_most(reader, BODY_MAX + 1)
    return body[:BODY_MAX], len(body) > BODY_MAX


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    body = b""
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return body, True
        size = re.fullmatch(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?", line.strip())
        if size is None:
            raise ValueError("a chunk of its body has no size")
        wanted = int(size[1], 16)
        if wanted == 0:
            return body, False
        body += await _read_most(reader, min(wanted, BODY_MAX + 1 - len(body)))
        if len(body) > BODY_MAX:
            return body[:BODY_MAX], True
        await _read_most(reader, 2)


async def _read_most(reader: asyncio.StreamReader, most: int) -> bytes:
    try:
        return await reader.readexactly(most)
    except asyncio.IncompleteReadError as error:
        return error.partial
