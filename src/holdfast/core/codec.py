"""Payload ↔ bytes, Job → JSON, and the trace in a job's headers. Values that JSON cannot represent
are refused.

As always with JSON, a tuple is read back as a list and the keys of an object as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.core.model import Job
from holdfast.errors import InvalidJob

JSON = "application/json"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
"""The headers that carry a W3C trace with a job or a request."""
# The standard encoder: msgspec's writes NaN as null without an error.
_ENCODER: Final = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=msgspec.to_builtins
)
_TRACEPARENT_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def encode(value: Any) -> bytes:
    """JSON bytes of a value. NaN, lone surrogates and excessive nesting are refused, not
    altered.
    """
    try:
        return _ENCODER.encode(value).encode()
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


def encode_job(job: Job) -> bytes:
    """One line of JSON; bytes are base64."""
    return msgspec.json.encode(job)


def trace_parent(headers: Mapping[str, str]) -> str | None:
    """The traceparent header, if there is a well-formed one."""
    found = headers.get(TRACEPARENT)
    return found if found is not None and _TRACEPARENT_FORM.match(found) else None
