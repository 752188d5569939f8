"""HTTP/1.1 connections to one server, and their pool; the most recently used one is used next.

A connection carries one request and its whole reply at a time, parsed by httptools. A protocol
error closes it. Nothing is sent twice, and a reply over the caller's bound is cut off.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

_HEAD_MAX = 64 * 1024
_CONNECT_S = 5.0
_IDLE_S = 30.0
"""Servers and proxies close an idle connection after about a minute."""
_CONNECTIONS_MAX = 256


class ServerUnreachable(Exception):
    """There is no connection; nothing was sent."""


class ConnectionCut(Exception):
    """The reply is incomplete; the server may have handled the request anyway."""


class HttpReply(NamedTuple):
    """A complete reply, with the headers that matter here."""

    status: int
    content_type: str
    retry_after: str
    body: bytes


class HttpPool:
    """`body_max` bounds a reply. Connections are made on demand."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, body_max: int) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._body_max = body_max
        self._idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._room = asyncio.Semaphore(_CONNECTIONS_MAX)
        self.closed: bool = False

    def close(self) -> None:
        """Close all connections; pending requests fail."""
        self.closed = True
        self._idle.clear()
        for connection in self._all:
            connection.hang_up()

    async def ask(
        self,
        request: bytes,
        *,
        timeout_s: float,
        on_late_answer: Callable[[HttpReply], None] | None = None,
    ) -> HttpReply:
        """Send a request once and return its answer. Raises ServerUnreachable or ConnectionCut."""
        sent = False
        try:
            async with asyncio.timeout(timeout_s), self._room:
                connection = self._idle_one() or await self._connected()
                self._all.add(connection)
                sent = True
                try:
                    answer = await connection.ask(request, on_late_answer)
                finally:
                    self._put_back(connection)
        except TimeoutError:
            if sent:
                raise ConnectionCut(f"there was no answer within {timeout_s:g} s") from None
            raise ServerUnreachable(f"all {_CONNECTIONS_MAX} connections are in use") from None
        return answer

    def _idle_one(self) -> HttpConnection | None:
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.reusable:
                return connection
            connection.hang_up()
        return None

    def _put_back(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if not self.closed and connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
            self._all.add(connection)
        else:
            connection.hang_up()

    async def _connected(self) -> HttpConnection:
        if self.closed:
            raise ServerUnreachable("the engine was closed")
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(self._body_max),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise ServerUnreachable(f"no connection within {_CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise ServerUnreachable(
                f"its certificate is not trusted: {error.verify_message}; "
                "to trust another CA, add ca=FILE to the URL"
            ) from None
        except ssl.SSLError as error:
            why = error.reason or "it does not speak TLS"
            raise ServerUnreachable(f"TLS failed ({why}): does it serve plain http://?") from None
        except (OSError, UnicodeError) as error:
            raise ServerUnreachable(_text_of(error)) from None
        return connection


def _text_of(error: OSError | UnicodeError) -> str:
    """The system's error text: event loops have their own texts, and resolver errors are
    negative.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error)


class HttpConnection(asyncio.Protocol):
    """A connection used by one caller at a time; `reusable` is true if the next caller may use
    it.
    """

    def __init__(self, body_max: int) -> None:
        self._body_max = body_max
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._poll = select.poll()
        self.idle_since: float = 0.0
        self._begin()

    @property
    def reusable(self) -> bool:
        """True if it is idle and open, and the server has sent nothing unexpected."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        # The event loop may not have noticed yet that the peer closed the connection, and the
        # outcome of a request sent into it would be unknown.
        return not self._poll.poll(0)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(
        self, request: bytes, on_late_answer: Callable[[HttpReply], None] | None = None
    ) -> HttpReply:
        """Send a request and await its reply. `on_late_answer` gets a reply that arrived after the
        caller was cancelled."""
        assert self._transport is not None
        assert self._answer is None
        if self._transport.is_closing():
            raise ConnectionCut("the connection was closed")
        answer: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            if (
                not answer.cancelled()
                and answer.done()
                and not answer.exception()
                and on_late_answer
            ):
                on_late_answer(answer.result())
            self.hang_up()
            raise
        finally:
            self._answer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of other event loops have the interface, but not the class.
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket"), select.POLLIN | select.POLLHUP)

    def connection_lost(self, exc: Exception | None) -> None:
        why = "" if exc is None else f": {exc}"
        self._fail(f"the connection ended before the answer{why}")

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.hang_up()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not HTTP")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > _HEAD_MAX:
            self._fail(f"the head of the answer is longer than {_HEAD_MAX} bytes")
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1")
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._body_max:
            self._fail(f"the answer is larger than {self._body_max} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        answer = self._answer
        if status >= 200 and answer is not None and not answer.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            answer.set_result(HttpReply(status, self._content_type, self._retry_after, body))
            if not self._parser.should_keep_alive():
                self.hang_up()
        self._begin()

    def _begin(self) -> None:
        self._head_size = self._size = 0
        self._content_type = self._retry_after = ""
        self._body: list[bytes] = []

    def _fail(self, why: str) -> None:
        self._body.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionCut(why))
        self.hang_up()
