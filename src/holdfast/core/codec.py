"""Payload ↔ bytes and Job ↔ JSON. What JSON has no way to write is refused.

As everywhere in JSON, a tuple is read back as a list and the keys of an object as text.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from holdfast.core.model import Job
from holdfast.errors import InvalidJob

JSON = "application/json"


def encode(value: Any) -> bytes:
    """JSON bytes of a value. NaN, lone surrogates and endless nesting are refused, not altered."""
    try:
        # The standard encoder, because msgspec's would write NaN as null without a word.
        text = json.dumps(
            value,
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            default=msgspec.to_builtins,
        )
        return text.encode()
    except RecursionError:
        raise InvalidJob("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidJob(f"the value cannot be written as JSON: {error}") from None


def decode(data: bytes) -> Any:
    """The value of JSON bytes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidJob(f"the bytes are not JSON that can be read: {error}") from None


def merge_patch(target: bytes, patch: bytes) -> bytes:
    """RFC 7396: what `patch` says, laid over `target`."""
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


def decode_job(line: bytes) -> Job:
    return msgspec.json.decode(line, type=Job)
