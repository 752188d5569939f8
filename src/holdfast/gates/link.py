"""Calls of a broker's link, with its failures told apart from those of the store."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from holdfast.errors import HoldfastError

Answer = TypeVar("Answer")


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
