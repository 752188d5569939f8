"""An error as it is told to a client: a status, a stable code, a text, and never a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import (
    EngineError,
    HoldfastError,
    OutcomeUnknown,
    QuotaExceeded,
    Unsupported,
)
from holdfast.server.refusals import WrongMethod

STATUS = {
    "bad_request": 400,
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "unknown_path": 404,
    "wrong_method": 405,
    "slow_request": 408,
    "too_large": 413,
    "wrong_content": 415,
    "overloaded": 503,
    "stopping": 503,
    "not_ready": 503,
    "timed_out": 504,
    "outcome_unknown": 504,
    "usage": 422,
    "invalid_job": 422,
    "invalid_webhook": 422,
    "address_refused": 422,
    "invalid_queue": 422,
    "payload_too_large": 413,
    "unknown_queue": 404,
    "unknown_job": 404,
    "not_found": 404,
    "unknown_kind": 404,
    "unknown_parent": 422,
    "circular_jobs": 422,
    "queue_full": 429,
    "quota_exceeded": 429,
    "not_accepting": 409,
    "wrong_state": 409,
    "exists": 409,
    "config": 422,
    "unsupported": 501,
    "lease_lost": 409,
    "no_result": 409,
    "job_failed": 409,
    "job_cancelled": 409,
    "job_gone": 410,
    "result_timeout": 504,
    "key_reused": 422,
    "in_progress": 409,
    "answer_gone": 410,
    "unavailable": 503,
    "storage_full": 507,
    "schema_mismatch": 500,
    "closed": 503,
    "engine": 500,
    "error": 500,
}

_RETRY_S = {"queue_full": 5, "quota_exceeded": 5, "in_progress": 1}
_CLOSING = ("slow_request", "too_large", "stopping")
"""The rest of such a request is not read: the connection cannot be used again."""


class Problem(msgspec.Struct):
    """`detail` is what a program may want of the text."""

    code: str
    message: str
    detail: dict[str, Any] = {}


class Wrong(msgspec.Struct):
    error: Problem


class KnownProblem(Problem):
    """For the remote engine: the answers of a batch that are known all the same."""

    known: bytes | None = None


class KnownWrong(msgspec.Struct):
    error: KnownProblem


class Unexpected(EngineError):
    """The server failed in a way it did not expect: its log says more."""

    code = "error"


def status_of(error: HoldfastError) -> int:
    """By the most special class that has one."""
    for kind in type(error).__mro__:
        status = STATUS.get(getattr(kind, "code", ""))
        if status is not None:
            return status
    return 500


def retry_s(code: str) -> int | None:
    """After how long it may be worth trying again, if it is."""
    return 1 if STATUS.get(code) == 503 else _RETRY_S.get(code)


def headers_of(error: HoldfastError) -> Sequence[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    seconds = retry_s(error.code)
    if isinstance(error, QuotaExceeded):
        seconds = -(-error.retry_ms // 1000)
    if seconds is not None:
        found.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, WrongMethod):
        found.append((b"allow", ", ".join(error.allowed).encode()))
    if error.code == "unauthenticated":
        found.append((b"www-authenticate", b'Bearer realm="holdfast"'))
    if error.code in _CLOSING:
        found.append((b"connection", b"close"))
    return found


def wrong_of(error: HoldfastError) -> Wrong:
    return Wrong(Problem(error.code, str(error), detail_of(error)))


def known_wrong_of(error: HoldfastError) -> KnownWrong:
    """The same with nothing lost."""
    known = None
    if isinstance(error, OutcomeUnknown) and error.known:
        known = msgspec.msgpack.encode(error.known)
    return KnownWrong(KnownProblem(error.code, str(error), detail_of(error), known))


def detail_of(error: HoldfastError) -> dict[str, Any]:
    """An error may say for itself what a program wants to know of it."""
    if isinstance(error, Unsupported):
        return {"engine": error.engine, "feature": error.feature}
    detail: dict[str, Any] = getattr(error, "detail", {})
    return detail
