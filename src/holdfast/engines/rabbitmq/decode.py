"""Decoding of properties that other programs wrote, so that none can end a connection.

The client library raises for text that is not UTF-8 and for instants beyond the year 9999, and then
closes the connection: such a message would be delivered again and again. Here text keeps its bytes
as surrogates, and instants are numbers.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from pamqp import constants, decode

_ANY_NAME = re.compile(".*", re.DOTALL)
_DEPTH_MAX = 64
"""Deeper tables stay bytes."""
_FIXED_MAX = 8
"""The size of the longest value that has a fixed size."""


def install() -> None:
    """Replace the strict decoders of the library, and its rules for names, which RabbitMQ does not
    have; harmless when repeated."""
    constants.DOMAIN_REGEX.update({"queue-name": _ANY_NAME, "exchange-name": _ANY_NAME})
    decode.METHODS.update(shortstr=_short_text, table=_table, timestamp=_seconds)
    decode.TABLE_MAPPING.update({b"T": _seconds, b"F": _table, b"A": _array})


def _short_text(value: bytes) -> tuple[int, str]:
    if not value:
        raise ValueError("the text has no length")
    length = value[0]
    return length + 1, value[1 : length + 1].decode("utf-8", "surrogateescape")


def _seconds(value: bytes) -> tuple[int, int]:
    return 8, _unpack(">Q", value, 0)


def _table(value: bytes) -> tuple[int, dict[str, Any]]:
    return _read_table(value, 0, 0)


def _array(value: bytes) -> tuple[int, list[Any]]:
    return _read_array(value, 0, 0)


def _read_table(data: bytes, start: int, depth: int) -> tuple[int, dict[str, Any]]:
    """Without copying the rest of the data for each entry, which is slow for large tables."""
    at, end = _extent(data, start)
    found: dict[str, Any] = {}
    while at < end:
        length = data[at]
        key = data[at + 1 : at + 1 + length].decode("utf-8", "surrogateescape")
        at, found[key] = _read_value(data, at + 1 + length, end, depth)
    return end - start, found


def _read_array(data: bytes, start: int, depth: int) -> tuple[int, list[Any]]:
    at, end = _extent(data, start)
    found: list[Any] = []
    while at < end:
        at, value = _read_value(data, at, end, depth)
        found.append(value)
    return end - start, found


def _read_value(data: bytes, at: int, end: int, depth: int) -> tuple[int, Any]:
    """The position after the value, and the value."""
    code = data[at : at + 1]
    at += 1
    size: int
    value: Any
    if code in (b"S", b"x") or (code in (b"F", b"A") and depth >= _DEPTH_MAX):
        start, after = _extent(data, at)
        content = data[start:after]
        return after, _text_or_bytes(content) if code == b"S" else content
    if code == b"F":
        size, value = _read_table(data, at, depth + 1)
    elif code == b"A":
        size, value = _read_array(data, at, depth + 1)
    elif (decoder := decode.TABLE_MAPPING.get(code)) is not None:
        size, value = decoder(data[at : at + _FIXED_MAX])
    else:
        # Its length is not known, so neither is the rest of the table.
        return end, data[at - 1 : end]
    return at + size, value


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _extent(data: bytes, start: int) -> tuple[int, int]:
    """Where the content of a value with a length begins and ends."""
    end = start + 4 + _unpack(">I", data, start)
    if end > len(data):
        raise ValueError("a table is longer than its frame")
    return start + 4, end


def _unpack(layout: str, data: bytes, at: int) -> int:
    try:
        (number,) = struct.unpack_from(layout, data, at)
    except struct.error as error:
        raise ValueError("a number is cut off") from error
    return int(number)
