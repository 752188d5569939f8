"""An engine with planned failures, and a listener that keeps events."""

from collections.abc import Sequence

from holdfast.core.model import NewJob, Receipt, Record
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.base import Overdue, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.events import ProcessEvent


class RecordingListener:
    def __init__(self) -> None:
        self.events: list[ProcessEvent] = []

    def __call__(self, event: ProcessEvent) -> None:
        self.events.append(event)


class FaultyEngine(MemoryEngine):
    """Errors for the next calls of a verb, raised instead of it (`before`) or after it."""

    def __init__(self, clock: object = None) -> None:
        super().__init__(clock=clock)  # type: ignore[arg-type]
        self.before: dict[str, list[Exception]] = {}
        self.after: dict[str, list[Exception]] = {}

    async def overdue(self, limit: int) -> Overdue:
        self._raise(self.before, "overdue")
        return await super().overdue(limit)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._raise(self.before, "settle")
        outcomes = await super().settle(settlements)
        self._raise(self.after, "settle")
        return outcomes

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._raise(self.before, "enqueue")
        receipts = await super().enqueue(jobs)
        self._raise(self.after, "enqueue")
        return receipts

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._raise(self.before, "save")
        return await super().save(records)

    @staticmethod
    def _raise(errors: dict[str, list[Exception]], verb: str) -> None:
        if errors.get(verb):
            raise errors[verb].pop(0)
