"""Shared parts of the views that `--json` prints and the server returns; nothing here does I/O.

A published field of a view is never removed. Instants are RFC 3339, and JSON payloads are shown as
their value.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.core import codec
from holdfast.core.text import counted
from holdfast.errors import InvalidJob
from holdfast.notation.durations import show_at


def plain(view: msgspec.Struct) -> dict[str, Any]:
    """A view as a dict, with its fields in order."""
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return fields


def value_of(data: bytes, content_type: str) -> Any:
    """The value of JSON; other bytes as text, or as their number ("12 bytes")."""
    if content_type == codec.JSON:
        try:
            return codec.decode(data)
        except InvalidJob:
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return counted(len(data), "byte")


def raw_of(data: bytes, content_type: str) -> Any:
    """The same for a view that is encoded as JSON directly: JSON bytes are kept unchanged."""
    if content_type == codec.JSON:
        try:
            # The decoder does not check the encoding of values that it skips.
            data.decode()
            return skip_json(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return value_of(data, "")


skip_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks JSON without building its value."""


def text_of(value: Any) -> str:
    """A field of a view on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def command_of(payload: Any) -> str:
    """The command line of a command job as a person would type it; "" for any other payload."""
    command = payload.get("command") if isinstance(payload, Mapping) else None
    if isinstance(command, str):
        return command
    if isinstance(command, list):
        return shlex.join(str(part) for part in command)
    return ""


def at_of(instant: int | None) -> str | None:
    """An optional instant in RFC 3339."""
    return None if instant is None else show_at(instant)
