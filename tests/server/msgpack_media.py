"""MessagePack for Schemathesis: bodies made from a schema, answers checked against one.

A JSON schema has no bytes. Here they are strings of a format, marked by their first character.
"""

import base64
import binascii
from typing import Any

import msgspec
import schemathesis
from hypothesis import strategies as st

from holdfast.engines.wire import CONTENT_TYPE

BYTES = "msgpack-bytes"
_MARK = "\ue000"


@schemathesis.serializer(CONTENT_TYPE)
def serialize(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A generated body."""
    return value if isinstance(value, bytes) else msgspec.msgpack.encode(_to_msgpack(value))


@schemathesis.deserializer(CONTENT_TYPE)
def deserialize(_context: schemathesis.DeserializationContext, response: Any) -> Any:
    """An answer, with its bytes as strings."""
    return to_json(msgspec.msgpack.decode(response.content, strict=False))


def _text(value: bytes) -> str:
    return _MARK + base64.b64encode(value).decode()


def to_json(value: Any) -> Any:
    """The value as the schema describes it."""
    match value:
        case bytes():
            return _text(value)
        case dict():
            return {str(key): to_json(each) for key, each in value.items()}
        case list() | tuple():
            return [to_json(each) for each in value]
        case _:
            return value


def _to_msgpack(value: Any) -> Any:
    """The value as it is sent. Numbers and texts that MessagePack cannot hold are only in places
    where anything is allowed, or nothing of the kind."""
    match value:
        case str() if value.startswith(_MARK):
            try:
                return base64.b64decode(value[1:].encode(), validate=True)
            except (binascii.Error, ValueError):
                return value
        case str():
            return value.encode(errors="replace").decode()
        case bool():
            return value
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
        case dict():
            return {_to_msgpack(key): _to_msgpack(each) for key, each in value.items()}
        case list():
            return [_to_msgpack(each) for each in value]
        case _:
            return value


schemathesis.openapi.format(BYTES, st.binary(max_size=40).map(_text))
