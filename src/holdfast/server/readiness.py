"""Does the store answer, and which of its partitions are shut out? Asked at most once a second,
however many ask here: whoever probes needs no token."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.app import Holdfast
from holdfast.errors import EngineUnavailable, HoldfastError

_FRESH_S = 1.0
_PATIENCE_S = 5.0


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """By its number in the list, from 1: its name may say more than a stranger should know.
    `out` is for how many seconds it has been shut out, and `code` why."""

    number: int
    out: float | None = None
    code: str | None = None


class Readiness:
    """Of one store."""

    def __init__(self) -> None:
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[HoldfastError | None] | None = None

    async def trouble(self, app: Holdfast) -> HoldfastError | None:
        """What keeps the store from answering; None if nothing does."""
        now = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= _FRESH_S):
            self._asked_at = now
            self._asking = asyncio.create_task(_ask(app))
        return await asyncio.shield(self._asking)


def partitions_of(app: Holdfast) -> list[PartitionState] | None:
    """None for a store that is in one piece."""
    look = getattr(app.home.store, "partitions", None)
    if look is None:
        return None
    return [
        PartitionState(
            number=number,
            out=None if view.out_ms is None else view.out_ms / 1000,
            code=view.code or None,
        )
        for number, view in enumerate(look(), 1)
    ]


def is_whole(app: Holdfast) -> bool:
    """Whether everything that was stored can be read now."""
    look = getattr(app.home.store, "partitions", None)
    return look is None or all(view.out_ms is None for view in look())


async def _ask(app: Holdfast) -> HoldfastError | None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await app.queues(counts=False)
    except TimeoutError:
        return EngineUnavailable(f"the store did not answer within {_PATIENCE_S:g} s")
    except HoldfastError as error:
        return error
    return None
