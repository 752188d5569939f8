"""Connections with bounds: on what is in a head, how slowly it comes, and how long one may idle.

They are looked at once a second, all of them, so that a request pays for no timer. What is slow
is counted in looks and not by the clock: a server that was itself asleep blames nobody. Requests
that are under way have their own bounds elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.server.problems import Problem, Wrong
from holdfast.server.settings import ServerSettings

_log = logging.getLogger("holdfast.server")

_LOOK_S = 1.0
_AT_ONCE = 500
_LET_GO_AT_ONCE = 10
_LET_GO_PAUSE_S = 0.002
_PASSED_BODIES = 4
"""Whoever sends a body that is so many times as large as may be does not get to read why not."""
_CROWDED = 0.9
"""From this share of all connections on, idle ones are closed for others to come in."""

VERSIONS = ("1.0", "1.1")

_PHRASES = {
    400: ("Bad Request", "bad_request", "this is not HTTP/1.1 as it should be"),
    408: ("Request Timeout", "slow_request", "the request came too slowly: send it again"),
    414: ("URI Too Long", "too_large", "the address is too long"),
    431: ("Request Header Fields Too Large", "too_large", "too many headers, or too large ones"),
    503: ("Service Unavailable", "overloaded", "too many connections: try again later"),
}


class Leaving:
    """Those whose readers have gone, let go some at a time: ten thousand streams that end at once
    are most of a second's work."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object] | None = None) -> None:
        self._later = later
        self._ends: deque[Callable[[], None]] = deque()
        self._is_at_it = False

    def add(self, end: Callable[[], None]) -> None:
        self._ends.append(end)
        if not self._is_at_it:
            self._is_at_it = True
            asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(_LET_GO_AT_ONCE, len(self._ends))):
            # Each by itself: one that fails keeps nobody else.
            loop.call_soon(self._ends.popleft())
        self._is_at_it = bool(self._ends)
        if self._is_at_it:
            later = self._later or loop.call_later
            later(_LET_GO_PAUSE_S, self._let_go)


class Watched(Protocol):
    """What the rounds look at."""

    def look(self) -> None: ...


class Watching:
    """The part that both parsers share. `looks` counts those in the state it is in."""

    settings: ClassVar[ServerSettings]
    connections_max: ClassVar[int]
    leaving: ClassVar[Leaving]

    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any
    flow: Any

    looks = 0
    unread = 0
    passed = 0
    lingers = False
    refused = 400

    def in_head(self) -> bool:
        """Part of a request's head is there."""
        raise NotImplementedError

    def take(self) -> bool:
        """Is there room for this connection?"""
        if len(self.connections) <= self.connections_max:
            return True
        self.refuse(503)
        return False

    def lingering(self) -> Lingering:
        """For an answer that is sent while the request still comes."""
        return Lingering(self)

    def linger(self) -> None:
        self.lingers = True
        self.looks = 0
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pass_over(self, size: int) -> None:
        """So much more has come of a request that was answered already."""
        self.passed += size
        if self.passed > self.settings.body_max * _PASSED_BODIES:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Who waits for an answer is heeded at once: it may have to be given to somebody else."""
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            cycle.disconnected = True
            self.leaving.add(partial(super().connection_lost, exc))  # type: ignore[misc]
        else:
            super().connection_lost(exc)  # type: ignore[misc]

    def look(self) -> None:
        settings, cycle = self.settings, self.cycle
        if self.transport.is_closing() or self.flow.write_paused:
            # Nobody reads what is to be sent.
            self.unread += 1
            if self.unread * _LOOK_S * 1000 > settings.slow_ms_max:
                self.transport.abort()
            return
        self.unread = 0
        if cycle is not None and not cycle.response_complete:
            return
        self.looks += 1
        if self.lingers or (cycle is not None and cycle.more_body and not self.in_head()):
            ms_max = settings.slow_ms_max
        elif cycle is None or self.in_head():
            ms_max = settings.head_ms_max
        elif len(self.connections) > self.connections_max * _CROWDED:
            ms_max = 0
        else:
            ms_max = settings.keep_alive_ms
        if self.looks * _LOOK_S * 1000 > ms_max:
            self.refuse(408)

    def refuse(self, status: int) -> None:
        """Say why if nothing was said yet, and close."""
        cycle = self.cycle
        under_way = cycle is not None and not cycle.response_complete
        idle = cycle is not None and cycle.response_complete and not self.in_head()
        if not (under_way and cycle.response_started) and not (idle and status == 408):
            self.transport.write(_refusal(status))
        self.transport.close()


class Lingering:
    """A transport that, when it is to be closed, goes on reading for a while what nobody wants: to
    close it before takes the answer away from whoever sends first and reads then."""

    def __init__(self, connection: Watching) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)


class PlainConnection(Watching, H11Protocol):
    """By the parser in Python, where no faster one is installed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn = _Strict(
            h11.SERVER,
            max_incomplete_event_size=self.settings.head_max,
            headers_max=self.settings.headers_max,
        )
        super().connection_made(transport)
        self.take()

    def in_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if not self.lingers:
            super().data_received(data)
        if self.cycle is not before:
            self.looks = self.passed = 0
        elif before is not None and before.response_complete:
            self.pass_over(len(data))

    def send_400_response(self, msg: str) -> None:
        self.refuse(getattr(self.conn, "refused", 400))


class _Strict(h11.Connection):
    """Refuses what proxies and servers are known to understand differently."""

    def __init__(self, role: Any, *, max_incomplete_event_size: int, headers_max: int) -> None:
        super().__init__(role, max_incomplete_event_size)
        self._headers_max = headers_max
        self.refused = 400

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.refused = 431 if error.error_status_hint == 431 else 400
            raise
        if isinstance(event, h11.Request):
            if len(event.headers) > self._headers_max:
                self.refused = 431
                raise h11.RemoteProtocolError("too many headers")
            names = {name for name, _ in event.headers}
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("two lengths")
            if event.http_version.decode("ascii") not in VERSIONS:
                raise h11.RemoteProtocolError("another version")
        return event


def connection_class(settings: ServerSettings, connections_max: int) -> type[asyncio.Protocol]:
    """Of the faster parser where it is installed."""
    base: type[Any] = PlainConnection
    try:
        from holdfast.server.quick import QuickConnection
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
    else:
        base = QuickConnection
    shared = {"settings": settings, "connections_max": connections_max, "leaving": Leaving()}
    made = type("Connection", (base,), shared)
    return cast("type[asyncio.Protocol]", made)


async def watch(connections: Iterable[Any]) -> None:
    """Look at all of them once a second, a part at a time so that no request waits for it."""
    while True:
        await asyncio.sleep(_LOOK_S)
        for at, each in enumerate(list(connections), 1):
            try:
                cast("Watched", each).look()
            except Exception:  # noqa: BLE001 (one that cannot be looked at is not the last)
                _log.exception("a connection could not be looked at")
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)


def _refusal(status: int) -> bytes:
    phrase, code, text = _PHRASES[status]
    body = msgspec.json.encode(Wrong(Problem(code, text)))
    more = b"retry-after: 1\r\n" if status == 503 else b""
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n%s\r\n%s" % (status, phrase.encode(), len(body), more, body)
    )
