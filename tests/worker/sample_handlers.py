"""Handlers for tests, without the task API: JSON in, JSON out."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from holdfast.core import codec
from holdfast.errors import InvalidJob
from holdfast.worker.child.handlers import Arguments, Handler


def arguments(payload: bytes, content_type: str) -> Arguments:
    """Like the task API: an object has arguments by name, an array by position."""
    value = codec.decode(payload)
    match value:
        case dict():
            return (), value
        case list():
            return tuple(value), {}
        case None:
            return (), {}
        case _:
            pass
    raise InvalidJob(f"{value!r} is neither an object nor an array")


def one_argument(payload: bytes, content_type: str) -> Arguments:
    """Arguments of a batch task."""
    if payload == b'"bad"':
        raise InvalidJob("it is bad")
    return (codec.decode(payload),), {}


def result(value: Any) -> bytes | None:
    return None if value is None else codec.encode(value)


def handler(function: Callable[..., Any], name: str | None = None, **fields: Any) -> Handler:
    is_async = inspect.iscoroutinefunction(function)
    takes = inspect.signature(function).parameters
    given: dict[str, Any] = {
        "arguments": one_argument if fields.get("batch", 1) > 1 else arguments,
        "context": next((each for each in ("ctx", "contexts") if each in takes), None),
        **fields,
    }
    return Handler(
        name=name or function.__name__,
        function=function,
        is_async=is_async,
        result=result,
        **given,
    )


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, and a coroutine function that first yields to the loop."""

    async def awaited(*positional: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return function(*positional, **named)

    return [function, awaited]
