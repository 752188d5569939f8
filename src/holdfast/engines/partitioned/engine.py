"""PartitionedEngine: one engine made of several, each the home of some of the jobs.

It keeps no job itself and decides nothing about one; it knows where each belongs, asks there, and
lays the answers together. A partition that fails is shut out, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import uuid_utils
from msgspec.structs import replace

from holdfast.core import admission, checks, limits
from holdfast.core.flow import Flow, Waits
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Page,
    Queue,
    QueueView,
    Receipt,
    Record,
    Renewal,
    Tally,
    TallyBy,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.base import (
    ANY,
    Engine,
    Examination,
    Expired,
    Known,
    Overdue,
    Saved,
    Traits,
)
from holdfast.engines.partitioned import cursor, merging, settings
from holdfast.engines.partitioned.enqueueing import Enqueuer
from holdfast.engines.partitioned.homes import (
    PARTITIONS_MAX,
    home_of,
    inner,
    outer,
    outer_job,
    place_of,
)
from holdfast.engines.partitioned.keeper import Keeper, Pause
from holdfast.engines.partitioned.leasing import Leaser
from holdfast.engines.partitioned.map import KIND
from holdfast.engines.partitioned.partition import Partition, PartitionView
from holdfast.engines.partitioned.routing import Batch
from holdfast.engines.partitioned.traits import check_queue, common_traits
from holdfast.engines.parts import told_in_part
from holdfast.errors import ConfigError, EngineClosed, EngineError, OutcomeUnknown, UsageError

T = TypeVar("T")
_COUNT_S = 2.0
_MINT_TRIES_MAX = 1_000


class PartitionedEngine:
    """See `Engine`. `engines` are the partitions by name, in the order of their map; each is
    opened, closed and used by this one alone."""

    def __init__(
        self, engines: Sequence[tuple[str, Engine]], *, pause: Pause = asyncio.sleep
    ) -> None:
        if not 1 <= len(engines) <= PARTITIONS_MAX:
            raise ConfigError(f"{len(engines)} partitions are not 1 to {PARTITIONS_MAX}")
        partitions = [Partition(place, *each) for place, each in enumerate(engines)]
        self._keeper = Keeper(partitions, pause=pause)
        self._leaser = Leaser(self._keeper)
        self._enqueuer = Enqueuer(self._keeper)
        self._traits = common_traits([engine.traits for _, engine in engines])
        self._opening = asyncio.Lock()
        self._open = False
        self._counted_at = 0.0
        self._counting: asyncio.Task[object] | None = None

    @property
    def traits(self) -> Traits:
        return self._traits

    async def open(self) -> None:
        async with self._opening:
            if not self._open:
                await self._keeper.open()
                self._open = True

    async def close(self) -> None:
        async with self._opening:
            if not self._open:
                return
            self._open = False
            if self._counting is not None:
                self._counting.cancel()
                await asyncio.wait([self._counting])
            await self._leaser.close()
            await self._keeper.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        """In every partition; one that is out hears of it before it comes back."""
        self._check_open()
        checks.check_queue(queue)
        check_queue(queue, len(self._keeper.all))
        found = await self._keeper.ask_all(lambda engine: engine.queues(counts=False))
        names = [{view.queue.name for view in views} for views in found.values()]
        admission.check_dead_queue(queue, set().union(*names))
        if await self._say(queue.name, queue, instead_of):
            return True
        if not all(queue.name in known for known in names):
            # The faster one may have been killed before it told everybody.
            for view in await self.queues(counts=False):
                if view.queue.name == queue.name:
                    await self._say(queue.name, view.queue, view.queue)
        return False

    async def drop(self, name: str) -> None:
        self._check_open()
        if limits.QUEUE_NAME.match(name):
            await self._say(name, None, ANY)

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        """Where a partition is out, the counts are at least so many."""
        found = await self._everywhere(lambda engine: engine.queues(counts=counts))
        if counts:
            for place, views in found.items():
                self._keeper.all[place].counted(views)
        return merging.queues(found, whole=not counts or len(found) == len(self._keeper.all))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._check_open()
        checks.check_batch(len(jobs))
        self._count_soon()
        return await self._enqueuer.enqueue(jobs)

    def mint(self) -> str:
        """An id whose home is the emptiest partition in use, for a job that has none."""
        usable = self._keeper.usable or self._keeper.all
        emptiest = min(usable, key=lambda each: each.waiting).place
        for _ in range(_MINT_TRIES_MAX):
            made = str(uuid_utils.uuid7())
            if home_of(made, len(self._keeper.all)) == emptiest:
                break
        return made

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """In order within each partition; from the fullest first."""
        self._check_open()
        checks.check_request(request)
        if len(self._keeper.all) == 1:
            return await self._leaser.take_alone(request)
        self._count_soon()
        loop = asyncio.get_running_loop()
        end = loop.time() + request.wait_ms / 1000
        while True:
            leases = await self._take(request)
            left_ms = int((end - loop.time()) * 1000)
            if leases or left_ms <= 0 or self._closed():
                return leases
            if leases := await self._leaser.wait(request, left_ms):
                return await self._top_up(request, leases)
            if self._closed():
                return []

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._check_open()
        checks.check_renewals(renewals)
        batch = Batch[Renewal, Lease | None](self._keeper)
        for at, renewal in enumerate(renewals):
            place = place_of(renewal.lease.token)
            if place < len(self._keeper.all):
                batch.add(at, place, replace(renewal, lease=inner(renewal.lease)))
            else:
                batch.answers[at] = None
        await batch.ask(lambda engine, part: engine.renew(part), lambda each: each.health.settles)
        for at, lease in batch.answers.items():
            if lease is not None:
                batch.answers[at] = outer(lease, batch.places[at])
        return batch.whole(len(renewals))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """A follow-up job that must be in another partition makes its verdict REFUSED."""
        self._check_open()
        checks.check_batch(len(settlements))
        places = [place_of(given.lease.token) for given in settlements]
        batch = Batch[Settlement, Outcome](self._keeper)
        allowed = await self._enqueuer.follow_ups(settlements, places)
        for at, (given, place) in enumerate(zip(allowed, places, strict=True)):
            if place >= len(self._keeper.all):
                batch.answers[at] = Outcome.LOST
            elif given is None:
                batch.answers[at] = Outcome.REFUSED
            else:
                batch.add(at, place, replace(given, lease=inner(given.lease)))
        await batch.ask(lambda engine, part: engine.settle(part), lambda each: each.health.settles)
        return batch.whole(len(settlements))

    async def overdue(self, limit: int) -> Overdue:
        """By deadline; of the partitions in use."""
        return merging.overdue(await self._everywhere(lambda engine: engine.overdue(limit)), limit)

    async def expired(self, limit: int) -> Expired:
        return merging.expired(await self._everywhere(lambda engine: engine.expired(limit)), limit)

    async def finished(self, limit: int) -> list[Job]:
        found = await self._everywhere(lambda engine: engine.finished(limit))
        return list(merging.jobs_by(found, lambda job: job.finished_at or 0, limit))

    async def recount(self, limit: int) -> int:
        return sum((await self._everywhere(lambda engine: engine.recount(limit))).values())

    async def flow(self, queue: str, *, limit: int) -> Flow:
        found = await self._everywhere(lambda engine: engine.flow(queue, limit=limit))
        return merging.flow(found.values(), limit)

    async def waits(self, id: str) -> Waits | None:
        found = await self._look(id, lambda engine: engine.waits(id))
        return None if found is None else found[1]

    async def get(self, id: str) -> Job | None:
        """EngineUnavailable if it may be in a partition that is out."""
        found = await self._look(id, lambda engine: engine.get(id))
        return None if found is None else outer_job(found[1], found[0])

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """Newest first by time of arrival; of the partitions in use."""
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        positions = cursor.decode(after, len(self._keeper.all))
        found = await self._keeper.ask_each(
            (each, _find(wanted, limit, positions[each.place].after))
            for each in self._keeper.some()
            if not positions[each.place].ended
        )
        return merging.page(positions, found, limit)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._check_open()
        checks.check_page(limit)
        found = await self._everywhere(
            lambda engine: engine.tally(wanted, by, limit=limits.PAGE_MAX)
        )
        return merging.tally(found.values(), limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        """Oldest first within each partition in use, one partition after the other."""
        self._check_open()
        checks.check_page(limit)
        changed = 0
        failures: list[EngineError] = []
        usable = self._keeper.some()
        for each in usable:
            try:
                changed += await self._keeper.ask(each, _amend(wanted, amendment, limit - changed))
            except (EngineClosed, OutcomeUnknown):
                raise
            except EngineError as error:
                failures.append(error)
            if changed >= limit:
                break
        if len(failures) == len(usable):
            raise failures[0]
        return changed

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        _check_kind(kind)
        found = await self._everywhere(lambda engine: engine.load(kind, after=after, limit=limit))
        return merging.records(found.values(), limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._check_open()
        checks.check_batch(len(records))
        batch = Batch[Record, Saved](self._keeper)
        for at, record in enumerate(records):
            checks.check_record(record)
            _check_kind(record.kind)
            batch.add(at, home_of(f"{record.kind}/{record.key}", len(self._keeper.all)), record)
        await batch.ask(lambda engine, part: engine.save(part), lambda each: each.is_in)
        return batch.whole(len(records))

    async def examine(self, *, deep: bool = False) -> Examination:
        """What each partition says of itself, and which are shut out."""

        async def ask(engine: Engine) -> Examination | None:
            able = getattr(engine, "examine", None)
            return None if able is None else await able(deep=deep)

        found = await self._everywhere(ask)
        said = {place: each for place, each in found.items() if each is not None}
        names = [each.name for each in self._keeper.all]
        trouble = [
            f"partition {view.name} is shut out, with what is in it: {view.text}"
            for view in self.partitions()
            if view.out_ms is not None
        ]
        return merging.examination(said, names, trouble)

    def partitions(self) -> list[PartitionView]:
        """Each as it stands, for whoever watches over them."""
        return self._keeper.views()

    async def _take(self, request: LeaseRequest) -> list[Lease]:
        if not request.ids:
            return await self._leaser.take(request)
        places = await self._enqueuer.locate(request.ids)
        return await self._leaser.take_ids(request, places)

    async def _top_up(self, request: LeaseRequest, leases: list[Lease]) -> list[Lease]:
        """The first that came ended the wait; others may be there by now."""
        if len(leases) == request.limit or self._closed():
            return leases
        rest = replace(request, limit=request.limit - len(leases))
        return await self._leaser.top_up(leases, self._take(rest))

    async def _say(self, name: str, queue: Queue | None, instead_of: Known) -> bool:
        """One partition decides, the same for everybody while it is in use; then all hear of it."""
        numbers = await self._keeper.ask_all(lambda engine: settings.number_of(engine, name))
        usable = self._keeper.some()
        home = home_of(name, len(self._keeper.all))
        first = next((each for each in usable if each.place == home), usable[0])
        floor = max(numbers.values())
        word = await self._keeper.ask(
            first,
            lambda engine: settings.decide(engine, name, queue, instead_of=instead_of, floor=floor),
        )
        if word is None:
            return False
        # Whoever opens the partition that decided goes on with it.
        with told_in_part(lambda: True):
            await self._keeper.ask_all(lambda engine: settings.bring(engine, name, word))
        return True

    async def _everywhere(self, ask: Callable[[Engine], Awaitable[T]]) -> dict[int, T]:
        self._check_open()
        return await self._keeper.ask_all(ask)

    async def _look(
        self, id: str, ask: Callable[[Engine], Awaitable[T | None]]
    ) -> tuple[int, T] | None:
        """At its home first: most are there."""
        self._check_open()
        usable = self._keeper.some()
        home = home_of(id, len(self._keeper.all))
        usable.sort(key=lambda each: each.place != home)
        for part in (usable[:1], usable[1:]):
            found = await self._keeper.ask_each((each, ask) for each in part)
            for place, answer in found.items():
                if answer is not None:
                    return place, answer
        if not self._keeper.whole:
            raise self._keeper.first_out().unavailable()
        return None

    def _count_soon(self) -> None:
        """How full they are is looked at beside the calls, and not too often."""
        now = asyncio.get_running_loop().time()
        if len(self._keeper.all) == 1 or now - self._counted_at < _COUNT_S:
            return
        if self._counting is None or self._counting.done():
            self._counted_at = now
            self._counting = asyncio.create_task(self._keeper.count())

    def _closed(self) -> bool:
        """Perhaps since the call began."""
        return not self._open

    def _check_open(self) -> None:
        if not self._open:
            raise EngineClosed("the partitioned engine is not open: call open() first")


def _find(wanted: JobFilter, limit: int, after: int | None) -> Callable[[Engine], Awaitable[Page]]:
    return lambda engine: engine.find(wanted, limit=limit, after=after)


def _amend(
    wanted: JobFilter, amendment: Amendment, limit: int
) -> Callable[[Engine], Awaitable[int]]:
    return lambda engine: engine.amend(wanted, amendment, limit=limit)


def _check_kind(kind: str) -> None:
    if kind in (KIND, settings.KIND):
        raise UsageError(f"records of kind {kind} are the partitioned engine's own")
