"""One operation of the API: where it is, who may, what goes in and what comes out.

What goes in and out is read from the function's own annotations, so that the description of the
API, the checks at the door and the code cannot differ.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from holdfast.server.callers import Scope
from holdfast.server.calls import Call

__all__ = ["EVENTS", "JSON", "Operation", "Scope", "operation"]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_PATH_NAME = re.compile(r"\{(\w+)\}")
_SAFE_METHODS = ("GET", "PUT", "DELETE")

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`needs` None is for everybody. One that `waits` may be left by its caller meanwhile, and is
    cancelled then. One that is not `repeatable` takes an Idempotency-Key. `content_type` is that
    of the body and of the answer, unless the answer `produces` another."""

    method: str
    path: str
    needs: Scope | None
    handler: Handler
    name: str
    says: str
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
    """Whether one that is not is so with this body: then a key adds nothing, and is not kept."""
    internal: bool = False
    body_max: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    undo: Callable[[Call, Any], Awaitable[None]] | None = None
    """For one that waits: what takes an answer back that nobody was there to hear."""

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(_PATH_NAME.findall(self.path))


def operation(
    method: str,
    path: str,
    *,
    needs: Scope | None,
    status: int = 200,
    waits: bool = False,
    streams: bool = False,
    repeatable: bool | Callable[[Any], bool] | None = None,
) -> Callable[[Handler], Operation]:
    """Make an operation of a function: `call` first, then names of the path, `query`, `body`.

    `repeatable` says that twice is as good as once, or for which bodies it is; for everything but
    POST it is so unless it is said. An answer `Annotated[bytes, "text/plain"]` goes out as it is;
    None with status 204 is no body. What `streams` is an async generator of bytes, whose first part
    comes at once: with it goes the status, so that a refusal must come before. It is closed when
    the caller leaves, does not read, or the server stops.
    """

    def decorate(function: Handler) -> Operation:
        hints = get_type_hints(function, include_extras=True)
        names = _PATH_NAME.findall(path)
        taken = set(inspect.signature(function).parameters) - {"call", "query", "body"}
        if taken != set(names) or hints.get("call") is not Call:
            raise TypeError(f"{function.__name__} does not take what {path} names")
        if streams != inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__}: what streams is an async generator of bytes")
        answer, produces = hints["return"], JSON
        if streams:
            answer, produces = bytes, EVENTS
        elif get_origin(answer) is Annotated and get_args(answer)[0] is bytes:
            answer, produces = get_args(answer)
        return Operation(
            method=method,
            path=path,
            needs=needs,
            handler=function,
            name=function.__name__,
            says=inspect.cleandoc(function.__doc__ or ""),
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
