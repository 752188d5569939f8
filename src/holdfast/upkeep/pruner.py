"""Finished jobs past their retention → archived if asked → gone; breakers of tasks that are gone.

Idempotent, in bounded batches. A job that was put back to work after it was read is not deleted:
the engine compares its version in the same write.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.breaker import KIND, BreakerRecord, is_forgotten
from holdfast.core.model import Job, JobFilter, Record, State
from holdfast.core.verdict import Delete
from holdfast.engines.base import Engine
from holdfast.events import Pruned, Tell, tell_nobody

_FINISHED = tuple(state for state in State if state.finished)
_BATCH_FIRST = 16
_BYTES_AIM = 16 * 1024 * 1024


class Keeper(Protocol):
    """What an archive must do; see `Archive`."""

    def write(self, jobs: Sequence[Job]) -> None: ...


class Pruner:
    name = "pruner"

    def __init__(
        self,
        engine: Engine,
        *,
        archive: Keeper | None = None,
        tell: Tell = tell_nobody,
        net_ms: int = limits.MINUTE_MS,
        batch: int = 200,
    ) -> None:
        self.net_ms = net_ms
        self._engine = engine
        self._archive = archive
        self._tell = tell
        self._batch_max = batch
        self._batch = min(batch, _BATCH_FIRST)

    async def once(self) -> int | None:
        """One batch; 0 when there may be more."""
        batch = self._batch
        jobs = await self._engine.finished(batch)
        if not jobs:
            await self._forget_breakers()
            return None
        self._batch = self._next_batch(batch, jobs)
        archived = 0
        if self._archive is not None:
            await asyncio.to_thread(self._archive.write, jobs)
            archived = len(jobs)
        deleted = await delete_unchanged(self._engine, jobs)
        self._tell(Pruned(deleted=deleted, archived=archived))
        return 0 if deleted and len(jobs) >= batch else None

    async def _forget_breakers(self) -> None:
        """Some, at each look."""
        found = await self._engine.load(KIND, limit=limits.PAGE_MAX)
        old = [each for each in found if is_forgotten(_breaker(each), each.age_ms)]
        if old:
            await self._engine.save([replace(each, value=None) for each in old])

    def _next_batch(self, batch: int, jobs: Sequence[Job]) -> int:
        """A thousand whole jobs may be gigabytes: as many as will be about so many bytes."""
        size = sum(
            len(part or b"")
            for job in jobs
            for part in (job.payload, job.result, job.output, job.checkpoint)
        )
        if size > _BYTES_AIM:
            return max(1, batch * _BYTES_AIM // size)
        return min(self._batch_max, batch * 2)


def _breaker(record: Record) -> BreakerRecord:
    """What another version wrote goes by its age alone."""
    try:
        return msgspec.json.decode(record.value or b"{}", type=BreakerRecord)
    except msgspec.DecodeError:
        return BreakerRecord()


async def delete_unchanged(engine: Engine, jobs: Sequence[Job]) -> int:
    """Remove finished jobs that are still as they were read; how many."""
    # Jobs that went the same way have the same version, so the groups are few.
    versions: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        versions[job.version].append(job)
    deleted = 0
    for version, group in versions.items():
        unchanged = JobFilter(
            ids=tuple(job.id for job in group),
            states=_FINISHED,
            version=version,
            # An id that was deleted and enqueued again since is another job.
            created_before=max(job.created_at for job in group) + 1,
        )
        deleted += await engine.amend(unchanged, Delete(), limit=len(group))
    return deleted
