"""Reads a request into the arguments of its handler: path, query and body, checked by their types.

An unknown query name, or one repeated where a single value is expected, is an error: a misspelled
filter must not match everything. To give a list, repeat its name.
"""

from __future__ import annotations

import re
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import FieldInfo

from holdfast.errors import UsageError
from holdfast.notation.patterns import without_patterns
from holdfast.notation.synonyms import READ_ONLY, remedy
from holdfast.server.access.admission import Admission, ApiCall
from holdfast.server.access.peers import OWN_USER
from holdfast.server.http.chunked_decode import LARGE, ChunkedDecoder, decoder_of, is_struct
from holdfast.server.http.operation import JSON, Operation
from holdfast.server.http.pressure import Pressure, Ticket
from holdfast.server.http.problems import (
    BadRequest,
    ClientDisconnected,
    InvalidRequest,
    TooLarge,
    WrongContent,
)

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEADERS_MAX = 100
QUERY_BYTES_MAX = 16 * 1024

_SINGLE_HEADERS = (
    *(b"host", b"authorization", b"holdfast-namespace", b"origin"),
    *(b"content-type", b"idempotency-key", b"cookie"),
)
_QUERY_FIELDS_MAX = 1_000
_LISTS = (list, tuple, set, frozenset)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})\Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\Z")
_BOOLEANS = {"true": True, "false": False}
_PATHS_CACHED_MAX, _CACHED_LENGTH_MAX = 1_000, 256


class RequestReader:
    """Reads the requests of one operation."""

    def __init__(
        self, operation: Operation, admission: Admission, pressure: Pressure, *, body_max: int
    ) -> None:
        self._operation = operation
        self._admission = admission
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
        self._decode = None if operation.body is None else decoder_of(codec, operation.body).decode
        self._chunked = ChunkedDecoder(operation.body, codec) if is_struct(operation.body) else None
        self._may_be_empty = in_json and body_may_be_empty(operation)

    async def read(
        self, scope: AsgiScope, receive: Receive, arguments: dict[str, Any], ticket: Ticket
    ) -> tuple[ApiCall, bytes]:
        """Admit the request and add the handler's arguments to those from the path. Returns the
        call and the raw body."""
        headers = Headers(scope["headers"])
        peer = scope.get("client")
        call = await self._admission.admit(
            self._operation.needs,
            headers,
            peer[0] if peer else None,
            reads=self._operation.method == "GET",
            is_own_user=OWN_USER in scope.get("state", ()),
            is_secure=scope.get("scheme") == "https",
            changes=self._operation.changes,
        )
        self._pressure.share(ticket, call.caller.namespace)
        for name, reader in self._path_readers.items():
            arguments[name] = reader.read(arguments[name])
        if self._query is not None:
            arguments["query"] = self._query.read(scope["query_string"])
        elif scope["query_string"]:
            raise InvalidRequest("this path takes no query parameters")
        body = b""
        if self._decode is not None:
            body = await self._read_body(headers, receive, ticket)
            if len(body) > LARGE and self._chunked is not None:
                arguments["body"] = await self._decode_chunked(self._chunked, body)
            else:
                arguments["body"] = self._decode_whole(self._decode, body)
        return call, body

    async def _read_body(self, headers: Headers, receive: Receive, ticket: Ticket) -> bytes:
        content_type = headers.raw(b"content-type")
        ticket.reading = True
        self._check_body_headers(headers, content_type)
        body = await read_body(
            receive,
            size_max=self._body_max,
            hold=lambda size, more: self._pressure.hold(ticket, size, unfinished=more),
        )
        ticket.reading = False
        self._pressure.complete(ticket)
        if not body and self._may_be_empty:
            return b"{}"
        if content_type is None:
            raise WrongContent(self._wrong_type)
        return body

    def _check_body_headers(self, headers: Headers, content_type: bytes | None) -> None:
        """Refuse a body by its headers, before it is read."""
        if content_type != self._content_type and content_type is not None:
            media_type = content_type.partition(b";")[0].strip().lower()
            if media_type != self._content_type:
                raise WrongContent(self._wrong_type)
        encoding = headers.raw(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise WrongContent("compressed bodies are not supported: send no content-encoding")
        length = headers.raw(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > self._body_max:
            raise TooLarge(f"the body is larger than {self._body_max} bytes")

    def _decode_whole(self, decode: Callable[[bytes], Any], body: bytes) -> Any:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            if self._in_json and len(body) <= _REWRITE_MAX and "got `float`" in str(error):
                rewritten = write_whole_floats_as_ints(body)
                if rewritten != body:
                    return self._decode_whole(decode, rewritten)
            raise self._decode_error(error) from None
        except _UNREADABLE as error:
            if not body.strip():
                raise BadRequest(
                    f"the body is empty: send {self._operation.content_type}"
                ) from None
            raise self._decode_error(error) from None

    async def _decode_chunked(self, decoder: ChunkedDecoder, body: bytes) -> Any:
        try:
            return await decoder.decode(body)
        except _UNREADABLE as error:
            raise self._decode_error(error) from None

    def _decode_error(self, error: Exception) -> UsageError:
        match error:
            case msgspec.ValidationError():
                hint = _hint(self._operation.body, str(error))
                text = f"invalid body: {without_patterns(str(error))}"
                return InvalidRequest(f"{text}: {hint}" if hint else text)
            case RecursionError():
                return BadRequest("the body is nested too deeply")
            case _:
                return BadRequest(f"the body cannot be decoded: {error}")


def body_may_be_empty(operation: Operation) -> bool:
    """True if an empty object is a valid body: then the body may be left out."""
    try:
        msgspec.json.decode(b"{}", type=operation.body)
    except msgspec.ValidationError:
        return False
    return True


class QueryReader:
    """Reads query strings into one struct type."""

    def __init__(self, query: type[msgspec.Struct]) -> None:
        self._query = query
        self._fields = _fields_of(query)
        self._lists = {
            name for name, each in self._fields.items() if _plain_types(each.type)[0] in _LISTS
        }

    def read(self, text: bytes) -> msgspec.Struct:
        """The query as a struct. Raises BadRequest or InvalidRequest."""
        if not text:
            return self._convert({})
        if len(text) > QUERY_BYTES_MAX:
            raise BadRequest(f"the query is longer than {QUERY_BYTES_MAX} bytes")
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=_QUERY_FIELDS_MAX,
            )
        except ValueError:
            raise BadRequest("the query cannot be parsed: write it as name=value&…") from None
        values: dict[str, Any] = {}
        for name, value in pairs:
            field = self._fields.get(name)
            if field is None:
                names = ", ".join(self._fields) or "none"
                hint = remedy(name, self._fields) or f"expected one of {names}"
                raise InvalidRequest(f"unknown query parameter {name!r}: {hint}")
            if name in self._lists:
                values.setdefault(name, []).append(scalar(value, _element(field)))
            elif name in values:
                raise InvalidRequest(f"the query parameter {name!r} is given more than once")
            else:
                values[name] = scalar(value, field.type)
        return self._convert(values)

    def _convert(self, values: dict[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(values, self._query)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"invalid query: {without_patterns(str(error))}") from None


@cache
def _fields_of(query: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """The fields by name, cached because inspecting a type is slow."""
    return {each.encode_name: each for each in msgspec.structs.fields(query)}


class PathReader:
    """Reads one name of a path. Results are cached, since most requests use the same few queues."""

    def __init__(self, name: str, wanted: Any) -> None:
        self._name = name
        self._wanted = wanted
        self._cached: dict[str, Any] = {}

    def read(self, text: str) -> Any:
        """The value of a path segment. Raises InvalidRequest."""
        value = self._cached.get(text)
        return self._convert(text) if value is None else value

    def _convert(self, text: str) -> Any:
        try:
            value = msgspec.convert(scalar(text, self._wanted), self._wanted)
        except msgspec.ValidationError as error:
            text = without_patterns(str(error))
            raise InvalidRequest(f"invalid {self._name} in the path: {text}") from None
        if len(self._cached) >= _PATHS_CACHED_MAX:
            self._cached.clear()
        if len(text) <= _CACHED_LENGTH_MAX:
            self._cached[text] = value
        return value


def scalar(text: str, wanted: Any) -> Any:
    """The text as a bool, an int or a float if the type takes one; otherwise the text."""
    plain = _plain_types(wanted)
    if bool in plain and text in _BOOLEANS:
        return _BOOLEANS[text]
    if int in plain and _INTEGER.match(text):
        return int(text)
    if float in plain and _NUMBER.match(text):
        return float(text)
    return text


def _plain_types(wanted: Any) -> tuple[Any, ...]:
    """The types that a type is made of, without bounds and None."""
    origin = get_origin(wanted)
    if origin is Annotated:
        return _plain_types(get_args(wanted)[0])
    if origin in (Union, types.UnionType):
        members = (each for each in get_args(wanted) if each is not type(None))
        return tuple(plain for each in members for plain in _plain_types(each))
    return (origin or wanted,)


def _element(field: FieldInfo) -> Any:
    """The type of the elements of a list field."""
    wanted = field.type
    while get_origin(wanted) is Annotated:
        wanted = get_args(wanted)[0]
    if get_origin(wanted) in (Union, types.UnionType):
        [wanted] = [each for each in get_args(wanted) if each is not type(None)]
    return (get_args(wanted) or (str,))[0]


class Headers(Mapping[str, str]):
    """Request headers by lower-case name. Decoded on access, since most are never read."""

    __slots__ = ("_raw",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = dict(raw)
        if len(self._raw) != len(raw):
            _refuse_repeated(raw)
        if len(raw) > HEADERS_MAX:
            raise TooLarge(f"the request has {len(raw)} headers, at most {HEADERS_MAX} are allowed")

    def __getitem__(self, name: str) -> str:
        return self._raw[name.encode("latin-1")].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name.encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1") in self._raw

    def __iter__(self) -> Iterator[str]:
        # All names in one step: none of them has a line break.
        return iter(b"\n".join(self._raw).decode("latin-1").split("\n") if self._raw else ())

    def __len__(self) -> int:
        return len(self._raw)

    def raw(self, name: bytes) -> bytes | None:
        """The undecoded value of a header."""
        return self._raw.get(name)


def _refuse_repeated(raw: list[tuple[bytes, bytes]]) -> None:
    """Of two headers with the same name, a proxy may have used the other one."""
    names = [name for name, _value in raw]
    for name in _SINGLE_HEADERS:
        if names.count(name) > 1:
            raise BadRequest(f"the header {name.decode()} is given more than once")


async def read_body(receive: Receive, *, size_max: int, hold: Callable[[int, bool], None]) -> bytes:
    """The whole body. Raises TooLarge as soon as it exceeds the bound. `hold` reserves memory for
    the bytes received so far, of which more are to come or not, and may refuse."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnected
        part = event.get("body", b"")
        more = event.get("more_body", False)
        size += len(part)
        if size > size_max:
            raise TooLarge(f"the body is larger than {size_max} bytes")
        parts.append(part)
        hold(size, more)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


_UNKNOWN_FIELD = re.compile(
    r"Object contains unknown field `([^`]{1,80})`(?: - at `\$(.{0,200})`)?"
)


def _hint(body: Any, error: str) -> str:
    """The remedy for a bad date or an unknown field of a body of this type, if there is one."""
    if error.startswith("Invalid RFC3339"):
        return "expected a date and time such as 2030-01-31T12:00:00Z"
    unknown = _UNKNOWN_FIELD.fullmatch(error)
    if unknown is None:
        return ""
    wrong, path = unknown[1], unknown[2] or ""
    if wrong in READ_ONLY:
        return "the queue sets it: leave it out"
    wanted = body
    for name, is_list in re.findall(r"\.(\w+)(\[)?", path):
        wanted = next(
            (field.type for field in _struct_fields(wanted) if field.encode_name == name), None
        )
        wanted = _list_element(wanted) if is_list else wanted
    return remedy(wrong, [field.encode_name for field in _struct_fields(wanted)])


def _list_element(wanted: Any) -> Any:
    """The type of the elements of a list, or of the list in a union."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in _LISTS:
        return arguments[0]
    members = arguments[:1] if origin is Annotated else arguments
    return next(filter(None, map(_list_element, members)), None)


def _struct_fields(wanted: Any) -> list[FieldInfo]:
    """The fields of the structs in a type."""
    structs = [kind for kind in _plain_types(wanted) if is_struct(kind)]
    return [field for kind in structs for field in _fields_of(kind).values()]


# An unterminated string matches to the end of the body: trying every quote again is quadratic.
_TOKEN = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?|-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|[\[\]{}:,]', re.DOTALL
)
_INT_MAX = 2**63
_REWRITE_MAX = 16 * 1024
"""Rewriting blocks the event loop for microseconds per number: larger bodies must send integers."""
_VERBATIM = (b'"payload"', b'"result"', b'"checkpoint"', b'"edit"')
"""Values of the caller, which are stored byte for byte."""


def write_whole_floats_as_ints(body: bytes) -> bytes:
    """JSON with 5.0 written as 5. Both are the same number in JSON, but some encoders send 5.0
    where msgspec wants an integer."""
    parts: list[bytes] = []
    end = depth = 0
    name = b""
    verbatim_depth: int | None = None
    for found in _TOKEN.finditer(body):
        text = found[0]
        depth += (text in b"[{") - (text in b"]}")
        if verbatim_depth is not None and (
            depth < verbatim_depth or (text == b"," and depth == verbatim_depth)
        ):
            verbatim_depth = None
        if text == b":" and verbatim_depth is None and name in _VERBATIM:
            verbatim_depth = depth
        name = text
        if verbatim_depth is None and text[:1] != b'"' and text[-1:].isdigit():
            parts += (body[end : found.start()], _as_int(text))
            end = found.end()
    return b"".join([*parts, body[end:]])


def _as_int(number: bytes) -> bytes:
    value = float(number)
    if number.lstrip(b"-").isdigit() or not value.is_integer() or abs(value) >= _INT_MAX:
        return number
    return b"%d" % int(value)
