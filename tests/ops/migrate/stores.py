"""A source and a target store in memory, and a move between them."""

from collections.abc import Callable
from typing import Any

from holdfast.core.model import Queue
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.migrate.migration import Migration, MigrationResult
from holdfast.ops.migrate.progress import Side
from holdfast.testing.clock import ManualClock
from tests.ops.migrate.sample_jobs import all_of, canonical, keys_of, mover_of


class Stores:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.old = MemoryEngine(clock=self.clock)
        self.new = MemoryEngine(clock=self.clock)

    def migration(self, wrap: Callable[[Any], Any] = lambda each: each) -> Migration:
        old, new = (
            Side(wrap(engine), wrap(mover_of(engine)), place)
            for engine, place in ((self.old, "old"), (self.new, "new"))
        )
        return Migration(old, new, self.clock.wall_ms)

    async def move(self, wrap: Callable[[Any], Any] = lambda each: each) -> MigrationResult:
        return await (await self.copied(wrap)).compare(nothing)

    async def copied(self, wrap: Callable[[Any], Any] = lambda each: each) -> Migration:
        """A move up to the copy, not compared yet."""
        migration = self.migration(wrap)
        await migration.begin()
        assert await migration.drain(wait_ms=0, tell=nothing) == []
        await migration.copy(nothing)
        return migration


def nothing(_count: int) -> None:
    pass


async def dump(engine: Engine) -> object:
    return canonical(await all_of(mover_of(engine))), await keys_of(engine)


async def queues(engine: Engine) -> dict[str, Queue]:
    return {view.queue.name: view.queue for view in await engine.queues(counts=False)}
