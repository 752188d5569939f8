"""Errors as clients see them: HTTP status, stable code, text and detail, never a traceback.

Also the errors that the server itself raises before it touches a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import (
    EngineError,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    QuotaExceeded,
    Unsupported,
    UsageError,
)

STATUS = {
    "bad_request": 400,
    "invalid_request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "read_only": 403,
    "signature_refused": 403,
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
    "result_mismatch": 409,
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
_CLOSING_CODES = ("slow_request", "too_large", "stopping")
"""The rest of such a request is not read, so its connection cannot be reused."""


class Problem(msgspec.Struct):
    """An error: a stable `code`, a text for people, and a `detail` for programs."""

    code: str
    message: str
    detail: dict[str, Any] = {}


class ErrorBody(msgspec.Struct):
    """The body of every error response."""

    error: Problem


class PartialProblem(Problem):
    """A problem for the remote engine, with the answers of a batch that are known."""

    known: bytes | None = None


class PartialErrorBody(msgspec.Struct):
    """The body of an error response to the remote engine."""

    error: PartialProblem


class Unexpected(EngineError):
    """The server failed with an unexpected error: see its log."""

    code = "error"


def status_of(error: HoldfastError) -> int:
    """The HTTP status of an error, by its most specific class that has one."""
    for kind in type(error).__mro__:
        status = STATUS.get(getattr(kind, "code", ""))
        if status is not None:
            return status
    return 500


def retry_s(code: str) -> int | None:
    """Seconds after which a client may try again; None if trying again does not help."""
    return 1 if STATUS.get(code) == 503 else _RETRY_S.get(code)


def error_headers(error: HoldfastError) -> Sequence[tuple[bytes, bytes]]:
    """Headers that belong to an error: Retry-After, Allow, WWW-Authenticate, Connection."""
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
    if error.code in _CLOSING_CODES:
        found.append((b"connection", b"close"))
    return found


def error_body(error: HoldfastError) -> ErrorBody:
    """The error as the body of a response."""
    return ErrorBody(Problem(error.code, str(error), detail_of(error)))


def partial_error_body(error: HoldfastError) -> PartialErrorBody:
    """The error with the known answers of its batch, for the remote engine."""
    known = None
    if isinstance(error, OutcomeUnknown) and error.known:
        known = msgspec.msgpack.encode(error.known)
    return PartialErrorBody(PartialProblem(error.code, str(error), detail_of(error), known))


def detail_of(error: HoldfastError) -> dict[str, Any]:
    """The error's values for programs."""
    if isinstance(error, Unsupported):
        return {"engine": error.engine, "feature": error.feature, "remedy": error.remedy}
    detail: dict[str, Any] = getattr(error, "detail", {})
    return detail


class BadRequest(UsageError):
    """The request cannot be parsed: the message says why."""

    code = "bad_request"


class InvalidRequest(UsageError):
    """A value of the request does not match /v1/openapi.json: the message says which."""

    code = "invalid_request"


class TooLarge(UsageError):
    """The request is larger than the server accepts: send less at a time."""

    code = "too_large"


class WrongContent(UsageError):
    """The body has the wrong content type or encoding: the message names the right one."""

    code = "wrong_content"


class UnknownPath(UsageError):
    """The path does not exist: see /v1/openapi.json."""

    code = "unknown_path"


class WrongMethod(UsageError):
    """The path does not allow this method: the header `Allow` lists those that it does."""

    code = "wrong_method"

    def __init__(self, text: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(text)
        self.allowed = allowed


class SlowRequest(UsageError):
    """The request did not arrive in time: send it again, faster or in parts."""

    code = "slow_request"


class TimedOut(EngineUnavailable):
    """The request took too long and was cancelled, with nothing changed: request less."""

    code = "timed_out"


class Stopping(EngineUnavailable):
    """The server is stopping: try again, on this or another server."""

    code = "stopping"


class ClientDisconnected(Exception):
    """The client disconnected: there is no one to answer."""
