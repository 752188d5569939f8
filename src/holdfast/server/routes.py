"""From a path to what is there: a look-up per part, however many operations there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from holdfast.server.refusals import BadRequest, UnknownPath, WrongMethod

Target = TypeVar("Target")

PATH_BYTES_MAX = 8 * 1024


class _Place(Generic[Target]):
    """One part of a path, and what may follow it."""

    __slots__ = ("methods", "named", "nexts")

    def __init__(self) -> None:
        self.nexts: dict[bytes, _Place[Target]] = {}
        self.named: _Place[Target] | None = None
        self.methods: dict[str, tuple[Target, tuple[str, ...]]] = {}


class Routes(Generic[Target]):
    """Of two that fit, the one that is literal further to the left is meant."""

    def __init__(self) -> None:
        self._root: _Place[Target] = _Place()
        self._literal: dict[tuple[str, bytes], Target] = {}

    def add(self, method: str, path: str, target: Target) -> None:
        place = self._root
        names: list[str] = []
        for part in path.split("/")[1:]:
            if part.startswith("{"):
                names.append(part[1:-1])
                place.named = place.named or _Place()
                place = place.named
            else:
                place = place.nexts.setdefault(part.encode(), _Place())
        if method in place.methods:
            raise TypeError(f"there are two operations at {method} {path}")
        place.methods[method] = (target, tuple(names))
        if not names:
            self._literal[method, path.encode()] = target

    def find(self, method: str, raw_path: bytes) -> tuple[Target, dict[str, Any]]:
        """What is there, and the texts of the names in its path."""
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
            return target, _texts(names, found[1])
        return self._look(method, parts)

    def _look(self, method: str, parts: list[bytes]) -> tuple[Target, dict[str, Any]]:
        allowed: list[str] = []
        for place, values in _fitting(self._root, parts, ()):
            found = place.methods.get(method)
            if found is not None:
                return found[0], _texts(found[1], values)
            allowed = allowed or sorted(place.methods)
        if allowed:
            text = f"this path takes {', '.join(allowed)}"
            raise WrongMethod(text, allowed=tuple(allowed))
        raise UnknownPath("there is nothing at this path: see /v1/openapi.json")


def _nearest(
    place: _Place[Target], parts: list[bytes]
) -> tuple[_Place[Target], list[bytes]] | None:
    """Literal parts wherever there are: nearly always right, and quicker than looking at all."""
    values = []
    for part in parts:
        found = place.nexts.get(part)
        if found is None:
            found = place.named
            if found is None or not part:
                return None
            values.append(part)
        place = found
    return place, values


def _fitting(
    place: _Place[Target], parts: list[bytes], values: tuple[bytes, ...]
) -> Iterator[tuple[_Place[Target], tuple[bytes, ...]]]:
    """Bounded by the depth of what was added, not by the path."""
    if not parts:
        yield place, values
        return
    part, rest = parts[0], parts[1:]
    literal = place.nexts.get(part)
    if literal is not None:
        yield from _fitting(literal, rest, values)
    if place.named is not None and part:
        yield from _fitting(place.named, rest, (*values, part))


def _texts(names: tuple[str, ...], values: Sequence[bytes]) -> dict[str, Any]:
    try:
        return {name: value.decode() for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
