"""Turns database errors into engine errors: unavailable, outcome unknown, full, or wrong schema.

No text contains a password: addresses are shown without their secrets.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from holdfast.errors import (
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
)

REPEATABLE = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock and a lock not available in time: the transaction was rolled back
and may be repeated. Calls of the engine do not deadlock with each other, but a caller's
transaction may."""

ENDED_BETWEEN = "the server ended the connection between two statements"
READ_ONLY = "25006"
_DISK_FULL = "53100"
_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
# The server ended the connection: shutdown, crash, database dropped, idle too long.
_CUT = ("08", "57P", "25P03", "25P04")
# Refused for now: resources, lock waits, cancelled statements, privileges, unknown database.
_REFUSED = ("28", "3D", "53", "55", "57", "42501", READ_ONLY, *REPEATABLE)


def sqlstate_of(error: BaseException) -> str | None:
    """The server's error code, under any of the names that client libraries use for it."""
    current: BaseException | None = error
    while current is not None:
        for name in ("sqlstate", "pgcode"):
            code = getattr(current, name, None)
            if isinstance(code, str):
                return code
        original: Any = getattr(current, "orig", None)
        current = original if isinstance(original, BaseException) else current.__cause__
    return None


def is_cut(error: BaseException) -> bool:
    """Whether the connection ended, so that the outcome of a statement in flight is unknown."""
    code = sqlstate_of(error)
    return code is None or code.startswith(_CUT)


def is_unsent(error: BaseException) -> bool:
    """Whether the library did not send the statement because the server had announced the end of
    the connection.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith(
        "cannot switch to state"
    )


def explain(error: BaseException, *, doubtful: bool, where: str) -> EngineError:
    """The error to raise. `doubtful`: a statement that commits was in flight."""
    code = sqlstate_of(error)
    message = " ".join(str(error).split()) or type(error).__name__
    if is_unsent(error):
        message = ENDED_BETWEEN
    text = f"PostgreSQL at {where}: {message}" + (f" ({code})" if code else "")
    if code == _DISK_FULL:
        return StorageFull(text)
    if code in _SCHEMA:
        return SchemaMismatch(
            f"{text}; the schema was migrated by another version of Holdfast, and nothing was"
            " changed: upgrade this process and start it again"
        )
    if is_cut(error):
        if doubtful:
            return OutcomeUnknown(
                f"{text}; the call may have taken effect: repeat it with the same ids"
            )
        return EngineUnavailable(f"{text}; nothing was changed")
    if code and code.startswith(_REFUSED):
        return EngineUnavailable(f"{text}; nothing was changed")
    return EngineError(text)


def mask(dsn: str) -> str:
    """The address without its password, and without options, which may contain one."""
    try:
        parts = urlsplit(dsn)
        host, port, user = parts.hostname or "", parts.port, parts.username
    except ValueError:
        return "an address that cannot be read"
    if not re.match(r"postgres(ql)?$", parts.scheme):
        return "an address that cannot be read"
    at = f"{user}@" if user else ""
    return f"{parts.scheme}://{at}{host}{f':{port}' if port else ''}{parts.path}"
