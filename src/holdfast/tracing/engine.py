"""An engine whose jobs carry their trace; everything else goes through as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.tracing.spans import carrying, producing


class Traced:
    """See `Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        with producing(jobs) as carried:
            return await self._engine.enqueue(carried)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Follow-up jobs go on with the trace of whoever completes."""
        return await self._engine.settle([_followed(each) for each in settlements])


class TracedWithin:
    """What enqueues inside the caller's own transaction; the span is the caller's, too."""

    def __init__(self, within: Any) -> None:
        self._within = within

    def __getattr__(self, name: str) -> Any:
        return getattr(self._within, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> Any:
        return self._within.enqueue(carrying(jobs))


def _followed(settlement: Settlement) -> Settlement:
    verdict = settlement.verdict
    if not isinstance(verdict, Complete) or not verdict.then:
        return settlement
    return replace(settlement, verdict=replace(verdict, then=tuple(carrying(verdict.then))))
