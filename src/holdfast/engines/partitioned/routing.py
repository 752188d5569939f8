"""Batches taken apart by partition, and their answers laid together again.

What failed in one partition is told apart from what others have answered: each keeps its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from holdfast.engines.base import Engine
from holdfast.engines.partitioned.keeper import Keeper
from holdfast.engines.partitioned.partition import Partition
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Verb = Callable[[Engine, list[Ask]], Awaitable[Sequence[Answer]]]


class Batch(Generic[Ask, Answer]):
    """`places`, `answers` and `errors` are by the position in the call."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._parts: dict[int, list[tuple[int, Ask]]] = {}
        self.places: dict[int, int] = {}
        self.answers: dict[int, Answer] = {}
        self.errors: dict[int, EngineError] = {}

    def add(self, at: int, place: int, ask: Ask) -> None:
        self.places[at] = place
        self._parts.setdefault(place, []).append((at, ask))

    async def ask(self, verb: Verb[Ask, Answer], is_welcome: Callable[[Partition], bool]) -> None:
        """To all partitions at once; each part is one call."""
        await asyncio.gather(
            *(
                self._ask_part(self._keeper.all[place], part, verb, is_welcome)
                for place, part in self._parts.items()
            )
        )

    def whole(self, count: int) -> list[Answer]:
        """Every answer; if some are missing, what is known is told with the error."""
        if not self.errors:
            return [self.answers[at] for at in range(count)]
        errors = sorted(self.errors.items(), key=lambda each: _is_definite(each[1]))
        first = errors[0][1]
        if not self.answers:
            raise first
        raise OutcomeUnknown(
            f"{len(self.errors)} of {count} have no answer ({first}): repeat those",
            known=self.answers,
        ) from first

    async def _ask_part(
        self,
        partition: Partition,
        part: list[tuple[int, Ask]],
        verb: Verb[Ask, Answer],
        is_welcome: Callable[[Partition], bool],
    ) -> None:
        try:
            if not is_welcome(partition):
                raise partition.unavailable()
            answers = await self._keeper.ask(
                partition, lambda engine: verb(engine, [ask for _, ask in part])
            )
        except EngineClosed:
            raise
        except EngineError as error:
            self.errors |= dict.fromkeys((at for at, _ in part), error)
        else:
            self.answers |= {at: answer for (at, _), answer in zip(part, answers, strict=True)}


def _is_definite(error: EngineError) -> bool:
    """Nothing was changed: said only where nothing less certain is to be told."""
    return not isinstance(error, OutcomeUnknown)
