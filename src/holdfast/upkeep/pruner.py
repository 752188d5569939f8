"""The loop that deletes finished jobs past their retention, optionally after archiving them, and
removes breakers of tasks that no longer exist.

Idempotent, in bounded batches. A job that was retried after it was read is not deleted: the engine
compares its version in the same write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from holdfast.core import bounds
from holdfast.core.breaker import KIND, is_forgotten
from holdfast.core.model import Job, Record
from holdfast.engines.base import Engine
from holdfast.events import Pruned, Tell, ignore_event
from holdfast.ops.breakers import BREAKERS
from holdfast.ops.jobs.bulk import delete_unchanged
from holdfast.ops.records import remove_records

_BATCH_FIRST = 16
_BYTES_AIM = 16 * 1024 * 1024


class ArchiveWriter(Protocol):
    """The archive that jobs are written to before they are deleted; see `Archive`."""

    def write(self, jobs: Sequence[Job]) -> None: ...


class Pruner:
    """Deletes one batch of jobs in each step."""

    name = "pruner"

    def __init__(
        self,
        engine: Engine,
        *,
        archive: ArchiveWriter | None = None,
        tell: Tell = ignore_event,
        sleep_ms_max: int = bounds.MINUTE_MS,
        batch: int = 200,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
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
        """Remove breakers that were not used for long, from one page in each step."""
        found = await self._engine.load(KIND, limit=bounds.PAGE_MAX)
        await remove_records(self._engine, [record for record in found if _is_old(record)])

    def _next_batch(self, batch: int, jobs: Sequence[Job]) -> int:
        """About 16 MiB of jobs: a thousand with their results may be gigabytes."""
        size = sum(
            len(part or b"")
            for job in jobs
            for part in (job.payload, job.result, job.output, job.checkpoint)
        )
        if size > _BYTES_AIM:
            return max(1, batch * _BYTES_AIM // size)
        return min(self._batch_max, batch * 2)


def _is_old(record: Record) -> bool:
    """A breaker that cannot be read counts as closed; only its age matters."""
    breaker = BREAKERS.decode(record)
    return breaker is not None and is_forgotten(breaker, record.age_ms)
