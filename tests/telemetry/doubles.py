"""An engine whose writes fail when told to, and what the store says of the fleet."""

from collections.abc import Sequence

from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.looking import Looker


class FaultyEngine(MemoryEngine):
    """Of the next writes each is `before`: nothing is done, or `after`: all is done and nobody
    hears of it. An error that is None lets the write pass."""

    def __init__(self, clock: object = None) -> None:
        super().__init__(clock=clock)  # type: ignore[arg-type]
        self.before: list[BaseException | None] = []
        self.after: list[BaseException | None] = []
        self.writes = 0

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self.writes += 1
        error = self.before.pop(0) if self.before else None
        if error is not None:
            raise error
        answers = await super().save(records)
        error = self.after.pop(0) if self.after else None
        if error is not None:
            raise error
        return answers


async def fleet_of(engine: Engine) -> Fleet:
    return await Looker(engine, age_s_max=0).fleet()


async def count_of(engine: Engine, counter: str, queue: str = "default") -> int:
    totals = (await fleet_of(engine)).totals.queues.get(queue)
    return 0 if totals is None else totals.counts.get(counter, 0)
