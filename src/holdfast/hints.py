"""Type hints of a function: resolved one by one, and looked at for whether JSON can carry them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import msgspec

from holdfast.errors import UsageError

_CONTEXT = "holdfast.worker.context.Context"
_CONTEXT_TEXTS = ("Context", "holdfast.Context", "list[Context]", "list[holdfast.Context]")


def type_hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Each resolved by itself: one that cannot be must not hide which one it is."""
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    hints = {}
    for name, hint in inspect.get_annotations(plain).items():
        if isinstance(hint, str) and hint.replace('"', "").replace("'", "") in _CONTEXT_TEXTS:
            # Recognised by its text, because it is often imported for type checkers alone.
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
    return hints


def is_context(hint: Any) -> bool:
    if isinstance(hint, str):
        return True
    named = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    return named == _CONTEXT or any(is_context(each) for each in get_args(hint) if each != hint)


def carried(what: str, hint: Any) -> Any:
    """The hint itself, Any for none; UsageError when no JSON could be read as that."""
    if hint is None:
        return Any
    try:
        msgspec.json.Decoder(hint)
        custom = isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType)
        reason = f"{getattr(hint, '__name__', hint)} is no type that JSON can carry"
    except TypeError as error:
        custom, reason = True, str(error).partition("\n")[0]
    if custom:
        raise UsageError(
            f"{what} cannot be checked: {reason}; use plain types, a dataclass or a msgspec.Struct"
        )
    return hint
