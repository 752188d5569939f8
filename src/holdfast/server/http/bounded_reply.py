"""Reads jobs in portions, so that one reply never holds more than a few megabytes.

The size of the first jobs decides how many more are read. A client that gets fewer than it asked
for asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core import checks
from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Page
from holdfast.core.verdict import Release, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.ops.queues import queue_settings

_FIRST, _FIRST_MAX = 10, 100
_GROWTH = 9
"""Read at most this many times as many as before: ten jobs are a poor sample of a thousand."""
_BYTES_MAX = 8 * 1024 * 1024
_QUEUES_MAX = 1_000
_ID_BYTES = 40


class LeaseSizes:
    """The size of the largest job leased last, by the queues of the request. The next ones are
    likely as large, so requests for small jobs need no small first portion."""

    def __init__(self) -> None:
        self._largest: OrderedDict[int, int] = OrderedDict()

    async def first_portion(self, engine: Engine, request: LeaseRequest) -> int:
        """The number of jobs to lease at first."""
        most = min(request.limit, _FIRST_MAX)
        if most <= _FIRST:
            return most
        largest = self._largest.get(hash(request.queues))
        if largest is not None and not request.ids:
            return min(most, max(_FIRST, _BYTES_MAX // max(largest, 1)))
        queues = await queue_settings(engine, request.queues)
        # With fairness or group batches, two calls choose differently from one.
        undivided = any(each.fairness != "off" or each.group_batch > 1 for each in queues.values())
        return most if undivided else _FIRST

    def add(self, request: LeaseRequest, sizes: Sequence[int]) -> None:
        """Remember the sizes of leased jobs. A large size decays over several requests."""
        if request.ids or not sizes:
            return
        key = hash(request.queues)
        before = self._largest.pop(key, 0)
        self._largest[key] = max(*sizes, before // 2)
        if len(self._largest) > _QUEUES_MAX:
            self._largest.popitem(last=False)


def lease_sizes(app: Holdfast) -> LeaseSizes:
    """The sizes known for an application."""
    return _sizes.setdefault(app, LeaseSizes())


_sizes: WeakKeyDictionary[Holdfast, LeaseSizes] = WeakKeyDictionary()


async def lease(engine: Engine, request: LeaseRequest, known: LeaseSizes) -> list[Lease]:
    """Lease a first portion, waiting for it, and then more while the reply has room."""
    checks.check_request(request)
    portion = await known.first_portion(engine, request)
    leases = last = await engine.lease(replace(request, limit=portion))
    sizes: list[int] = []
    while last:
        sizes += [_size(each.job) for each in last]
        portion = _room(sizes, request.limit - len(leases)) if len(last) == portion else 0
        if not portion:
            break
        try:
            last = await engine.lease(replace(request, limit=portion, wait_ms=0))
        except HoldfastError:
            # The leases so far are valid: deliver them.
            break
        except asyncio.CancelledError:
            await asyncio.shield(release_undelivered(engine, leases))
            raise
        leases = leases + last
    known.add(request, sizes)
    return leases


async def find(engine: Engine, wanted: JobFilter, *, limit: int, after: int | None) -> Page:
    """A page of jobs, with fewer than `limit` if they are large."""
    # Only the engine can check whether `after` is one of its cursors.
    checks.check_page(limit)
    page = await engine.find(wanted, limit=min(limit, _FIRST), after=after)
    jobs, sizes = list(page.jobs), [_size(job) for job in page.jobs]
    while page.after is not None and (more := _room(sizes, limit - len(jobs))):
        page = await engine.find(wanted, limit=more, after=page.after)
        jobs += page.jobs
        sizes += [_size(job) for job in page.jobs]
    return Page(jobs=tuple(jobs), after=page.after)


async def finished(engine: Engine, limit: int) -> list[Job]:
    """Finished jobs past their retention, with fewer than `limit` if they are large. Each portion
    starts from the oldest again, since these jobs stay until they are deleted."""
    checks.check_page(limit)
    portion = min(limit, _FIRST)
    jobs = await engine.finished(portion)
    while len(jobs) == portion and (more := _room([*map(_size, jobs)], limit - len(jobs))):
        portion = len(jobs) + more
        jobs = await engine.finished(portion)
    return jobs


async def release_undelivered(engine: Engine, leases: Sequence[Lease]) -> None:
    """Release leases whose client disconnected before it got them. If that fails, they expire."""
    verdict = Release("the client disconnected", unstarted=True)
    with contextlib.suppress(HoldfastError):
        await engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])


def _room(sizes: Sequence[int], wanted: int) -> int:
    """The number of further jobs of this size that fit into the reply."""
    if not sizes:
        # All jobs found so far are hidden from the caller.
        return min(wanted, _FIRST)
    total = sum(sizes)
    if total >= _BYTES_MAX or wanted <= 0:
        return 0
    return min(wanted, (_BYTES_MAX - total) * len(sizes) // max(total, 1), _GROWTH * len(sizes))


def _size(job: Job) -> int:
    """The approximate size in bytes; texts count by their length in characters."""
    size = len(job.payload)
    if job.checkpoint:
        size += len(job.checkpoint)
    if job.result:
        size += len(job.result)
    if job.output:
        size += len(job.output)
    if job.after:
        size += _ID_BYTES * len(job.after)
    if job.labels or job.headers:
        pairs = (*job.labels.items(), *job.headers.items())
        size += sum([len(name) + len(value) for name, value in pairs])
    return size
