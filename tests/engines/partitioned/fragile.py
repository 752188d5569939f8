"""A partition that fails on demand, and a back-off controlled by the test."""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.core.partitions import home_of
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.partitioned.placement import tagged_home
from holdfast.errors import EngineUnavailable, HoldfastError, StorageFull
from holdfast.testing.clock import ManualClock

GONE = EngineUnavailable("nobody answers")


class Fragile:
    """A memory engine; every call but `close` fails with `fault`, and hangs until it `moves`.
    Its jobs are there again when it is opened anew."""

    def __init__(self, clock: ManualClock) -> None:
        self.engine = MemoryEngine(clock=clock)
        self.fault: HoldfastError | None = None
        self.moves = asyncio.Event()
        self.moves.set()
        self.calls: list[str] = []
        self.waits = asyncio.Event()
        """Somebody waits for a job here."""

    def __getattr__(self, name: str) -> Any:
        verb: Any = getattr(self.engine, name)
        if name == "traits":
            return verb

        async def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            if name == "lease" and given[0].wait_ms:
                self.waits.set()
            if name != "close":
                await self.moves.wait()
            if self.fault is not None and name != "close":
                raise self.fault
            return await verb(*given, **named)

        return call


class Pauses:
    """Each pause of the back-off lasts until the test ends it."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self._begun = asyncio.Event()
        self._end: asyncio.Future[None] | None = None

    async def __call__(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        self._end = asyncio.get_running_loop().create_future()
        self._begun.set()
        try:
            await self._end
        finally:
            self._begun.clear()

    async def end(self) -> None:
        """When the next pause has begun, end it."""
        await self._begun.wait()
        self._begun.clear()
        assert self._end is not None
        self._end.set_result(None)

    async def begun(self) -> None:
        await self._begun.wait()


class Trio:
    """An engine of three that can fail: `fragile` are they, by place."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fragile = [Fragile(self.clock) for _ in range(3)]
        self.pauses = Pauses()
        named: list[tuple[str, Any]] = [(f"p{n}", each) for n, each in enumerate(self.fragile, 1)]
        self.engine = PartitionedEngine(named, sleep=self.pauses)

    def names(self, place: int, count: int = 3, prefix: str = "n") -> list[str]:
        return names_at(place, count, home_of, prefix)

    def tags(self, place: int, count: int = 3, prefix: str = "t") -> list[str]:
        """Keys and groups."""
        return names_at(place, count, tagged_home, prefix)

    async def waiting(self) -> None:
        """When somebody waits for a job in all of them."""
        for each in self.fragile:
            await each.waits.wait()

    async def back(self) -> None:
        """When a partition that was out is in use again."""
        changed = self.engine._members.changed
        await self.pauses.end()
        await changed.wait()


async def where(trio: Trio, id: str) -> list[int]:
    """The places that hold this job."""
    return [
        place for place, each in enumerate(trio.fragile) if await each.engine.get(id) is not None
    ]


async def shut_out(trio: Trio, place: int, fault: EngineUnavailable | StorageFull = GONE) -> None:
    """That partition fails from now on, and the engine has noticed."""
    trio.fragile[place].fault = fault
    await trio.engine.queues()


def names_at(
    place: int, count: int, home: Callable[[str, int], int], prefix: str, partitions: int = 3
) -> list[str]:
    """Names whose home is that partition."""
    every = (f"{prefix}{n}" for n in range(10_000))
    found = [name for name in every if home(name, partitions) == place]
    return found[:count]
