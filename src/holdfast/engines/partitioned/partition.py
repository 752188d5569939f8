"""One partition: its engine, its health, and how full it was when it was last looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from holdfast.core.model import QueueView, Record
from holdfast.engines.base import Engine
from holdfast.engines.partitioned.health import Health
from holdfast.engines.partitioned.map import KIND, Identity, identity
from holdfast.errors import EngineUnavailable

_PROBE = "probe"


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as it may be shown. `out_ms` is None while it is in use."""

    name: str
    waiting: int
    out_ms: int | None = None
    code: str = ""
    text: str = ""


class Partition:
    """`place` is its number, from 0, and `name` what people call it."""

    def __init__(self, place: int, name: str, engine: Engine) -> None:
        self.place = place
        self.name = name
        self.engine = engine
        self.health = Health()
        self._ready: dict[str, int] = {}
        self.waiting = 0
        """Jobs that are not yet leased, about."""

    @property
    def is_in(self) -> bool:
        """In use: not shut out."""
        return not self.health.is_out

    async def open(self) -> Identity:
        """Idempotent, like the engine's own."""
        await self.engine.open()
        return identity(await self.engine.load(KIND, limit=100))

    async def reopen(self) -> Identity:
        """A file that was there before is not made anew: whoever puts a backup in its place would
        meet one that is just being written."""
        look = getattr(self.engine, "missing", None)
        gone = "" if look is None else await asyncio.to_thread(look)
        if gone:
            raise EngineUnavailable(
                f"{gone}, but it was partition {self.place + 1}: restore it from a backup"
            )
        # It may go just now, so that this makes none either.
        await getattr(self.engine, "reopen", self.engine.open)()
        return await self.open()

    async def close(self) -> None:
        await self.engine.close()

    async def read_lifecycle(self) -> None:
        """What upkeep reads, and how full it is: a store that answers this can be worked with."""
        await self.engine.overdue(1)
        await self.engine.expired(1)
        await self.count()

    async def write(self) -> None:
        """A store that can be read may still be one that nothing can be written to."""
        kept = await self.engine.load(KIND, after=_PROBE[:-1], limit=1)
        version = kept[0].version if kept and kept[0].key == _PROBE else 0
        await self.engine.save([Record(kind=KIND, key=_PROBE, value=b"", version=version)])

    async def count(self) -> None:
        self.counted(await self.engine.queues())

    def counted(self, views: Iterable[QueueView]) -> None:
        each = list(views)
        self._ready = {view.queue.name: view.ready for view in each}
        self.waiting = sum(view.ready + view.delayed + view.blocked for view in each)

    def ready(self, queues: Iterable[str]) -> int:
        return sum(self._ready.get(queue, 0) for queue in queues)

    def changed(self, queue: str, count: int) -> None:
        """So many more wait in the queue, or fewer; what is not known is counted soon."""
        self._ready[queue] = max(0, self._ready.get(queue, 0) + count)
        self.waiting = max(0, self.waiting + count)

    def view(self, now: int) -> PartitionView:
        health = self.health
        return PartitionView(
            name=self.name,
            waiting=self.waiting,
            out_ms=None if health.out_at is None else now - health.out_at,
            code="" if health.error is None else health.error.code,
            text="" if health.error is None else str(health.error),
        )

    def unavailable(self) -> EngineUnavailable:
        return EngineUnavailable(
            f"partition {self.name} is shut out ({self.health.error}): try again later"
        )
