"""Calls of the two sides of a gate: a failure of the broker's link is marked as such, and a call of
the store whose outcome is unknown is repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown

Answer = TypeVar("Answer")
HELD_MS: Final = 500
"""The pause of a gate whose queue takes or gives no jobs."""
_CALLS_MAX = 3


class LinkFailed(Exception):
    """The link to the broker failed: it must be opened again. Every message that it delivered
    returns to its source."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.error = error


async def linked(call: Awaitable[Answer]) -> Answer:
    """The answer of a call of the link. Raises LinkFailed."""
    try:
        return await call
    except HoldfastError as error:
        raise LinkFailed(error) from error


async def repeated(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer of a call of the store that may be repeated. Raises OutcomeUnknown if the outcome
    is still unknown after a few calls."""
    for _ in range(_CALLS_MAX - 1):
        try:
            return await call()
        except OutcomeUnknown:
            continue
    return await call()


def missing_queue(name: str) -> str:
    """Why a gate is held whose queue does not exist."""
    return f"queue {name} does not exist: create it"
