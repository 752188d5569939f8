"""Many jobs at once: walked from the newest on, counted, and acted on in bounded batches.

The walk has a cursor, so that a job which matches anew, such as one that died again right after
it was retried, is not met twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from holdfast.core import limits
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.text import counted
from holdfast.core.verdict import Delete, Redrive
from holdfast.engines.base import Engine
from holdfast.engines.parts import told_in_part
from holdfast.errors import StorageFull, UsageError
from holdfast.options import checked_filter
from holdfast.upkeep import Archive, RedrivePlan
from holdfast.upkeep.pruner import delete_unchanged
from holdfast.upkeep.redriving import put_back, taken_of

BATCH = 200
_BATCH_FIRST = 16
_BYTES_AIM = 16 * 1024 * 1024
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""

_ARCHIVED = 100
"""Those that are kept are read whole."""

Advance = Callable[[int], None]
"""Is told how many more were looked at."""


def tell_nobody(_count: int) -> None:
    pass


class Count(NamedTuple):
    """With `more`, at least so many."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{counted(self.number, 'job')}"


class Archived(NamedTuple):
    """How many finished jobs were deleted, and how many are kept in a file."""

    deleted: int = 0
    archived: int = 0


async def batches(
    engine: Engine, wanted: JobFilter, size: int = BATCH, *, most: int | None = None
) -> AsyncIterator[tuple[Job, ...]]:
    """Every match, newest first, or `most` of them; fewer at a time where they are large."""
    wanted = checked_filter(wanted)
    after: int | None = None
    limit = min(size, _BATCH_FIRST)
    left = most
    while left is None or left > 0:
        limit = limit if left is None else min(limit, left)
        page = await engine.find(wanted, limit=limit, after=after)
        if page.jobs:
            yield page.jobs
        after = page.after
        if after is None:
            return
        left = None if left is None else left - len(page.jobs)
        bytes_ = sum(len(job.payload) for job in page.jobs)
        limit = max(1, limit * _BYTES_AIM // bytes_) if bytes_ > _BYTES_AIM else limit * 2
        limit = min(limit, size)


async def count(engine: Engine, wanted: JobFilter, *, most: int | None = None) -> Count:
    """How many match, as far as it is worth counting, or up to `most`."""
    tallies = await engine.tally(checked_filter(wanted), "state", limit=limits.PAGE_MAX)
    number = sum(tally.count for tally in tallies)
    if most is not None and number > most:
        return Count(most, more=True)
    return Count(number, more=number >= limits.SCAN_MAX)


async def delete_all(
    engine: Engine,
    wanted: JobFilter,
    *,
    force: bool = False,
    most: int | None = None,
    advance: Advance = tell_nobody,
) -> int:
    """Delete every match, or `most` of them, oldest first and a batch in one transaction; how many.
    What is deleted matches no more, so that no job has to be read for it."""
    wanted = checked_filter(wanted)
    deleted = 0
    with told_in_part(lambda: deleted):
        while most is None or deleted < most:
            limit = BATCH if most is None else min(BATCH, most - deleted)
            changed = await engine.amend(wanted, Delete(force=force), limit=limit)
            if not changed:
                break
            deleted += changed
            advance(changed)
    return deleted


async def retry_all(
    engine: Engine,
    plan: RedrivePlan,
    *,
    most: int | None = None,
    advance: Advance = tell_nobody,
) -> int:
    """Put back every match at once, or `most` of them, but for those that were redriven too
    often: past these it looks on."""
    act = Redrive(by=plan.by, delay_ms=plan.delay_ms)
    left = limits.SCAN_MAX if most is None else most
    retried = 0
    looks_on = None if most is None else limits.SCAN_MAX
    with told_in_part(lambda: retried):
        async for jobs in batches(engine, plan.wanted, most=looks_on):
            fitting = [job for job in jobs if job.redrives < plan.redrives_max]
            if most is not None:
                fitting = fitting[:left]
                left -= len(fitting)
            taken = taken_of(fitting)
            retried += await put_back(engine, taken, act, plan.patch, among=plan.wanted)
            advance(len(jobs))
            if left <= 0:
                break
    return retried


def old_jobs(days: float, states: tuple[State, ...] | None, queue: str | None) -> JobFilter:
    """Finished jobs, in these states or in any, that ended at least so long ago."""
    if states is not None and not all(state.finished for state in states):
        raise UsageError("only finished jobs are cleaned up: done, dead or cancelled")
    if not 0 <= days <= limits.RETENTION_MS_MAX / limits.DAY_MS:
        raise UsageError(f"days {days:g} is not 0 to {limits.RETENTION_MS_MAX // limits.DAY_MS}")
    finished = tuple(state for state in State if state.finished)
    return JobFilter(
        queue=queue,
        states=states or finished,
        finished_before_ms=round(days * limits.DAY_MS),
    )


async def archive_all(
    engine: Engine, wanted: JobFilter, archive: Archive, *, advance: Advance = tell_nobody
) -> Archived:
    """Keep every finished match in a file, then delete it, only as it was archived: one that was
    retried meanwhile stays."""
    deleted = archived = 0
    async for page in batches(engine, wanted, _ARCHIVED):
        whole = await asyncio.gather(*(engine.get(job.id) for job in page))
        jobs = [job for job in whole if job is not None and job.state.finished]
        try:
            await asyncio.to_thread(archive.write, jobs)
        except OSError as error:
            raise StorageFull(
                f"{archive.path} cannot be written ({error.strerror}): "
                f"{counted(deleted, 'job')} deleted before, and no other"
            ) from error
        archived += len(jobs)
        deleted += await delete_unchanged(engine, jobs)
        advance(len(jobs))
    return Archived(deleted, archived)
