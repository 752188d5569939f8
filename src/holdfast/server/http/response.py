"""Encodes and sends responses: status, headers, and a body sent no faster than it is read."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.server.http.operation import JSON, Operation, WithHeaders
from holdfast.server.http.problems import error_body, error_headers, partial_error_body, status_of
from holdfast.server.http.request import Send

HeaderList = list[tuple[bytes, bytes]]

_write_response: Callable[[Any, int, HeaderList, bytes], bool] | None = None
with contextlib.suppress(ModuleNotFoundError):
    # Only with the httptools parser, which is optional.
    from holdfast.server.http.httptools_protocol import write_response

    _write_response = write_response

_PART = 64 * 1024
_WITHOUT_BODY = (204, 304)
_STREAM_BUFFER = 16 * 1024
_GET_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
"""A web page can make a browser send a GET: the answer must not be cached or content-sniffed."""


class Reply(NamedTuple):
    """A complete response."""

    status: int
    headers: HeaderList
    body: bytes


class ResponseEncoder:
    """Encodes the replies of one operation in its content type."""

    def __init__(self, operation: Operation) -> None:
        in_json = operation.content_type == JSON
        self._encode = (msgspec.json if in_json else msgspec.msgpack).Encoder().encode
        self._error_body = error_body if in_json else partial_error_body
        self._status = operation.status
        self._raw = operation.answer is bytes
        self._empty = operation.status == 204
        common = _GET_HEADERS if operation.method == "GET" else []
        produces = operation.produces if in_json else operation.content_type
        own = {name.encode(): value.encode() for name, value in operation.headers}
        self.headers: list[tuple[bytes, bytes]] = [
            (b"content-type", produces.encode()),
            *(dict(common) | own).items(),
        ]
        self._error_headers: HeaderList = [
            (b"content-type", operation.content_type.encode()),
            *common,
        ]

    def success(self, answer: Any) -> Reply:
        """The reply for what a handler returned."""
        if isinstance(answer, WithHeaders):
            status, headers, body = self.success(answer.answer)
            return Reply(answer.status or status, [*headers, *answer.headers], body)
        if self._empty:
            return Reply(204, [], b"")
        body = answer if self._raw else self._encode(answer)
        return Reply(self._status, self.headers, body)

    def failure(self, error: HoldfastError) -> Reply:
        """The reply for an error."""
        headers = [*self._error_headers, *error_headers(error)]
        return Reply(status_of(error), headers, self._encode(self._error_body(error)))


def error_reply(error: HoldfastError) -> Reply:
    """The reply for a request that matches no operation."""
    headers = [(b"content-type", JSON.encode()), *error_headers(error)]
    return Reply(status_of(error), headers, msgspec.json.encode(error_body(error)))


async def send_reply(
    send: Send, reply: Reply, *, head: bool, on_progress: Callable[[], None] | None = None
) -> None:
    """Send a reply, a large one in parts: each waits until the client has read the previous one."""
    status, headers, body = reply
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    if status in _WITHOUT_BODY:
        headers.pop()
    if not head and len(body) <= _PART and _sent_in_one_write(send, status, headers, body):
        return
    if status >= 400:
        _linger(send)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if head:
        body = b""
    view = memoryview(body)
    while len(view) > _PART:
        part = bytes(view[:_PART])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        view = view[_PART:]
        if on_progress is not None:
            on_progress()
    # The end is sent with the last bytes: a client that has all of them may disconnect.
    await send({"type": "http.response.body", "body": bytes(view)})


def _sent_in_one_write(send: Send, status: int, headers: HeaderList, body: bytes) -> bool:
    if _write_response is None:
        return False
    return _write_response(getattr(send, "__self__", None), status, headers, body)


async def begin_stream(send: Send, headers: HeaderList) -> None:
    """Send the head of a stream, and keep its write buffer small."""
    transport = _transport_of(send)
    if transport is not None:
        transport.set_write_buffer_limits(high=_STREAM_BUFFER)
    stream_headers = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    others = [each for each in headers if each[0] != b"cache-control"]
    await send(
        {"type": "http.response.start", "status": 200, "headers": [*others, *stream_headers]}
    )


async def send_part(send: Send, part: bytes) -> None:
    """Send one part of a stream."""
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def end_stream(send: Send) -> None:
    """End a stream."""
    await send({"type": "http.response.body", "body": b""})


def is_disconnected(send: Send) -> bool:
    """True if the client disconnected before the whole reply was written."""
    disconnected: bool = getattr(_cycle_of(send), "disconnected", False)
    return disconnected


def is_closing(send: Send) -> bool:
    """True if the connection drops what is written now: the client has disconnected, but the
    request was not told yet."""
    transport = _transport_of(send)
    return transport is not None and bool(transport.is_closing())


def abort(send: Send) -> None:
    """Drop the connection at once: closing it would wait for a client that does not read."""
    transport = _transport_of(send)
    if transport is not None:
        transport.abort()


def _linger(send: Send) -> None:
    """Keep reading after an early refusal: the client may still be sending its body."""
    cycle = _cycle_of(send)
    if getattr(cycle, "more_body", False):
        lingering = getattr(cycle.transport.get_protocol(), "lingering", None)
        if lingering is not None:
            cycle.transport = lingering()


def _transport_of(send: Send) -> Any:
    return getattr(_cycle_of(send), "transport", None)


def _cycle_of(send: Send) -> Any:
    """uvicorn's request cycle behind `send`, also if middleware wraps it."""
    return getattr(inspect.unwrap(send), "__self__", None)
