"""What a path and a query say, as the types of an operation: exactly, or refused.

A name that is not known, or that comes twice where one value is meant, is an error: a filter that
is misspelt must not become everything. A field that is a list is given by repeating its name.
"""

from __future__ import annotations

import re
import types
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import FieldInfo

from holdfast.server.refusals import BadRequest, InvalidRequest

QUERY_BYTES_MAX = 16 * 1024
_FIELDS_MAX = 1_000
_LISTS = (list, tuple, set, frozenset)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})\Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?\Z")
_SWITCH = {"true": True, "false": False}

_KNOWN_MAX, _KNOWN_LENGTH_MAX = 1_000, 256


class QueryReader:
    """Reads queries into one type."""

    def __init__(self, query: type[msgspec.Struct]) -> None:
        self._query = query
        self._fields = _fields_of(query)
        self._lists = {name for name, each in self._fields.items() if _bare(each.type)[0] in _LISTS}

    def read(self, text: bytes) -> msgspec.Struct:
        if not text:
            return self._made({})
        if len(text) > QUERY_BYTES_MAX:
            raise BadRequest(f"the query is longer than {QUERY_BYTES_MAX} bytes")
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=_FIELDS_MAX,
            )
        except ValueError:
            raise BadRequest("the query cannot be read: write it as name=value&…") from None
        given: dict[str, Any] = {}
        for name, value in pairs:
            known = self._fields.get(name)
            if known is None:
                names = ", ".join(self._fields) or "none"
                raise InvalidRequest(f"the query has no {name!r}: it takes {names}")
            if name in self._lists:
                given.setdefault(name, []).append(scalar(value, _element(known)))
            elif name in given:
                raise InvalidRequest(f"the query gives {name!r} more than once")
            else:
                given[name] = scalar(value, known.type)
        return self._made(given)

    def _made(self, given: dict[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(given, self._query)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the query is not as it should be: {error}") from None


@cache
def _fields_of(query: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """By their names. Looking at a type takes long, and it is the same for every server."""
    return {each.encode_name: each for each in msgspec.structs.fields(query)}


class PathReader:
    """Reads one name of a path. Most requests are for the same few queues: what was read once is
    known."""

    def __init__(self, name: str, wanted: Any) -> None:
        self._name = name
        self._wanted = wanted
        self._known: dict[str, Any] = {}

    def read(self, text: str) -> Any:
        value = self._known.get(text)
        return self._looked_at(text) if value is None else value

    def _looked_at(self, text: str) -> Any:
        try:
            value = msgspec.convert(scalar(text, self._wanted), self._wanted)
        except msgspec.ValidationError as error:
            text = f"{self._name} in the path is not as it should be: {error}"
            raise InvalidRequest(text) from None
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        if len(text) <= _KNOWN_LENGTH_MAX:
            self._known[text] = value
        return value


def scalar(text: str, wanted: Any) -> Any:
    """A text as the type takes it, or the text itself where only that, or nothing, fits."""
    kinds = _bare(wanted)
    if bool in kinds and text in _SWITCH:
        return _SWITCH[text]
    if int in kinds and _WHOLE.match(text):
        return int(text)
    if float in kinds and _NUMBER.match(text):
        return float(text)
    return text


def _bare(wanted: Any) -> tuple[Any, ...]:
    """The plain types that a type is made of, without bounds and without None."""
    origin = get_origin(wanted)
    if origin is Annotated:
        return _bare(get_args(wanted)[0])
    if origin in (Union, types.UnionType):
        return tuple(
            kind for each in get_args(wanted) if each is not type(None) for kind in _bare(each)
        )
    return (origin or wanted,)


def _element(field: FieldInfo) -> Any:
    wanted = field.type
    while get_origin(wanted) is Annotated:
        wanted = get_args(wanted)[0]
    if get_origin(wanted) in (Union, types.UnionType):
        [wanted] = [each for each in get_args(wanted) if each is not type(None)]
    return (get_args(wanted) or (str,))[0]
