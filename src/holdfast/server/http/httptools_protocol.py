"""A connection parsed by httptools, which is fast but bounds nothing: the bounds are here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from holdfast.server.http.connection import (
    CHUNK_LINE_MAX,
    CHUNKED,
    EXTENSIONS_MAX,
    VERSIONS,
    BoundedConnection,
)

_HEAD_END = b"\r\n\r\n"
_BLANK = re.compile(rb"[\r\n]*")
_FRAMING = frozenset((b"content-length", b"expect", b"transfer-encoding"))
"""Headers that say how the body arrives."""


class _Refused(Exception):
    """Stops the parser, which reports it as an error of its own."""


class ChunkScanner:
    """Follows the chunks of one body, to count the bytes of their extensions: the parser skips
    these without a callback."""

    def __init__(self) -> None:
        self._line = b""
        self._skipped = 0
        self._extension_bytes = 0
        self.is_finished: bool = False
        """True after the line of the last chunk."""

    @property
    def is_excessive(self) -> bool:
        """True if the extensions are too long."""
        unread = max(0, len(self._line) - CHUNK_LINE_MAX)
        return self._extension_bytes + unread > EXTENSIONS_MAX

    def scan(self, data: bytes, at: int) -> int:
        """The position after the last chunk's line, or the end of the data."""
        while at < len(data) and not self.is_finished and not self.is_excessive:
            step = min(self._skipped, len(data) - at)
            self._skipped -= step
            at += step
            end = data.find(b"\n", at, at + CHUNK_LINE_MAX + EXTENSIONS_MAX)
            end = min(len(data), at + CHUNK_LINE_MAX + EXTENSIONS_MAX) if end < 0 else end + 1
            self._line += data[at:end]
            at = end
            if self._line.endswith(b"\n"):
                self._read_line()
        return at

    def _read_line(self) -> None:
        size, _, extension = self._line.partition(b";")
        self._line = b""
        self._extension_bytes += len(extension)
        try:
            length = int(size, 16)
        except ValueError:
            # The parser refuses it.
            length = 0
        self.is_finished = length <= 0
        self._skipped = length + len(b"\r\n")


class HttptoolsConnection(BoundedConnection, HttpToolsProtocol):
    """A connection with bounds on its request heads."""

    _within_head = False
    _head_size = 0
    _header_count = 0
    _head_tail = b""
    _body_left = 0
    _chunks: ChunkScanner | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.accept()

    def in_head(self) -> bool:
        return self._within_head

    def data_received(self, data: bytes) -> None:
        was_in_head = self._within_head
        cycle = self.cycle
        if not self.is_lingering:
            self._feed(data)
        if cycle is not None and cycle.response_complete and cycle is self.cycle:
            self.skip(len(data))
        if was_in_head and self._within_head and not self.transport.is_closing():
            # The parser buffers an incomplete header without a callback.
            self._head_size += len(data)
            if self._head_size > self.settings.head_max:
                self.refuse(414 if not self.headers else 431)

    def _feed(self, data: bytes) -> None:
        """Feed the parser. Bytes that may belong to a chunked body are fed apart from the others,
        so that they can be scanned."""
        if self._chunks is None and not self._within_head and CHUNKED not in data:
            super().data_received(data)
            return
        at = 0
        while at < len(data) and not self.transport.is_closing():
            end = self._end_of_part(data, at)
            if self._chunks is not None and self._chunks.is_excessive:
                self.refuse(400)
                return
            super().data_received(data[at:end])
            at = end
        self._head_tail = (self._head_tail + data)[-3:] if self._within_head else b""

    def _end_of_part(self, data: bytes, at: int) -> int:
        """The end of the head, the body or the chunks that begin or go on at this position."""
        start = at
        if not self._within_head:
            if self._chunks is not None and not self._chunks.is_finished:
                return self._chunks.scan(data, at)
            if self._body_left:
                return min(len(data), at + self._body_left)
            blank = _BLANK.match(data, at)
            start = at if blank is None else blank.end()
        elif at == 0:
            # The end of the head may have begun in the data before.
            joined = (self._head_tail + data[:3]).find(_HEAD_END)
            if joined >= 0:
                return joined + len(_HEAD_END) - len(self._head_tail)
        end = data.find(_HEAD_END, start)
        return len(data) if end < 0 else end + len(_HEAD_END)

    def on_message_begin(self) -> None:
        self._within_head = True
        self._chunks = None
        self._body_left = 0
        self._head_size = self._header_count = self.idle_checks = self.skipped_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url), 414)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count_head(len(name) + len(value), 431)
        if self._header_count > self.settings.headers_max:
            self.refusal_status: int = 431
            raise _Refused
        if not self._within_head:
            # Trailers after a body are not part of the request.
            return
        name = name.lower()
        if name in _FRAMING:
            self._note_framing(name, value)
            super().on_header(name, value)
        else:
            self.headers.append((name, value))

    def _note_framing(self, name: bytes, value: bytes) -> None:
        if name == b"transfer-encoding":
            if value != CHUNKED or self._chunks is not None:
                raise _Refused
            self._chunks = ChunkScanner()
        elif name == b"content-length" and value.isdigit():
            self._body_left = int(value[:20])

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in VERSIONS:
            raise _Refused
        self._within_head = False
        self.idle_checks: int = 0
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Go on reading. uvicorn would also set a timer for each response, to close the connection
        when it is idle; `check` does that without one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def send_400_response(self, msg: str) -> None:
        self.refuse(self.refusal_status)

    def _count_head(self, size: int, status: int) -> None:
        self._head_size += size
        if self._head_size > self.settings.head_max:
            self.refusal_status = status
            raise _Refused


def write_response(
    cycle: Any, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bool:
    """Write a whole response at once, which saves a fifth of the cost of a small request. Returns
    False, with nothing written, if the client disconnected, does not read, or the connection is to
    be closed."""
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.disconnected
        or cycle.response_started
        or not cycle.keep_alive
        or cycle.flow.write_paused
    ):
        return False
    # The default headers are the date, which clients use to correct their clocks.
    lines = [b"%b: %b\r\n" % each for each in (*cycle.default_headers, *headers)]
    head = STATUS_LINE[status] + b"".join(lines)
    if b"\r\nconnection: " in head:
        return False
    cycle.transport.write(b"%b\r\n%b" % (head, body))
    cycle.response_started = cycle.response_complete = True
    cycle.chunked_encoding = cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True
