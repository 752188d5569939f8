"""Answers that could be gigabytes, in portions: how large the first are says how many more there
may be. Whoever gets less than was asked for asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.core import checks
from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, Page
from holdfast.core.verdict import Release, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.reading import queues_of

_FIRST, _FIRST_MAX = 10, 100
_MORE = 9
"""So many times as many as were seen: ten of them say little about a thousand."""
_BYTES_MAX = 8 * 1024 * 1024
_KEPT_MAX = 1_000


class Sizes:
    """How large the jobs were that were leased last, by the queues that were asked for: so the
    next are likely to be, and small ones need no first look at a few."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, int] = OrderedDict()

    async def first(self, engine: Engine, request: LeaseRequest) -> int:
        """How many to begin with."""
        most = min(request.limit, _FIRST_MAX)
        if most <= _FIRST:
            return most
        largest = self._kept.get(hash(request.queues))
        if largest is not None and not request.ids:
            return min(most, max(_FIRST, _BYTES_MAX // max(largest, 1)))
        queues = await queues_of(engine)
        asked = [queues[name] for name in request.queues if name in queues]
        # What goes by turns, or in batches of a group, is another choice in two calls than in one.
        whole = any(each.fairness != "off" or each.group_batch > 1 for each in asked)
        return most if whole else _FIRST

    def keep(self, request: LeaseRequest, sizes: Sequence[int]) -> None:
        """A large one is remembered for a while, where there are some of both."""
        if request.ids or not sizes:
            return
        key = hash(request.queues)
        before = self._kept.pop(key, 0)
        self._kept[key] = max(*sizes, before // 2)
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)


def sizes_of(app: Holdfast) -> Sizes:
    return _sizes.setdefault(app, Sizes())


_sizes: WeakKeyDictionary[Holdfast, Sizes] = WeakKeyDictionary()


async def lease(engine: Engine, request: LeaseRequest, known: Sizes) -> list[Lease]:
    """Those that are there at once besides the first, as far as they can be told."""
    checks.check_request(request)
    asked = await known.first(engine, request)
    leases = last = await engine.lease(replace(request, limit=asked))
    sizes: list[int] = []
    while last:
        sizes += [_size(each.job) for each in last]
        asked = _room(sizes, request.limit - len(leases)) if len(last) == asked else 0
        if not asked:
            break
        try:
            last = await engine.lease(replace(request, limit=asked, wait_ms=0))
        except HoldfastError:
            # Those that are in hand already are good.
            break
        except asyncio.CancelledError:
            await asyncio.shield(give_back(engine, leases))
            raise
        leases = leases + last
    known.keep(request, sizes)
    return leases


async def find(engine: Engine, wanted: JobFilter, *, limit: int, after: int | None) -> Page:
    # Whether it is a cursor of this engine, only that knows.
    checks.check_page(limit)
    page = await engine.find(wanted, limit=min(limit, _FIRST), after=after)
    jobs, sizes = list(page.jobs), [_size(job) for job in page.jobs]
    while page.after is not None and (more := _room(sizes, limit - len(jobs))):
        page = await engine.find(wanted, limit=more, after=page.after)
        jobs += page.jobs
        sizes += [_size(job) for job in page.jobs]
    return Page(jobs=tuple(jobs), after=page.after)


async def finished(engine: Engine, limit: int) -> list[Job]:
    """From the oldest again: they stay until they are deleted."""
    checks.check_page(limit)
    asked = min(limit, _FIRST)
    jobs = await engine.finished(asked)
    while len(jobs) == asked and (more := _room([*map(_size, jobs)], limit - len(jobs))):
        asked = len(jobs) + more
        jobs = await engine.finished(asked)
    return jobs


async def give_back(engine: Engine, leases: Sequence[Lease]) -> None:
    """What was leased for somebody who left before it could be handed over; else it lapses."""
    verdict = Release("the caller left", unstarted=True)
    with contextlib.suppress(HoldfastError):
        await engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])


def _room(sizes: Sequence[int], wanted: int) -> int:
    """How many more there may be, if they are as large as these."""
    if not sizes:
        # All that were found are somebody else's.
        return min(wanted, _FIRST)
    total = sum(sizes)
    if total >= _BYTES_MAX or wanted <= 0:
        return 0
    return min(wanted, (_BYTES_MAX - total) * len(sizes) // max(total, 1), _MORE * len(sizes))


_ID_BYTES = 40


def _size(job: Job) -> int:
    """About; texts are told by their length."""
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
