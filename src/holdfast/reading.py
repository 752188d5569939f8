"""Jobs read from an engine to be told: one with its queue, or many as whole views."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.model import Job, JobFilter, Queue
from holdfast.engines.base import Engine
from holdfast.views.jobs import JobView, job_view
from holdfast.views.values import value_of

_PAGE = 100
_PAGES_MAX = 20
_AT_ONCE = 50


async def queues_of(engine: Engine) -> dict[str, Queue]:
    """The settings of every queue, by name."""
    return {view.queue.name: view.queue for view in await engine.queues(counts=False)}


async def views_of(
    engine: Engine, jobs: Iterable[Job], value: Callable[[bytes, str], Any] = value_of
) -> list[JobView]:
    """Whole jobs: a list alone knows nothing of output and failures."""
    ids = [job.id for job in jobs]
    queues = await queues_of(engine)
    views = []
    for start in range(0, len(ids), _AT_ONCE):
        whole = await asyncio.gather(*(engine.get(each) for each in ids[start : start + _AT_ONCE]))
        # One that is gone since was deleted just now.
        views += [
            job_view(job, queues.get(job.queue), value=value) for job in whole if job is not None
        ]
    return views


async def some(
    engine: Engine, wanted: JobFilter, limit: int, after: int | None = None
) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs, and where to go on. The walk is bounded: what fits may be far away."""
    jobs: list[Job] = []
    for _ in range(_PAGES_MAX + limit // _PAGE):
        page = await engine.find(wanted, limit=min(limit - len(jobs), _PAGE), after=after)
        jobs += page.jobs
        after = page.after
        if after is None or len(jobs) >= limit:
            break
    return jobs, after
