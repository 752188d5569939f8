"""Connections with bounds on the request head, on slow clients, and on idle time.

One loop checks all connections once a second, so that a request needs no timer. Time is counted in
checks, not by the clock, so that no client is cut off after a pause of the server itself. Requests
in progress have their own bounds in `pressure`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.server.access.peers import OWN_USER, LocalUsers
from holdfast.server.http.problems import ErrorBody, Problem
from holdfast.server.settings import ServerSettings

_log = logging.getLogger("holdfast.server")

_CHECK_S = 1.0
_CHECK_BATCH = 500
_DISCONNECT_BATCH = 10
_DISCONNECT_PAUSE_S = 0.002
_SKIPPED_BODIES_MAX = 4
"""A client that sends more than this many times the largest body is cut off without an answer."""
_CROWDED = 0.9
"""Above this share of all connections, idle ones are closed to make room."""

VERSIONS = ("1.0", "1.1")
CHUNKED = b"chunked"
"""The only transfer encoding that is understood. Proxies read other spellings differently."""
_CHUNKED_HEADER = re.compile(rb"\n(?i:transfer-encoding):[ \t]*%b\r?\n" % CHUNKED)
EXTENSIONS_MAX = 1024
"""Bytes of extensions between the chunks of one body, which mean nothing here."""
CHUNK_LINE_MAX = 20
"""Bytes of the line with the size of a chunk, without an extension."""

_PHRASES = {
    400: ("Bad Request", "bad_request", "the request is not valid HTTP/1.1"),
    408: ("Request Timeout", "slow_request", "the request arrived too slowly: send it again"),
    414: ("URI Too Long", "too_large", "the URL is too long"),
    431: ("Request Header Fields Too Large", "too_large", "the headers are too many or too large"),
    503: ("Service Unavailable", "overloaded", "too many connections: try again later"),
}


class DisconnectQueue:
    """Finishes the requests of disconnected clients a few at a time: ending ten thousand streams at
    once would block the event loop for most of a second.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        self._later = later
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_running = False

    def add(self, finish: Callable[[], None]) -> None:
        """Call `finish` soon."""
        self._callbacks.append(finish)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run_batch)

    def _run_batch(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(_DISCONNECT_BATCH, len(self._callbacks))):
            # Each in its own callback: an error does not affect the others.
            loop.call_soon(self._callbacks.popleft())
        self._is_running = bool(self._callbacks)
        if self._is_running:
            later = self._later or loop.call_later
            later(_DISCONNECT_PAUSE_S, self._run_batch)


class BoundedConnection:
    """The bounds that both parsers share. `idle_checks` counts checks in the current state."""

    settings: ClassVar[ServerSettings]
    local_users: ClassVar[LocalUsers | None] = None
    connections_max: ClassVar[int]
    disconnects: ClassVar[DisconnectQueue]

    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any
    flow: Any
    app_state: dict[str, Any]

    idle_checks: int = 0
    unread_checks: int = 0
    skipped_bytes: int = 0
    is_lingering: bool = False
    refusal_status = 400

    def in_head(self) -> bool:
        """True if a part of a request's head has arrived."""
        raise NotImplementedError

    def accept(self) -> None:
        """Refuse this connection if there are too many, and note whether it needs a token."""
        if len(self.connections) > self.connections_max:
            self.refuse(503)
        elif self.local_users is not None and self.local_users.admits(
            self.transport.get_extra_info("socket")
        ):
            self.app_state = {**self.app_state, OWN_USER: True}

    def lingering(self) -> LingeringTransport:
        """Wrap the transport for an answer that is sent before the whole request has arrived."""
        return LingeringTransport(self)

    def linger(self) -> None:
        """Close the sending side, and keep reading until the client is done."""
        self.is_lingering = True
        self.idle_checks = 0
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def skip(self, size: int) -> None:
        """Discard bytes of a request that was answered already, up to a bound."""
        self.skipped_bytes += size
        if self.skipped_bytes > self.settings.body_max * _SKIPPED_BODIES_MAX:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a waiting request at once, since its job may go to another client; a response in
        progress can wait its turn.
        """
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            cycle.disconnected = True
            self.disconnects.add(partial(super().connection_lost, exc))  # type: ignore[misc]
        else:
            super().connection_lost(exc)  # type: ignore[misc]

    def check(self) -> None:
        """Close the connection if it has been slow or idle for too long."""
        settings, cycle = self.settings, self.cycle
        if self.transport.is_closing() or self.flow.write_paused:
            # The client does not read its answer.
            self.unread_checks += 1
            if self.unread_checks * _CHECK_S * 1000 > settings.slow_ms_max:
                self.transport.abort()
            return
        self.unread_checks = 0
        if cycle is not None and not cycle.response_complete:
            return
        self.idle_checks += 1
        if self.is_lingering or (cycle is not None and cycle.more_body and not self.in_head()):
            ms_max = settings.slow_ms_max
        elif cycle is None or self.in_head():
            ms_max = settings.head_ms_max
        elif len(self.connections) > self.connections_max * _CROWDED:
            ms_max = 0
        else:
            ms_max = settings.keep_alive_ms
        if self.idle_checks * _CHECK_S * 1000 > ms_max:
            self.refuse(408)

    def refuse(self, status: int) -> None:
        """Send an error, unless a response has begun or the connection is idle, and close."""
        cycle = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        idle = cycle is not None and cycle.response_complete and not self.in_head()
        if not (under_way and cycle.response_started) and not (idle and status == 408):
            self.transport.write(_refusal(status))
        self.transport.close()


class LingeringTransport:
    """A transport whose `close` keeps reading for a while: closing at once would discard the answer
    for a client that sends its whole request before it reads."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Stop sending, and keep reading."""
        self._connection.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)


class H11Connection(BoundedConnection, H11Protocol):
    """A connection parsed in Python, for installations without httptools."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn: _StrictH11 = _StrictH11(
            h11.SERVER,
            max_incomplete_event_size=self.settings.head_max,
            headers_max=self.settings.headers_max,
        )
        super().connection_made(transport)
        self.accept()

    def in_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if not self.is_lingering:
            super().data_received(data)
        if self.cycle is not before:
            self.idle_checks = self.skipped_bytes = 0
        elif before is not None and before.response_complete:
            self.skip(len(data))

    def send_400_response(self, msg: str) -> None:
        self.refuse(getattr(self.conn, "refusal_status", 400))


class _StrictH11(h11.Connection):
    """Refuses requests that proxies and servers are known to interpret differently."""

    def __init__(self, role: Any, *, max_incomplete_event_size: int, headers_max: int) -> None:
        super().__init__(role, max_incomplete_event_size)
        self._headers_max = headers_max
        self.refusal_status: int = 400

    def next_event(self) -> Any:
        # The values in the event are in lower case.
        head = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal_status = 431 if error.error_status_hint == 431 else 400
            raise
        if isinstance(event, h11.Request):
            if len(event.headers) > self._headers_max:
                self.refusal_status = 431
                raise h11.RemoteProtocolError("too many headers")
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names:
                if _CHUNKED_HEADER.search(head) is None:
                    raise h11.RemoteProtocolError("unknown transfer-encoding")
                self._reader = _BoundedChunks(self._reader)
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("both content-length and transfer-encoding")
            if event.http_version.decode("ascii") not in VERSIONS:
                raise h11.RemoteProtocolError("unsupported HTTP version")
        return event


class _BoundedChunks:
    """Reads a chunked body, and counts the bytes of it that are neither data nor a chunk's size."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._extension_bytes = 0
        self._line_bytes = 0

    def __call__(self, buffer: Any) -> Any:
        before = len(buffer)
        event = self._reader(buffer)
        self._line_bytes += before - len(buffer)
        unread = 0
        match event:
            case h11.Data():
                self._line_bytes -= len(event.data)
            case h11.EndOfMessage():
                trailers = event.headers.raw_items()
                self._line_bytes -= sum(len(name) + len(value) + 4 for name, value in trailers)
            case None if not self._reader._reading_trailer:  # noqa: SLF001 (h11 tells it nowhere)
                unread = len(buffer)
        extension = max(0, self._line_bytes + unread - CHUNK_LINE_MAX)
        if self._extension_bytes + extension > EXTENSIONS_MAX:
            raise h11.RemoteProtocolError("the extensions of chunks are too long")
        if isinstance(event, h11.Data) and event.chunk_start:
            self._extension_bytes += extension
            self._line_bytes = 0
        return event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


async def check_connections(connections: Iterable[Any]) -> None:
    """Check all connections once a second, in batches, so that no request waits for it."""
    while True:
        await asyncio.sleep(_CHECK_S)
        for at, connection in enumerate(list(connections), 1):
            try:
                connection.check()
            except Exception:  # noqa: BLE001 (the others must still be checked)
                _log.exception("cannot check a connection")
            if at % _CHECK_BATCH == 0:
                await asyncio.sleep(0)


def _refusal(status: int) -> bytes:
    phrase, code, text = _PHRASES[status]
    body = msgspec.json.encode(ErrorBody(Problem(code, text)))
    retry = b"retry-after: 1\r\n" if status == 503 else b""
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n%s\r\n%s" % (status, phrase.encode(), len(body), retry, body)
    )
