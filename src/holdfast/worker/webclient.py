"""One HTTP request to where it may go: the name is resolved once, every answer is checked, and the
connection goes to the very address that was checked. TLS and the Host header keep the name.

No redirect is followed, no proxy asked, no connection kept, and no more read than is kept.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import TypeAlias

from holdfast.errors import UsageError
from holdfast.worker.wire import WebhookSetup

BODY_MAX = 64 * 1024
_HEAD_MAX = 32 * 1024
_CONNECT_S = 10.0
_ADDRESSES_MAX = 3
_INTERIM_MAX = 5

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Registered as not global, but not known as such to every version of Python."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\Z")


class AddressRefused(UsageError):
    """Webhooks go to public addresses; others must be allowed with --webhook-allow."""

    code = "address_refused"


class Unreachable(Exception):
    """Nobody there, or nobody who speaks HTTP."""


class NoAnswer(Exception):
    """The receiver took too long."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    secure: bool
    host: str
    port: int
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is at most the first 64 KiB of it; `truncated` says that there was more."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool = False
    duration_ms: int = 0


async def resolve(host: str, port: int) -> list[str]:
    """As the system does it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Client:
    """`allow` are networks that may be reached although they are not public."""

    def __init__(self, setup: WebhookSetup, resolve: Resolve = resolve) -> None:
        self._allow = [ipaddress.ip_network(each) for each in setup.allow]
        self._resolve = resolve
        self._ca_file = setup.ca_file

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file)

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        began = monotonic()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                answer = await self._send(request, limit)
        except TimeoutError:
            raise NoAnswer(f"{request.host} did not answer within {timeout_s:g} s") from None
        duration_ms = round((monotonic() - began) * 1000)
        return Answer(answer.status, answer.headers, answer.body, answer.truncated, duration_ms)

    async def _send(self, request: Request, limit: asyncio.Timeout) -> Answer:
        addresses = await self._addresses(request)
        reader, writer = await self._connect(request, addresses)
        try:
            writer.write(_head(request) + request.body)
            with suppress(ConnectionError):
                # Whoever refuses early may have answered before all was sent.
                await writer.drain()
            return await _read(reader, request.method, limit)
        except (OSError, EOFError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise Unreachable(f"{request.host} gave no answer that can be read: {text}") from None
        finally:
            # Not waited for: what is still on its way is not wanted.
            writer.transport.abort()

    async def _addresses(self, request: Request) -> list[str]:
        """All that the name stands for, if each may be reached: a name that stands for a public
        and a private one is a mistake, or meant to be one."""
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
                    f"{request.host} stands for {each}, which is no public address: a worker "
                    "reaches it only with --webhook-allow"
                )
        return found[:_ADDRESSES_MAX]

    def may_reach(self, text: str) -> bool:
        try:
            # A zone, as in fe80::1%eth0, is part of no network.
            given = ipaddress.ip_address(text)
        except ValueError:
            return False
        address = meant(given)
        allowed = any(given in each or address in each for each in self._allow)
        return allowed or is_public(address)

    async def _connect(
        self, request: Request, addresses: list[str]
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
                why = f"no TLS with it: {error.reason or 'it speaks something else'}"
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else str(error)
        raise Unreachable(f"{request.host} cannot be reached: {why}")


def meant(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where that is what is reached in the end."""
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
    odd = address.is_multicast or address.is_reserved or address.is_unspecified
    local = address.is_link_local or address.is_loopback or address.is_private
    site = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (odd or local or site or special)


def _head(request: Request) -> bytes:
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


async def _read(reader: asyncio.StreamReader, method: str, limit: asyncio.Timeout) -> Answer:
    """Who has given a status has answered: a body that takes too long is cut off."""
    for _ in range(_INTERIM_MAX):
        status, headers = await _read_head(reader)
        if status >= 200:
            break
    else:
        raise ValueError("it never came to a final status")
    if status in (204, 304) or method == "HEAD":
        return Answer(status, headers, b"")
    until = limit.when()
    limit.reschedule(None)
    try:
        async with asyncio.timeout_at(until):
            body, truncated = await _read_body(reader, headers)
    except TimeoutError:
        body, truncated = b"", True
    return Answer(status, headers, body, truncated)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"its headers are over {_HEAD_MAX} bytes") from None
    except asyncio.IncompleteReadError:
        raise ValueError("it hung up before the end of its headers") from None
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS.match(first)
    if match is None:
        raise ValueError("it does not speak HTTP/1.1")
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    return int(match[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> tuple[bytes, bool]:
    """As much as is kept. A body that breaks off is kept as far as it came: the status counts."""
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
