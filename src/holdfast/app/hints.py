"""Type hints of tasks: how they are resolved, and how their values are read and written."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Hashable, Iterator
from pathlib import PurePath
from typing import Any, cast, get_args, get_type_hints

import msgspec

from holdfast.app.pydantic_types import Mismatch, PydanticType, is_model, model_type, pydantic_type
from holdfast.core import codec
from holdfast.errors import UsageError

_CONTEXT = "holdfast.worker.child.context.Context"
_CONTEXT_TEXTS = ("Context", "holdfast.Context", "list[Context]", "list[holdfast.Context]")
_LOCATED = re.compile(r"(.*) - at (key in )?\$(.*)", re.DOTALL)
_PROBLEMS_MAX, _TEXT_MAX = 3, 300
_EXPECTED = {
    "Invalid RFC3339 encoded datetime": "a date and time such as 2030-01-31T12:00:00Z",
    "Invalid RFC3339 encoded date": "a date such as 2030-01-31",
    "Invalid RFC3339 encoded time": "a time such as 12:30:00",
    "Invalid ISO8601 duration": "a duration such as PT90M",
    "Invalid UUID": "a UUID such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "Invalid decimal string": "a number such as 4.50",
    "Invalid base64 encoded string": "text in Base64",
}
"""The expected form of a value, by the message of msgspec."""


class JsonType:
    """A type hint whose values are read from JSON and written to it: by Pydantic if it contains a
    Pydantic type, otherwise by msgspec. UsageError if neither can.

    `field` is the hint for a field of a msgspec.Struct.
    """

    def __init__(self, what: str, hint: Any) -> None:
        self.hint: Any = Any if hint is None or hint is object else hint
        self.model: PydanticType | None = pydantic_type(self.hint)
        self.field: Any = self.hint if self.model is None else msgspec.Raw
        self.read: Callable[[bytes], Any]
        if self.model is None:
            _check(what, self.hint)
            self.read = msgspec.json.Decoder(self.hint, dec_hook=from_json).decode
        else:
            self.read = self.model.read

    def encode(self, value: Any) -> bytes:
        """JSON bytes of a value; InvalidJob if it has no form in JSON."""
        return codec.encode(self.plain(value))

    def plain(self, value: Any) -> Any:
        """A value that `codec.encode` takes."""
        return value if self.model is None else self.model.dump(value)


def from_json(kind: type[Any], value: Any) -> Any:
    """The value of a type that msgspec does not know. For `object`, any value is right."""
    if kind is object:
        return value
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if is_model(kind):
        return model_type(cast("Hashable", kind)).read(codec.encode(value))
    raise TypeError(f"Expected {kind.__name__}, got {type(value).__name__}")


def type_hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function, resolved one by one, so that an error names its parameter."""
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    if not inspect.isroutine(plain):
        plain = type(plain).__call__
    names = getattr(plain, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(plain).items():
        if isinstance(hint, str) and hint.replace('"', "").replace("'", "") in _CONTEXT_TEXTS:
            # Recognised by its text: Context is often imported only for type checkers.
            hints[name] = hint
            continue
        alone: Any = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints.update(get_type_hints(alone, globalns=names, include_extras=True))
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            if name != "return":
                raise UsageError(
                    f"the type hint {str(hint)[:80]!r} of parameter {name} of task {task} cannot "
                    f"be resolved ({error}): import it at run time, at the top of the module"
                ) from None
            # Workers do not need it; whoever reads the result does.
            hints[name] = Unresolved(str(hint)[:80])
    return hints


class Unresolved(msgspec.Struct, frozen=True):
    """The text of a return annotation that names something that cannot be found."""

    text: str


def is_context(hint: Any) -> bool:
    """Whether a type hint is the Context or a list of them."""
    if isinstance(hint, str):
        return True
    named = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    inner = (each for each in get_args(hint) if not isinstance(each, str) and each != hint)
    return named == _CONTEXT or any(map(is_context, inner))


def problems(error: msgspec.DecodeError | Mismatch, path: str = "") -> str:
    """At most three problems, a line each: the path of names to the value, and what is wrong."""
    found = error.problems if isinstance(error, Mismatch) else _problems(error)
    lines = [f"{f'{path}{at}'.lstrip('.')}: {text}".removeprefix(": ") for at, text in found]
    more = len(lines) - _PROBLEMS_MAX
    return "\n  ".join([*lines[:_PROBLEMS_MAX], *([f"and {more} more"] if more > 0 else [])])


def _problems(error: msgspec.DecodeError | Mismatch) -> list[tuple[str, str]]:
    text, where = str(error).replace("`", ""), ""
    if located := _LOCATED.fullmatch(text):
        text, key, where = located.groups()
        where += " (a key)" if key else ""
    if isinstance(error.__cause__, Mismatch):
        return [(f"{where}{path}", text) for path, text in error.__cause__.problems]
    for prefix in ("Object missing required field ", "Object contains unknown field "):
        if text.startswith(prefix):
            name, nested = text.removeprefix(prefix), bool(where)
            where = f"{where}.{name}"
            text = "it is missing" if "missing" in prefix else "there is no such argument"
            if nested and name.startswith("_"):
                text = "a private field is not stored: give it a default or another name"
    if text in _EXPECTED:
        text = f"it is not {_EXPECTED[text]}"
    return [(where, text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")]


def _check(what: str, hint: Any) -> None:
    try:
        msgspec.json.Decoder(hint, dec_hook=from_json)
        unknown = (
            kind
            for kind in _custom_types(msgspec.inspect.type_info(hint), {})
            if not (isinstance(kind, type) and (kind is object or issubclass(kind, PurePath)))
            and not is_model(kind)
        )
        kind = next(unknown, None)
        reason = None if kind is None else f"{getattr(kind, '__name__', kind)} is not a JSON type"
    except TypeError as error:
        reason = str(error).partition("\n")[0]
    if reason is not None:
        raise UsageError(
            f"{what} cannot be checked: {reason}; use plain types, a dataclass, an attrs class, a"
            " Pydantic model or a msgspec.Struct"
        )


def _custom_types(node: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """The types anywhere in a type that msgspec does not know."""
    if id(node) in seen:
        return
    seen[id(node)] = node
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
        return
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field):
                yield from _custom_types(each, seen)
