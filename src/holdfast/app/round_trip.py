"""Compares a value with what a worker reads from its JSON. Pure.

A value in the form of JSON, such as text for a `datetime` or a dict for a dataclass, may become
the type of its hint, and a tuple stands for a list. A handler must not get anything else than was
given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

Difference: TypeAlias = tuple[str, Any, Any]
"""The path to a value, the value there as it was given, and as it is read."""

_JSON = (str, int, float, list, tuple, dict)
_READ_AS_JSON = (*_JSON, bool, type(None))
_HIDDEN = ("__pydantic_extra__", "__pydantic_private__")


def difference(given: Any, read: Any, path: str) -> Difference | None:
    """The first difference; None if the value arrives as it was given."""
    if _is_equal(given, read):
        return None
    kind, read_kind = type(given), type(read)
    if kind in (list, tuple) and read_kind in (list, tuple) and len(given) == len(read):
        pairs = enumerate(zip(given, read, strict=True))
        return _first(difference(one, other, f"{path}[{at}]") for at, (one, other) in pairs)
    if isinstance(given, Mapping) and read_kind is dict:
        return _between_mappings(given, read, path)
    if kind in _JSON and read_kind not in _READ_AS_JSON:
        return None
    if kind is read_kind and (names := _fields(kind)):
        found = _first(
            difference(getattr(given, name, None), getattr(read, name, None), f"{path}.{name}")
            for name in names
        )
        return found or _first(
            difference(getattr(given, name, None), getattr(read, name, None), path)
            for name in _HIDDEN
        )
    return path, given, read


def _is_equal(given: Any, read: Any) -> bool:
    """Whether both are equal. Instants are compared with their offset from UTC; NaN equals NaN."""
    try:
        if given == read:
            return True
    except Exception:  # noqa: BLE001, S110 (the types are the caller's; NaN may be signalling)
        pass
    if isinstance(given, Decimal) and isinstance(read, Decimal):
        return str(given) == str(read)
    if isinstance(given, datetime) and isinstance(read, datetime):
        # In the hour that clocks repeat, Python never calls instants of two time zones equal.
        wall = given.replace(tzinfo=None, fold=0) == read.replace(tzinfo=None, fold=0)
        return wall and given.utcoffset() == read.utcoffset()
    return False


def _between_mappings(
    given: Mapping[Any, Any], read: dict[Any, Any], path: str
) -> Difference | None:
    if len(given) != len(read):
        return path, given, read
    for (key, value), (read_key, read_value) in zip(given.items(), read.items(), strict=True):
        if key != read_key and (type(key) is not str or isinstance(read_key, str)):
            return f"{path} (a key)", key, read_key
        if (found := difference(value, read_value, f"{path}[{key!r:.40}]")) is not None:
            return found
    return None


def _fields(kind: type) -> Iterable[str]:
    for listed in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"):
        if (names := getattr(kind, listed, None)) is not None:
            return tuple(names)
    return tuple(each.name for each in getattr(kind, "__attrs_attrs__", ()))


def _first(found: Iterable[Difference | None]) -> Difference | None:
    return next((each for each in found if each is not None), None)
