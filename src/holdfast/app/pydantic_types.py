"""Type hints with Pydantic types: Pydantic itself reads and writes their values.

Pydantic is optional. It is used only if the application has imported it, for otherwise no hint
can contain one of its types.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from holdfast.core.text import printable
from holdfast.errors import InvalidJob, UsageError

if TYPE_CHECKING:
    import pydantic

_PACKAGES = ("pydantic", "annotated_types", "pydantic_extra_types")
_WITH_FIELDS = (
    "__dataclass_fields__",
    "__attrs_attrs__",
    "__struct_fields__",
    "__required_keys__",
    "_fields",
)
_OLDEST = (2, 11)
_PART_MAX, _TEXT_MAX = 80, 200


class Mismatch(ValueError):
    """A value does not fit its hint: the path to each problem, and what is wrong there."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems: list[tuple[str, str]] = problems


class PydanticType:
    """A type hint whose values Pydantic reads and writes.

    Outside of models, types are strict, as those that msgspec reads; a model follows its own
    configuration. Values are written with the names of fields, and read with names or aliases, so
    that every combination of aliases can be read back.
    """

    def __init__(self, hint: Any) -> None:
        import pydantic

        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _OLDEST:
            raise UsageError(
                f"Pydantic {pydantic.VERSION} is too old for the types of tasks: "
                f"install {'.'.join(map(str, _OLDEST))} or later"
            )
        self._error: type[pydantic.ValidationError] = pydantic.ValidationError
        self._adapter: pydantic.TypeAdapter[Any]
        try:
            self._adapter = pydantic.TypeAdapter(hint, config={"strict": True})
        except pydantic.PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            self._adapter = pydantic.TypeAdapter(hint)

    def dump(self, value: Any) -> Any:
        """The value in types of JSON."""
        try:
            return self._adapter.dump_python(
                value, mode="json", round_trip=True, by_alias=False, warnings="none"
            )
        except (TypeError, ValueError) as error:
            why = _cut(str(error), _TEXT_MAX)
            raise InvalidJob(f"the value cannot be written as JSON: {why}") from None

    def read(self, data: bytes) -> Any:
        """The value of JSON bytes; Mismatch if they do not fit."""
        try:
            return self._adapter.validate_json(data, by_alias=True, by_name=True)
        except self._error as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise Mismatch(
                [(_path(each["loc"]), _cut(each["msg"], _TEXT_MAX)) for each in found]
            ) from None


def pydantic_type(hint: Any) -> PydanticType | None:
    """The hint, if it contains a Pydantic type and Pydantic can read all of it."""
    if "pydantic" not in sys.modules or not any(map(_is_pydantic, _parts(hint, {}))):
        return None
    import pydantic

    try:
        return PydanticType(hint)
    except pydantic.PydanticUserError:
        # It contains an attrs class or a msgspec.Struct. msgspec reads it, and calls us for models.
        return None


def is_model(kind: Any) -> bool:
    """True for a class that Pydantic reads and msgspec does not know."""
    return isinstance(kind, type) and _is_pydantic(kind)


@functools.cache
def model_type(kind: Hashable) -> PydanticType:
    """The type of a model inside a hint that msgspec reads."""
    return PydanticType(kind)


def _is_pydantic(part: Any) -> bool:
    kind = part if isinstance(part, type) else type(part)
    return (
        hasattr(kind, "__get_pydantic_core_schema__")
        or hasattr(kind, "__pydantic_validator__")
        or kind.__module__.partition(".")[0] in _PACKAGES
    )


def _parts(hint: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Every type and annotation in a hint, including those of the fields of its classes."""
    if id(hint) in seen:
        return
    seen[id(hint)] = hint
    yield hint
    inner = [*get_args(hint), get_origin(hint)]
    inner += [getattr(hint, name, None) for name in ("__value__", "__supertype__")]
    if isinstance(hint, type) and any(hasattr(hint, name) for name in _WITH_FIELDS):
        # msgspec reports a hint that cannot be resolved.
        with contextlib.suppress(NameError, AttributeError, TypeError):
            inner += get_type_hints(hint, include_extras=True).values()
    for each in inner:
        if each is not None:
            yield from _parts(each, seen)


def _path(parts: tuple[int | str, ...]) -> str:
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{_cut(part, _PART_MAX)}" for part in parts
    )


def _cut(text: str, most: int) -> str:
    shown = printable(text[:most], one_line=True)
    return shown if len(text) <= most else f"{shown}…"
