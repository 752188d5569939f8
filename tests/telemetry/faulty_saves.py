"""An engine with planned failures of writes, and the fleet's totals in a store."""

from collections.abc import Sequence

from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.telemetry.accounts import FleetReader, FleetTotals


class FaultyEngine(MemoryEngine):
    """Planned failures of the next writes: `before` raises instead of the write, `after` once it is
    done. None lets a write pass."""

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


async def fleet_of(engine: Engine) -> FleetTotals:
    return await FleetReader(engine, age_s_max=0).fleet()


async def count_of(engine: Engine, counter: str, queue: str = "default") -> int:
    totals = (await fleet_of(engine)).totals.queues.get(queue)
    return 0 if totals is None else totals.counts.get(counter, 0)
