"""Leases from several partitions: the fullest first, and all of them while waiting.

Every few calls another partition comes first, so that partitions with few jobs are served too.
If two partitions deliver at once and exceed the limit, the surplus is released.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Mapping
from itertools import chain, groupby

from msgspec.structs import replace

from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Release, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.partitioned import merge
from holdfast.engines.partitioned.membership import Membership
from holdfast.engines.partitioned.partition import Partition
from holdfast.engines.partitioned.placement import inner, outer, place_of
from holdfast.errors import EngineClosed, EngineError

_TURN = 4
"""Every fourth call begins with the next partition in turn, not with the fullest."""

LeaseTask = asyncio.Task[list[Lease]]


class Leaser:
    """Takes, waits for and releases leases in the partitions."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._calls = 0
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    async def take(self, request: LeaseRequest) -> list[Lease]:
        """Due jobs, without waiting. Partitions that fail are skipped; raises if all fail."""
        usable = self._in_turn(request)
        taken, failures = await self._one_by_one((each, request) for each in usable)
        if len(failures) == len(usable):
            raise failures[-1]
        return merge.leases(taken, request)

    async def take_alone(self, request: LeaseRequest) -> list[Lease]:
        """From a single partition, which does its own waiting."""
        return await self._ask(self._members.some()[0], request)

    async def take_ids(self, request: LeaseRequest, places: Mapping[str, int]) -> list[Lease]:
        """The jobs with these ids, in the order of the request."""
        known = [id_ for id_ in dict.fromkeys(request.ids) if id_ in places]
        taken, failures = await self._one_by_one(
            (self._members.all[place], replace(request, ids=tuple(ids)))
            for place, ids in groupby(known, key=lambda id_: places[id_])
        )
        leases = list(chain.from_iterable(taken))
        if failures and not leases:
            raise failures[-1]
        return leases

    async def top_up(self, leases: list[Lease], more: Awaitable[list[Lease]]) -> list[Lease]:
        """Add the leases of `more`; if that fails, return the first ones alone."""
        try:
            return [*leases, *await more]
        except EngineError:
            return leases
        except BaseException:
            self._give_back(leases)
            raise

    async def wait(self, request: LeaseRequest, wait_ms: int) -> list[Lease]:
        """The first job that becomes due in any partition; [] at the timeout, or as soon as a
        partition is shut out or comes back."""
        one = replace(request, limit=1, wait_ms=wait_ms)
        waiting = {
            asyncio.create_task(self._ask(partition, one)) for partition in self._members.some()
        }
        change = asyncio.create_task(self._members.changed.wait())
        got: list[Lease] = []
        try:
            while waiting and not got and not change.done():
                every: set[asyncio.Task[object]] = {*waiting, change}
                await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
                got += _results({task for task in waiting if task.done()})
                waiting = {task for task in waiting if not task.done()}
            got += await _stop(waiting)
        except asyncio.CancelledError:
            self._give_back([*got, *await _stop(waiting)])
            raise
        finally:
            change.cancel()
        self._give_back(got[request.limit :])
        return got[: request.limit]

    def _in_turn(self, request: LeaseRequest) -> list[Partition]:
        usable = self._members.some()
        usable.sort(key=lambda each: -each.ready(request.queues))
        self._calls += 1
        turn, rest = divmod(self._calls, _TURN)
        if rest == 0:
            place = turn % len(self._members.all)
            usable.sort(key=lambda each: each.place != place)
        return usable

    async def _one_by_one(
        self, asks: Iterable[tuple[Partition, LeaseRequest]]
    ) -> tuple[list[list[Lease]], list[EngineError]]:
        """Up to the limit in total. If the caller is cancelled, its leases are released."""
        taken: list[list[Lease]] = []
        failures: list[EngineError] = []
        try:
            for partition, request in asks:
                left = request.limit - sum(map(len, taken))
                if left == 0:
                    break
                try:
                    now = replace(request, wait_ms=0, limit=left)
                    taken.append(await self._ask(partition, now))
                except EngineClosed:
                    raise
                except EngineError as error:
                    failures.append(error)
        except BaseException:
            self._give_back(chain.from_iterable(taken))
            raise
        return taken, failures

    async def _ask(self, partition: Partition, request: LeaseRequest) -> list[Lease]:
        leases = await self._members.ask(partition, lambda engine: engine.lease(request))
        for lease in leases if not request.dead else ():
            partition.changed(lease.job.queue, -1)
        return [outer(lease, partition.place) for lease in leases]

    def _give_back(self, leases: Iterable[Lease]) -> None:
        """Release leases that no caller takes; if that fails, they expire."""
        for lease in leases:
            engine = self._members.all[place_of(lease.token)].engine
            task = asyncio.create_task(_release(engine, inner(lease)))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)


async def _release(engine: Engine, lease: Lease) -> None:
    with contextlib.suppress(EngineError):
        await engine.settle(
            [Settlement(lease=lease, verdict=Release("another partition delivered first"))]
        )


async def _stop(waiting: set[LeaseTask]) -> list[Lease]:
    """Cancel the waits; returns leases that were granted at that moment."""
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
    return _results(waiting)


def _results(done: set[LeaseTask]) -> list[Lease]:
    """The leases of finished tasks. A partition that failed is shut out already."""
    leases: list[Lease] = []
    for task in done:
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            leases += task.result()
        elif not isinstance(error, EngineError):
            raise error
    return leases
