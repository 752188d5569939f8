"""Answers of the engine's verbs that could be gigabytes, in portions: a first look says how large
the rest may be. Whoever gets less than was asked for asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Page
from holdfast.core.verdict import Release, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError

_FIRST = 100
_FIRST_WHOLE = 16
_BYTES_MAX = 16 * 1024 * 1024


async def lease(engine: Engine, request: LeaseRequest) -> list[Lease]:
    checks.check_request(request)
    leases = await engine.lease(replace(request, limit=min(request.limit, _FIRST)))
    more = _room([each.job for each in leases], request.limit - len(leases))
    if len(leases) < _FIRST or not more or request.ids:
        return leases
    try:
        leases += await engine.lease(replace(request, limit=more, wait_ms=0))
    except HoldfastError:
        # Those that are in hand already are good.
        return leases
    except asyncio.CancelledError:
        await asyncio.shield(give_back(engine, leases))
        raise
    return leases


async def find(engine: Engine, wanted: JobFilter, *, limit: int, after: int | None) -> Page:
    # Whether it is a cursor of this engine, only that knows.
    checks.check_page(limit)
    page = await engine.find(wanted, limit=min(limit, _FIRST), after=after)
    more = _room(page.jobs, limit - len(page.jobs))
    if page.after is None or not more or limit <= _FIRST:
        return page
    rest = await engine.find(wanted, limit=more, after=page.after)
    return Page(jobs=(*page.jobs, *rest.jobs), after=rest.after)


async def finished(engine: Engine, limit: int) -> list[Job]:
    """From the oldest again: they stay until they are deleted."""
    checks.check_page(limit)
    jobs = await engine.finished(min(limit, _FIRST_WHOLE))
    if len(jobs) < _FIRST_WHOLE or limit <= _FIRST_WHOLE:
        return jobs
    return await engine.finished(len(jobs) + _room(jobs, limit - len(jobs)))


async def give_back(engine: Engine, leases: Sequence[Lease]) -> None:
    """What was leased for somebody who left before it could be handed over; else it lapses."""
    verdict = Release("the caller left", unstarted=True)
    with contextlib.suppress(HoldfastError):
        await engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])


def _room(jobs: Sequence[Job], wanted: int) -> int:
    """How many more there may be, if they are as large as these."""
    size = sum(len(job.payload) + len(job.result or b"") + len(job.output or b"") for job in jobs)
    if size >= _BYTES_MAX or wanted <= 0:
        return 0
    return min(wanted, (_BYTES_MAX - size) * len(jobs) // max(size, 1))
