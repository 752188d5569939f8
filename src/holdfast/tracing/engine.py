"""An engine whose jobs carry the trace of their producer; everything else passes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from holdfast.core.model import NewJob, Receipt
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.extras import Ability, Transactional
from holdfast.engines.wrapper import Wrapper
from holdfast.tracing.spans import enqueue_span, with_current_trace


class TracedEngine(Wrapper):
    """See `Engine`."""

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """Jobs that are enqueued in a transaction of the caller carry their trace too."""
        found = super().find_extra(ability)
        if isinstance(found, Transactional) and ability is Transactional:
            return cast("Ability", _TracedTransactional(found))
        return found

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        with enqueue_span(jobs) as traced:
            return await self._engine.enqueue(traced)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Follow-up jobs continue the trace of the job that completes."""
        return await self._engine.settle([_with_traced_follow_ups(each) for each in settlements])


class _TracedTransactional:
    def __init__(self, engine: Transactional) -> None:
        self._engine = engine

    def within(self, connection: Any) -> Any:
        return TracedTransaction(self._engine.within(connection))


class TracedTransaction:
    """Enqueues inside a transaction of the caller; the current span is the caller's."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        # The methods differ by engine and driver: some are awaitable, some block.
        return getattr(self._transaction, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> Any:
        return self._transaction.enqueue(with_current_trace(jobs))


def _with_traced_follow_ups(settlement: Settlement) -> Settlement:
    verdict = settlement.verdict
    if not isinstance(verdict, Complete) or not verdict.then:
        return settlement
    then = tuple(with_current_trace(verdict.then))
    return replace(settlement, verdict=replace(verdict, then=then))
