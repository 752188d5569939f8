"""Payloads and other bytes of jobs as what they say, and in one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core import codec
from holdfast.core.text import counted
from holdfast.durations import show_at
from holdfast.errors import InvalidJob

COMMAND = "command"
"""The task that runs a command line; its result says how that ended."""

WEBHOOK = "webhook"
"""The task that sends a request to where its payload says."""


def plain(view: msgspec.Struct) -> dict[str, Any]:
    """A view as a dict, its fields in their order."""
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return fields


def value_of(data: bytes, content_type: str) -> Any:
    """JSON as what it says; other bytes as text, or as so many bytes."""
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
    """The same where it is written as JSON at once: then JSON stays the bytes that it is."""
    if content_type == codec.JSON:
        try:
            # What is skipped over is not looked at for this.
            data.decode()
            return _skim(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return value_of(data, "")


_skim = msgspec.json.Decoder(msgspec.Raw).decode


def text_of(value: Any) -> str:
    """A field of a view in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def command_of(payload: Any) -> str:
    """What a command job runs, as it would be typed; "" for what is none."""
    command = payload.get("command") if isinstance(payload, Mapping) else None
    if isinstance(command, str):
        return command
    if isinstance(command, list):
        return shlex.join(str(part) for part in command)
    return ""


def at_of(instant: int | None) -> str | None:
    """An instant that may not be there."""
    return None if instant is None else show_at(instant)
