"""Payload ↔ bytes, Job → JSON, and the trace in a job's headers. Values that JSON cannot represent
are refused.

As always with JSON, a tuple is read back as a list and the keys of an object as text, unless a type
hint says otherwise. The payload of a message with attributes is an envelope of body and attributes;
workers get the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.core.model import Job
from holdfast.core.text import with_article
from holdfast.errors import InvalidJob

JSON = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
ENVELOPE: Final = "application/vnd.holdfast.message+msgpack"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
"""The headers that carry a W3C trace with a job or a request."""
_TRACEPARENT_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def _in_builtins(value: Any) -> Any:
    """The value in types of JSON, with keys as text."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return _builtin(value)
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_builtin)


def _builtin(value: Any) -> Any:
    """A value of a type that msgspec does not know: a path or a Pydantic model."""
    kind = type(value)
    if hasattr(kind, "__fspath__"):
        return str(value)
    if hasattr(kind, "__pydantic_serializer__"):
        return kind.__pydantic_serializer__.to_python(value, mode="json", round_trip=True)
    raise TypeError(f"{with_article(kind.__name__)} has no form in JSON")


# The standard encoder: msgspec's writes NaN as null without an error.
_ENCODER: Final = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_in_builtins
)


def encode(value: Any) -> bytes:
    """JSON bytes of a value. NaN, lone surrogates and excessive nesting are refused, not
    altered.
    """
    try:
        try:
            return _ENCODER.encode(value).encode()
        except TypeError:
            # The standard encoder takes no keys such as a UUID or a date.
            return _ENCODER.encode(_in_builtins(value)).encode()
    except RecursionError:
        raise InvalidJob("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidJob(f"the value cannot be written as JSON: {error}") from None


def decode(data: bytes) -> Any:
    """The value of JSON bytes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJob(f"the bytes are not JSON: {error}") from None


def merge_patch(target: bytes, patch: bytes) -> bytes:
    """Apply a JSON merge patch (RFC 7396) to `target`."""
    try:
        return encode(_merged(decode(target) if target else {}, decode(patch)))
    except RecursionError:
        raise InvalidJob("the merged value is nested too deeply") from None


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


class Attribute(msgspec.Struct, frozen=True, array_like=True):
    """A typed attribute of a message; text is UTF-8."""

    type: str
    value: bytes


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with its attributes."""

    body: bytes
    attributes: dict[str, Attribute]


_envelopes = msgspec.msgpack.Decoder(Envelope)
_any_json = msgspec.json.Decoder(msgspec.Raw)


def pack_envelope(body: bytes, attributes: dict[str, Attribute]) -> tuple[bytes, str]:
    """The payload and the content type of a message. A body without attributes is the payload, so
    that every client can read it."""
    if not attributes:
        return body, body_type(body)
    return msgspec.msgpack.encode(Envelope(body, attributes)), ENVELOPE


def unpack_envelope(payload: bytes, content_type: str) -> Envelope:
    """The message in a payload. One that is no envelope, or a damaged one, is a body alone."""
    if content_type != ENVELOPE:
        return Envelope(payload, {})
    try:
        return _envelopes.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return Envelope(payload, {})


def open_body(payload: bytes, content_type: str) -> tuple[bytes, str]:
    """The part of a payload that a worker gets, and its content type."""
    if content_type != ENVELOPE:
        return payload, content_type
    body = unpack_envelope(payload, content_type).body
    return body, body_type(body)


def body_type(body: bytes) -> str:
    """JSON if the body is an object or an array, as the arguments of a task are; otherwise text."""
    if body[:1] in (b"{", b"["):
        try:
            _any_json.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return TEXT
        return JSON
    return TEXT


def encode_job(job: Job) -> bytes:
    """One line of JSON; bytes are base64."""
    return msgspec.json.encode(job)


def trace_parent(headers: Mapping[str, str]) -> str | None:
    """The traceparent header, if there is a well-formed one."""
    found = headers.get(TRACEPARENT)
    return found if found is not None and _TRACEPARENT_FORM.match(found) else None
