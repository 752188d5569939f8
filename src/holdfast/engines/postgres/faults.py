"""What a database error means to a caller: nothing changed, not known, full, or another schema.

Passwords never get into a text: the address is shown without its secrets.
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

REPEATABLE = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: the transaction is gone and may simply be run again."""

ENDED_BETWEEN = "the server ended the connection between two statements"
READ_ONLY = "25006"
_DISK_FULL = "53100"
_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
# The server ends the connection: shutdown, crash, database dropped, idle too long.
_CUT = ("08", "57P", "25P03", "25P04")
# Refusals for now: resources, waiting locks, cancelled statements, privileges, unknown database.
_REFUSED = ("28", "3D", "53", "55", "57", "42501", READ_ONLY, *REPEATABLE)


def sqlstate_of(error: BaseException) -> str | None:
    """The server's code, by whatever name the caller's library keeps it."""
    seen: BaseException | None = error
    while seen is not None:
        for name in ("sqlstate", "pgcode"):
            code = getattr(seen, name, None)
            if isinstance(code, str):
                return code
        original: Any = getattr(seen, "orig", None)
        seen = original if isinstance(original, BaseException) else seen.__cause__
    return None


def is_cut(error: BaseException) -> bool:
    """Did the connection end, so that what was in flight is in doubt?"""
    code = sqlstate_of(error)
    return code is None or code.startswith(_CUT)


def is_unsent(error: BaseException) -> bool:
    """Did the library refuse to send the statement? A server that ends an idle connection says so
    first, and until the connection is seen to close the library knows no more than that."""
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith(
        "cannot switch to state"
    )


def explain(error: BaseException, *, doubtful: bool, where: str) -> EngineError:
    """The error to raise. `doubtful`: something that may commit by itself was in flight."""
    code = sqlstate_of(error)
    said = " ".join(str(error).split()) or type(error).__name__
    if is_unsent(error):
        said = ENDED_BETWEEN
    text = f"PostgreSQL at {where}: {said}" + (f" ({code})" if code else "")
    if code == _DISK_FULL:
        return StorageFull(text)
    if code in _SCHEMA:
        return SchemaMismatch(f"{text}; the schema is not what this version made")
    if is_cut(error):
        if doubtful:
            return OutcomeUnknown(f"{text}; it may have happened: repeat with the same ids")
        return EngineUnavailable(f"{text}; nothing was changed")
    if code and code.startswith(_REFUSED):
        return EngineUnavailable(f"{text}; nothing was changed")
    return EngineError(text)


def mask(dsn: str) -> str:
    """The address for people: without password, and without options, which may hold one."""
    try:
        parts = urlsplit(dsn)
        host, port, user = parts.hostname or "", parts.port, parts.username
    except ValueError:
        return "an address that cannot be read"
    if not re.match(r"postgres(ql)?$", parts.scheme):
        return "an address that cannot be read"
    at = f"{user}@" if user else ""
    return f"{parts.scheme}://{at}{host}{f':{port}' if port else ''}{parts.path}"
