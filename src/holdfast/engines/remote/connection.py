"""One HTTP/1.1 connection: a request in, its whole answer out, then the next one.

The parser is httptools'. Whatever is not as it should be ends the connection; nothing is sent
again here, and no more is kept of an answer than its caller allows.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

_HEAD_MAX = 64 * 1024


class Answer(NamedTuple):
    status: int
    content_type: str
    retry_after: str
    body: bytes


class Cut(Exception):
    """There is no whole answer; the request may have been heard all the same."""


class Connection(asyncio.Protocol):
    """Of one caller at a time: `reusable` says whether it may be the next one's."""

    def __init__(self, body_max: int) -> None:
        self._body_max = body_max
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._poll = select.poll()
        self.idle_since = 0.0
        self._begin()

    @property
    def reusable(self) -> bool:
        """Nothing is under way, and the other end has neither hung up nor said anything."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        # The loop may not have looked yet. What is sent into a closed connection is in doubt.
        return not self._poll.poll(0)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, unheard: Callable[[Answer], None] | None = None) -> Answer:
        """`unheard` gets an answer that came when its caller had just been cancelled."""
        assert self._transport is not None
        assert self._answer is None
        if self._transport.is_closing():
            raise Cut("the connection was closed")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.done() and not answer.exception() and unheard:
                unheard(answer.result())
            self.hang_up()
            raise
        finally:
            self._answer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Loops have transports of their own, which are asyncio's in all but name.
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
            self._fail("the answer is no HTTP")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value)
        if self._head_size > _HEAD_MAX:
            self._fail(f"the head of the answer is over {_HEAD_MAX} bytes")
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1")
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._body_max:
            self._fail(f"the answer is over {self._body_max} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        answer = self._answer
        if status >= 200 and answer is not None and not answer.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            answer.set_result(Answer(status, self._content_type, self._retry_after, body))
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
            self._answer.set_exception(Cut(why))
        self.hang_up()
