"""Leasing from several partitions: the fullest first, and all of them while waiting.

Every few calls another partition is asked first, so that a short line beside a long one is not
forgotten. What came from two partitions at once and is more than was asked for is given back.
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
from holdfast.engines.partitioned import merging
from holdfast.engines.partitioned.homes import inner, outer, place_of
from holdfast.engines.partitioned.keeper import Keeper
from holdfast.engines.partitioned.partition import Partition
from holdfast.errors import EngineClosed, EngineError

_TURN = 4
"""Every so many calls the first partition is not the fullest, but the next in turn."""

Asked = asyncio.Task[list[Lease]]


class Leaser:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._calls = 0
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    async def take(self, request: LeaseRequest) -> list[Lease]:
        """What is due now; what fails is passed over, unless nothing else is left."""
        usable = self._in_turn(request)
        taken, failures = await self._one_by_one((each, request) for each in usable)
        if len(failures) == len(usable):
            raise failures[-1]
        return merging.leases(taken, request)

    async def take_alone(self, request: LeaseRequest) -> list[Lease]:
        """A single partition waits by itself, and fails for all."""
        return await self._ask(self._keeper.some()[0], request)

    async def take_ids(self, request: LeaseRequest, places: Mapping[str, int]) -> list[Lease]:
        """Those jobs, in the order asked, each where it is."""
        known = [id_ for id_ in dict.fromkeys(request.ids) if id_ in places]
        taken, failures = await self._one_by_one(
            (self._keeper.all[place], replace(request, ids=tuple(ids)))
            for place, ids in groupby(known, key=lambda id_: places[id_])
        )
        leases = list(chain.from_iterable(taken))
        if failures and not leases:
            raise failures[-1]
        return leases

    async def top_up(self, leases: list[Lease], more: Awaitable[list[Lease]]) -> list[Lease]:
        """What others have beside these; whatever becomes of that, these are somebody's."""
        try:
            return [*leases, *await more]
        except EngineError:
            return leases
        except BaseException:
            self._give_back(leases)
            raise

    async def wait(self, request: LeaseRequest, wait_ms: int) -> list[Lease]:
        """The first that comes in any partition; [] when the time is over, or at once when a
        partition came in or went out."""
        one = replace(request, limit=1, wait_ms=wait_ms)
        waiting = {
            asyncio.create_task(self._ask(partition, one)) for partition in self._keeper.some()
        }
        change = asyncio.create_task(self._keeper.changed.wait())
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
        usable = self._keeper.some()
        usable.sort(key=lambda each: -each.ready(request.queues))
        self._calls += 1
        turn, rest = divmod(self._calls, _TURN)
        if rest == 0:
            place = turn % len(self._keeper.all)
            usable.sort(key=lambda each: each.place != place)
        return usable

    async def _one_by_one(
        self, asks: Iterable[tuple[Partition, LeaseRequest]]
    ) -> tuple[list[list[Lease]], list[EngineError]]:
        """Up to the limit in all. Who leaves in the middle has nothing in hand."""
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
        leases = await self._keeper.ask(partition, lambda engine: engine.lease(request))
        for lease in leases:
            partition.changed(lease.job.queue, -1)
        return [outer(lease, partition.place) for lease in leases]

    def _give_back(self, leases: Iterable[Lease]) -> None:
        """Nobody works on them; failing that, the leases lapse."""
        for lease in leases:
            engine = self._keeper.all[place_of(lease.token)].engine
            task = asyncio.create_task(_release(engine, inner(lease)))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)


async def _release(engine: Engine, lease: Lease) -> None:
    with contextlib.suppress(EngineError):
        await engine.settle([Settlement(lease=lease, verdict=Release("another was faster"))])


async def _stop(waiting: set[Asked]) -> list[Lease]:
    """End the waits; what one had taken at that very moment is told."""
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
    return _results(waiting)


def _results(done: set[Asked]) -> list[Lease]:
    """A partition that failed is shut out by now, and has given nothing."""
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
