"""The upkeep of one partition, which never waits for another one.

Each partition has its own reaper and pruner on an engine of this kind. They read and write only
in that partition; queue settings are the same in all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from holdfast.core.model import Job, JobFilter, QueueView, Record
from holdfast.core.verdict import Amendment
from holdfast.engines.base import Engine, Expired, Overdue
from holdfast.engines.partitioned import merge
from holdfast.engines.partitioned.membership import Membership
from holdfast.engines.partitioned.partition import Partition
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import EngineUnavailable

T = TypeVar("T")

OTHERS_S = 2.0
"""The longest wait for records, which may be in any partition."""


class PartitionLifecycle(Wrapper):
    """The partitioned engine as the upkeep of one partition sees it: jobs, queues and counters are
    those of the partition; records are those of all. While the partition is shut out, nothing is
    due there.
    """

    def __init__(self, whole: Engine, members: Membership, partition: Partition) -> None:
        super().__init__(whole)
        self._members = members
        self._partition = partition

    async def overdue(self, limit: int) -> Overdue:
        return merge.overdue(await self._ask(lambda engine: engine.overdue(limit)), limit)

    async def expired(self, limit: int) -> Expired:
        return merge.expired(await self._ask(lambda engine: engine.expired(limit)), limit)

    async def finished(self, limit: int) -> list[Job]:
        found = await self._ask(lambda engine: engine.finished(limit))
        return list(merge.jobs_by(found, lambda job: job.finished_at or 0, limit))

    async def recount(self, limit: int) -> int:
        return sum((await self._ask(lambda engine: engine.recount(limit))).values())

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        found = await self._ask(lambda engine: engine.queues(names=names, counts=counts))
        return merge.queues(found, whole=True)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        found = await self._ask(lambda engine: engine.amend(wanted, amendment, limit=limit))
        return sum(found.values())

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        """EngineUnavailable if a partition does not answer soon: with a part of the records, a job
        would be rerouted or given up wrongly."""
        try:
            async with asyncio.timeout(OTHERS_S):
                return await super().load(kind, after=after, limit=limit)
        except TimeoutError:
            raise EngineUnavailable(
                f"not all partitions answered within {OTHERS_S:.0f} s: try again later"
            ) from None

    async def _ask(self, call: Callable[[Engine], Awaitable[T]]) -> dict[int, T]:
        """The partition's answer by its place; none while it is shut out."""
        if not self._partition.is_in:
            return {}
        return {self._partition.place: await self._members.ask(self._partition, call)}
