"""Exceptions that a handler raises to choose the outcome of its job.

They are public as `holdfast.Retry`, `Bury`, `Release` and `Cancelled`. Any other exception is a
failure; then the policy of the job, its task and its queue decides.
"""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.notation.durations import Duration, to_ms


class HandlerOutcome(Exception):
    """Not an error. Catch it only to raise it again."""

    def __init_subclass__(cls, public_name: str = "") -> None:
        if public_name:
            # Tracebacks and stored failures show this name.
            cls.__name__ = cls.__qualname__ = public_name

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text


class RetryRequest(HandlerOutcome, public_name="Retry"):
    """Run the job again: after `after`, or by its backoff if that is not given. It counts as an
    attempt; after the last one the job becomes a dead letter.
    """

    def __init__(self, text: str = "", *, after: Duration | None = None) -> None:
        super().__init__(text)
        self.after_ms: int | None = None if after is None else to_ms("after", after, UsageError)


class BuryRequest(HandlerOutcome, public_name="Bury"):
    """The job cannot be done: make it a dead letter at once."""


class ReleaseRequest(HandlerOutcome, public_name="Release"):
    """The job cannot run now, through no fault of its own: the attempt is refunded, at most twenty
    times.
    """

    def __init__(self, text: str = "", *, after: Duration = 0) -> None:
        super().__init__(text)
        self.after_ms: int = to_ms("after", after, UsageError)


class Cancelled(HandlerOutcome):
    """End the job as cancelled, neither done nor dead: raise it when `ctx.cancelled` is true."""


Retry = RetryRequest
Bury = BuryRequest
Release = ReleaseRequest
