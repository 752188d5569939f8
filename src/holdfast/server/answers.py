"""How an answer leaves: its status, its headers, and no more of it in memory than is read."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.server.calls import Send
from holdfast.server.operations import JSON, Operation
from holdfast.server.problems import headers_of, known_wrong_of, status_of, wrong_of

Headers = list[tuple[bytes, bytes]]

_at_once: Callable[[Any, int, Headers, bytes], bool] | None = None
with contextlib.suppress(ModuleNotFoundError):
    # Where the parser in C is installed.
    from holdfast.server.quick import send_at_once

    _at_once = send_at_once

_PART = 64 * 1024
_STREAM_BUFFER = 16 * 1024
_READ_ONLY = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
"""A browser can only be led to read: what it finds there is neither kept nor guessed at."""


class Reply(NamedTuple):
    status: int
    headers: Headers
    body: bytes


class Answers:
    """The replies of one operation, in what it is written in."""

    def __init__(self, operation: Operation) -> None:
        in_json = operation.content_type == JSON
        self._encode = (msgspec.json if in_json else msgspec.msgpack).Encoder().encode
        self._wrong = wrong_of if in_json else known_wrong_of
        self._status = operation.status
        self._raw = operation.answer is bytes
        self._empty = operation.status == 204
        beside = _READ_ONLY if operation.method == "GET" else []
        produces = operation.produces if in_json else operation.content_type
        own = {name.encode(): value.encode() for name, value in operation.headers}
        self.good_headers = [(b"content-type", produces.encode()), *(dict(beside) | own).items()]
        self._bad_headers: Headers = [(b"content-type", operation.content_type.encode()), *beside]

    def good(self, answer: Any) -> Reply:
        if self._empty:
            return Reply(204, [], b"")
        body = answer if self._raw else self._encode(answer)
        return Reply(self._status, self.good_headers, body)

    def bad(self, error: HoldfastError) -> Reply:
        headers = [*self._bad_headers, *headers_of(error)]
        return Reply(status_of(error), headers, self._encode(self._wrong(error)))


def bad_reply(error: HoldfastError) -> Reply:
    """For a request that found no operation."""
    headers = [(b"content-type", JSON.encode()), *headers_of(error)]
    return Reply(status_of(error), headers, msgspec.json.encode(wrong_of(error)))


async def send_whole(
    send: Send, reply: Reply, *, head: bool, still_reading: Callable[[], None] | None = None
) -> None:
    """In parts if it is large: each waits until the reader has taken what went before."""
    status, headers, body = reply
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    if status == 204:
        headers.pop()
    if not head and len(body) <= _PART and _sent_at_once(send, status, headers, body):
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
        if still_reading is not None:
            still_reading()
    # The end goes with the last bytes: who has them all and leaves has not left too early.
    await send({"type": "http.response.body", "body": bytes(view)})


def _sent_at_once(send: Send, status: int, headers: Headers, body: bytes) -> bool:
    if _at_once is None or any(name == b"connection" for name, _ in headers):
        return False
    return _at_once(getattr(send, "__self__", None), status, headers, body)


async def begin_stream(send: Send, headers: Headers) -> None:
    transport = _transport_of(send)
    if transport is not None:
        transport.set_write_buffer_limits(high=_STREAM_BUFFER)
    beside = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    kept = [each for each in headers if each[0] != b"cache-control"]
    await send({"type": "http.response.start", "status": 200, "headers": [*kept, *beside]})


async def send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def end_stream(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


def was_left(send: Send) -> bool:
    """Whether the reader went away before the whole answer was on its way."""
    left: bool = getattr(_connection_of(send), "disconnected", False)
    return left


def cut_off(send: Send) -> None:
    """Closing would wait for the reader who does not read."""
    transport = _transport_of(send)
    if transport is not None:
        transport.abort()


def _linger(send: Send) -> None:
    """What was refused before all of it came is still coming."""
    cycle = _connection_of(send)
    if getattr(cycle, "more_body", False):
        lingering = getattr(cycle.transport.get_protocol(), "lingering", None)
        if lingering is not None:
            cycle.transport = lingering()


def _transport_of(send: Send) -> Any:
    return getattr(_connection_of(send), "transport", None)


def _connection_of(send: Send) -> Any:
    """What the web server has behind `send`, and behind those who listen in."""
    return getattr(inspect.unwrap(send), "__self__", None)
