"""One operation of the API: its path, the scope it needs, its input and output types; and routes,
which find it for a method and a path.

The types are read from the handler's annotations, so that the OpenAPI description, the checks of
requests and the code cannot differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.server.access.admission import ApiCall
from holdfast.server.access.caller import Scope
from holdfast.server.http.problems import BadRequest, UnknownPath, WrongMethod

__all__ = [
    "EVENTS",
    "JSON",
    "PATH_BYTES_MAX",
    "Operation",
    "Routes",
    "Scope",
    "WithHeaders",
    "operation",
]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
PATH_BYTES_MAX = 8 * 1024

_PATH_NAME = re.compile(r"\{(\w+)\}")
_SAFE_METHODS = ("GET", "PUT", "DELETE")

Handler = Callable[..., Any]
Target = TypeVar("Target")
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class WithHeaders(Generic[Answered]):
    """An answer with headers of its own, and a status other than that of its operation if
    given."""

    answer: Answered
    headers: tuple[tuple[bytes, bytes], ...] = ()
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A caller needs any of the scopes in `needs`; None admits every caller. An operation that
    `waits` is cancelled when its client disconnects. One that is not `repeatable` accepts an
    Idempotency-Key. `content_type` is that of the body and of the answer, unless it `produces`
    another."""

    method: str
    path: str
    needs: tuple[Scope, ...] | None
    handler: Handler
    name: str
    description: str
    body: Any = None
    query: type[msgspec.Struct] | None = None
    path_types: Mapping[str, Any] = field(default_factory=dict)
    answer: Any = None
    status: int = 200
    content_type: str = JSON
    produces: str = JSON
    waits: bool = False
    streams: bool = False
    repeatable: bool = True
    repeatable_if: Callable[[Any], bool] | None = None
    """True if a request with this body can be repeated: then its Idempotency-Key is not stored."""
    internal: bool = False
    only_reads: bool = False
    """True for an operation other than GET that changes no job, queue or setting."""
    is_page: bool = False
    """A file for browsers: it needs no token, but counts as any other request under load."""
    body_max: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    undo: Callable[[ApiCall, Any], Awaitable[None]] | None = None
    """For an operation that waits: undoes an answer that the client never received."""

    @property
    def changes(self) -> bool:
        """True if the operation may change something: a read-only server refuses it."""
        return self.method != "GET" and not self.only_reads

    @property
    def path_names(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(_PATH_NAME.findall(self.path))


def operation(
    method: str,
    path: str,
    *,
    needs: Scope | tuple[Scope, ...] | None,
    status: int = 200,
    waits: bool = False,
    streams: bool = False,
    repeatable: bool | Callable[[Any], bool] | None = None,
) -> Callable[[Handler], Operation]:
    """Make an operation from a function that takes `call`, the names in the path, `query` and
    `body`.

    `repeatable` says whether, or for which bodies, the request can be sent twice without harm;
    the default is True for GET, PUT and DELETE. An answer `Annotated[bytes, "text/plain"]` is
    sent as it is; None with status 204 sends no body; `WithHeaders` adds headers to an answer. A
    handler that `streams` is an async generator of bytes. It must refuse before its first part,
    because the status is sent with that, and it is closed when the client disconnects or does not
    read, or the server stops.
    """

    def decorate(function: Handler) -> Operation:
        hints = get_type_hints(function, include_extras=True)
        names = _PATH_NAME.findall(path)
        parameters = set(inspect.signature(function).parameters) - {"call", "query", "body"}
        if parameters != set(names) or hints.get("call") is not ApiCall:
            raise TypeError(f"the parameters of {function.__name__} do not match {path}")
        if streams != inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__}: a stream is an async generator of bytes")
        answer, produces = hints["return"], JSON
        if get_origin(answer) is WithHeaders:
            [answer] = get_args(answer)
        if streams:
            answer, produces = bytes, EVENTS
        elif get_origin(answer) is Annotated and get_args(answer)[0] is bytes:
            answer, produces = get_args(answer)
        return Operation(
            method=method,
            path=path,
            needs=(needs,) if isinstance(needs, Scope) else needs,
            handler=function,
            name=function.__name__,
            description=inspect.cleandoc(function.__doc__ or ""),
            body=hints.get("body"),
            query=hints.get("query"),
            path_types={name: hints[name] for name in names},
            answer=answer,
            status=status,
            produces=produces,
            waits=waits,
            streams=streams,
            repeatable=method in _SAFE_METHODS if repeatable is None else repeatable is True,
            repeatable_if=repeatable if callable(repeatable) else None,
        )

    return decorate


class Routes(Generic[Target]):
    """If two paths match, the one that is literal further to the left wins."""

    def __init__(self) -> None:
        self._root: _Node[Target] = _Node()
        self._literal: dict[tuple[str, bytes], Target] = {}

    def add(self, method: str, path: str, target: Target) -> None:
        """Add a target; `{name}` in the path matches any one segment."""
        node = self._root
        names: list[str] = []
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                names.append(part[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.children.setdefault(part.encode(), _Node())
        if method in node.methods:
            raise TypeError(f"{method} {path} has two operations")
        node.methods[method] = (target, tuple(names))
        if not names:
            self._literal[method, path.encode()] = target

    def find(self, method: str, raw_path: bytes) -> tuple[Target, dict[str, Any]]:
        """The target, and the values of the names in its path. Raises UnknownPath or
        WrongMethod."""
        literal = self._literal.get((method, raw_path))
        if literal is not None:
            return literal, {}
        if len(raw_path) > PATH_BYTES_MAX:
            raise BadRequest(f"the path is longer than {PATH_BYTES_MAX} bytes")
        parts = raw_path.split(b"/")[1:]
        if b"%" in raw_path:
            parts = [unquote_to_bytes(part) for part in parts]
        found = _nearest(self._root, parts)
        if found is not None and method in found[0].methods:
            target, names = found[0].methods[method]
            return target, _path_values(names, found[1])
        return self._search(method, parts)

    def _search(self, method: str, parts: list[bytes]) -> tuple[Target, dict[str, Any]]:
        allowed: list[str] = []
        for node, values in _matches(self._root, parts, ()):
            found = node.methods.get(method)
            if found is not None:
                return found[0], _path_values(found[1], values)
            allowed = allowed or sorted(node.methods)
        if allowed:
            text = f"this path allows {', '.join(allowed)}"
            raise WrongMethod(text, allowed=tuple(allowed))
        raise UnknownPath("unknown path: see /v1/openapi.json")


class _Node(Generic[Target]):
    """One segment of a path, and the segments that may follow it."""

    __slots__ = ("children", "methods", "parameter")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[Target]] = {}
        self.parameter: _Node[Target] | None = None
        self.methods: dict[str, tuple[Target, tuple[str, ...]]] = {}


def _nearest(node: _Node[Target], parts: list[bytes]) -> tuple[_Node[Target], list[bytes]] | None:
    """The node found by preferring literal segments: nearly always right, and the fastest way."""
    values = []
    for part in parts:
        found = node.children.get(part)
        if found is None:
            found = node.parameter
            if found is None or not part:
                return None
            values.append(part)
        node = found
    return node, values


def _matches(
    node: _Node[Target], parts: list[bytes], values: tuple[bytes, ...]
) -> Iterator[tuple[_Node[Target], tuple[bytes, ...]]]:
    """All nodes that match. Bounded by the depth of the added paths, not by the request's path."""
    if not parts:
        yield node, values
        return
    part, rest = parts[0], parts[1:]
    literal = node.children.get(part)
    if literal is not None:
        yield from _matches(literal, rest, values)
    if node.parameter is not None and part:
        yield from _matches(node.parameter, rest, (*values, part))


def _path_values(names: tuple[str, ...], values: Sequence[bytes]) -> dict[str, Any]:
    try:
        return {name: value.decode() for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        raise BadRequest("the path is not valid UTF-8") from None
