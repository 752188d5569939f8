"""Many jobs at once: walked from the newest on, counted, and acted on in bounded batches.

The walk has a cursor, so that a job which matches anew, such as one that died again right after
it was retried, is not met twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.cli.running import progress
from holdfast.core import limits
from holdfast.core.model import Job, JobFilter
from holdfast.core.text import counted
from holdfast.core.verdict import Amendment, Redrive
from holdfast.upkeep import RedrivePlan
from holdfast.upkeep.redriving import put_back, taken_of

BATCH = 200
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""


class Count(NamedTuple):
    """With `more`, at least so many."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        least = "at least " if self.more else ""
        return f"{least}{counted(self.number, 'job')}"


async def batches(
    app: Holdfast, wanted: JobFilter, size: int = BATCH
) -> AsyncIterator[tuple[Job, ...]]:
    """Every match, newest first."""
    after: int | None = None
    while True:
        page = await app.find(wanted, limit=size, after=after)
        if page.jobs:
            yield page.jobs
        after = page.after
        if after is None:
            return


async def count(app: Holdfast, wanted: JobFilter) -> Count:
    """How many match, as far as it is worth counting."""
    number = 0
    async for jobs in batches(app, wanted):
        number += len(jobs)
        if number >= limits.SCAN_MAX:
            return Count(number, more=True)
    return Count(number)


async def act_on_all(app: Holdfast, wanted: JobFilter, act: Amendment, what: str) -> int:
    """Act on every match, a batch in one transaction; how many were changed."""
    changed = 0
    tallies = await app.tally(wanted, "state")
    with progress(what, sum(tally.count for tally in tallies)) as advance:
        async for jobs in batches(app, wanted):
            these = replace(wanted, ids=tuple(job.id for job in jobs))
            changed += await app.amend(these, act, limit=len(jobs))
            advance(len(jobs))
    return changed


async def retry_all(app: Holdfast, plan: RedrivePlan, total: int) -> int:
    """Put back every match at once, but for those that were redriven too often."""
    act = Redrive(by=plan.by, delay_ms=plan.delay_ms)
    retried = 0
    with progress("retrying", total) as advance:
        async for jobs in batches(app, plan.wanted):
            fitting = [job for job in jobs if job.redrives < plan.redrives_max]
            retried += await put_back(app.engine, taken_of(fitting), act, plan.patch)
            advance(len(jobs))
    return retried
