"""What a request says, as an operation takes it: who asks, the path, the query and the body."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.server.calls import AsgiScope, Call, Headers, Receive, read_body
from holdfast.server.door import Door
from holdfast.server.operations import JSON, Operation
from holdfast.server.pieces import LARGE, Pieces, is_struct
from holdfast.server.pressure import Pressure, Ticket
from holdfast.server.queries import PathReader, QueryReader
from holdfast.server.refusals import BadRequest, InvalidRequest, TooLarge, WrongContent


class Asking:
    """Reads the requests of one operation."""

    def __init__(
        self, operation: Operation, door: Door, pressure: Pressure, *, body_max: int
    ) -> None:
        self._operation = operation
        self._door = door
        self._pressure = pressure
        self._body_max = operation.body_max or body_max
        self._content_type = operation.content_type.encode()
        self._wrong_type = f"the content-type of the body must be {operation.content_type}"
        self._query = None if operation.query is None else QueryReader(operation.query)
        self._path_readers = {
            name: PathReader(name, wanted)
            for name, wanted in operation.path_types.items()
            if wanted is not str
        }
        self._in_json = in_json = operation.content_type == JSON
        codec = msgspec.json if in_json else msgspec.msgpack
        self._decode = None if operation.body is None else codec.Decoder(operation.body).decode
        self._pieces = Pieces(operation.body, codec) if is_struct(operation.body) else None
        self._may_be_empty = in_json and body_may_be_empty(operation)

    async def read(
        self, scope: AsgiScope, receive: Receive, given: dict[str, Any], ticket: Ticket
    ) -> tuple[Call, bytes]:
        """Who asks, and the body as it came; adds to `given` what the handler takes."""
        headers = Headers(scope["headers"])
        peer = scope.get("client")
        call = await self._door.admit(self._operation, headers, peer[0] if peer else None)
        self._pressure.share(ticket, call.caller.namespace)
        for name, reader in self._path_readers.items():
            given[name] = reader.read(given[name])
        if self._query is not None:
            given["query"] = self._query.read(scope["query_string"])
        elif scope["query_string"]:
            raise InvalidRequest("there is a query, and this path takes none")
        body = b""
        if self._decode is not None:
            body = await self._body(headers, receive, ticket)
            if len(body) > LARGE and self._pieces is not None:
                given["body"] = await self._read(self._pieces, body)
            else:
                given["body"] = self._decoded(self._decode, body)
        return call, body

    async def _body(self, headers: Headers, receive: Receive, ticket: Ticket) -> bytes:
        content_type = headers.raw(b"content-type")
        ticket.reading = True
        self._check_head(headers, content_type)
        body = await read_body(
            receive,
            most=self._body_max,
            hold=lambda size: self._pressure.hold(ticket, size),
        )
        ticket.reading = False
        if not body and self._may_be_empty:
            return b"{}"
        if content_type is None:
            raise WrongContent(self._wrong_type)
        return body

    def _check_head(self, headers: Headers, content_type: bytes | None) -> None:
        """What can be refused before the body comes."""
        if content_type != self._content_type and content_type is not None:
            kind = content_type.partition(b";")[0].strip().lower()
            if kind != self._content_type:
                raise WrongContent(self._wrong_type)
        encoding = headers.raw(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise WrongContent("the body must be sent as it is, without a content-encoding")
        length = headers.raw(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > self._body_max:
            raise TooLarge(f"the body is larger than {self._body_max} bytes")

    def _decoded(self, decode: Callable[[bytes], Any], body: bytes) -> Any:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            if self._in_json and len(body) <= _WRITTEN_MAX and "got `float`" in str(error):
                whole = whole_numbers(body)
                if whole != body:
                    return self._decoded(decode, whole)
            raise _refusal(error) from None
        except _UNREADABLE as error:
            if not body.strip():
                raise BadRequest(f"there is no body: send {self._operation.content_type}") from None
            raise _refusal(error) from None

    async def _read(self, pieces: Pieces, body: bytes) -> Any:
        try:
            return await pieces.read(body)
        except _UNREADABLE as error:
            raise _refusal(error) from None


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _refusal(error: Exception) -> UsageError:
    match error:
        case msgspec.ValidationError():
            return InvalidRequest(f"the body is not as it should be: {error}")
        case RecursionError():
            return BadRequest("the body is nested too deeply")
        case _:
            return BadRequest(f"the body cannot be read: {error}")


# A text that does not end is taken to the end: looking at each quote again would take for ever.
_TOKEN = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?|-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|[\[\]{}:,]', re.DOTALL
)
_WHOLE_MAX = 2**63
_WRITTEN_MAX = 16 * 1024
"""Each number costs microseconds, in which nobody else is served: who sends more writes 5."""
_AS_WRITTEN = (b'"payload"', b'"result"', b'"checkpoint"', b'"edit"')
"""The caller's own values, which are kept to the byte."""


def whole_numbers(body: bytes) -> bytes:
    """JSON in which 5.0 is written 5: to JSON they are the same, and to its readers often not."""
    parts: list[bytes] = []
    end = depth = 0
    name = b""
    within: int | None = None
    for found in _TOKEN.finditer(body):
        text = found[0]
        depth += (text in b"[{") - (text in b"]}")
        if within is not None and (depth < within or (text == b"," and depth == within)):
            within = None
        if text == b":" and within is None and name in _AS_WRITTEN:
            within = depth
        name = text
        if within is None and text[:1] != b'"' and text[-1:].isdigit():
            parts += (body[end : found.start()], _whole(text))
            end = found.end()
    return b"".join([*parts, body[end:]])


def _whole(number: bytes) -> bytes:
    value = float(number)
    if number.lstrip(b"-").isdigit() or not value.is_integer() or abs(value) >= _WHOLE_MAX:
        return number
    return b"%d" % int(value)


def body_may_be_empty(operation: Operation) -> bool:
    """No body is as good as an empty object where nothing must be said."""
    try:
        msgspec.json.decode(b"{}", type=operation.body)
    except msgspec.ValidationError:
        return False
    return True
