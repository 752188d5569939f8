"""A connection by the parser in C, which itself bounds nothing: the bounds are here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from holdfast.server.connections import VERSIONS, Watching


class _Refused(Exception):
    """Comes back from the parser as an error of its own."""


class QuickConnection(Watching, HttpToolsProtocol):
    _within_head = False
    _head_size = 0
    _header_count = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.take()

    def in_head(self) -> bool:
        return self._within_head

    def data_received(self, data: bytes) -> None:
        went_on = self._within_head
        cycle = self.cycle
        if not self.lingers:
            super().data_received(data)
        if cycle is not None and cycle.response_complete and cycle is self.cycle:
            self.pass_over(len(data))
        if went_on and self._within_head and not self.transport.is_closing():
            # The parser keeps a header until it is whole, without a word.
            self._head_size += len(data)
            if self._head_size > self.settings.head_max:
                self.refuse(414 if not self.headers else 431)

    def on_message_begin(self) -> None:
        self._within_head = True
        self._head_size = self._header_count = self.looks = self.passed = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url), 414)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count(len(name) + len(value), 431)
        if self._header_count > self.settings.headers_max:
            self.refused = 431
            raise _Refused
        if self._within_head:
            # What comes behind a body is no part of what was asked.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in VERSIONS:
            raise _Refused
        self._within_head = False
        self.looks = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(self.refused)

    def _count(self, size: int, status: int) -> None:
        self._head_size += size
        if self._head_size > self.settings.head_max:
            self.refused = status
            raise _Refused


def send_at_once(
    cycle: Any, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bool:
    """A whole answer in one write, which is a fifth of what a small request costs. Whether it was
    sent: not to somebody who has gone, does not read, or wants the connection closed."""
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.disconnected
        or cycle.response_started
        or not cycle.keep_alive
        or cycle.flow.write_paused
    ):
        return False
    head = STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % each for each in headers])
    cycle.transport.write(b"%b\r\n%b" % (head, body))
    cycle.response_started = cycle.response_complete = True
    cycle.chunked_encoding = cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True
