"""PartitionedEngine: one engine over several stores, each holding some of the jobs.

It stores nothing itself and decides nothing about a job: it routes calls to partitions and merges
their answers. A partition that fails is shut out, and the others continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import uuid_utils
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import (
    Flow,
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
    Waits,
)
from holdfast.core.partitions import home_of, make_at_home
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.base import (
    ANY,
    Engine,
    Expired,
    Known,
    Overdue,
    Saved,
    Traits,
    unknown_if_partial,
)
from holdfast.engines.extras import (
    Countable,
    Examinable,
    Examination,
    FileBacked,
    PartitionView,
    Revisioned,
    extra,
    find_rows,
)
from holdfast.engines.partitioned import merge, settings
from holdfast.engines.partitioned.enqueue import Enqueuer
from holdfast.engines.partitioned.lease import Leaser
from holdfast.engines.partitioned.lifecycle import PartitionLifecycle
from holdfast.engines.partitioned.membership import Membership, Sleep
from holdfast.engines.partitioned.merge import PartitionedBatch
from holdfast.engines.partitioned.partition import KIND, Partition
from holdfast.engines.partitioned.placement import (
    NAME,
    PARTITIONS_MAX,
    inner,
    outer,
    outer_job,
    place_of,
)
from holdfast.engines.wrapper import enforced
from holdfast.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    HoldfastError,
    OutcomeUnknown,
    UsageError,
)

T = TypeVar("T")
_COUNT_S = 2.0


class PartitionedEngine:
    """See `Engine`. `engines` are the partitions with their names, in the order of the partition
    map. This engine opens and closes them; nothing else may use them."""

    def __init__(
        self, engines: Sequence[tuple[str, Engine]], *, sleep: Sleep = asyncio.sleep
    ) -> None:
        if not 1 <= len(engines) <= PARTITIONS_MAX:
            raise ConfigError(
                f"{len(engines)} partitions are too many or too few: give 1 to {PARTITIONS_MAX}"
            )
        partitions = [
            Partition(place, name, enforced(engine)) for place, (name, engine) in enumerate(engines)
        ]
        self._members = Membership(partitions, sleep=sleep)
        self._leaser = Leaser(self._members)
        self._enqueuer = Enqueuer(self._members)
        self._traits = common_traits([engine.traits for _, engine in engines])
        self._opening = asyncio.Lock()
        self._open = False
        self._counted_at = 0.0
        self._counting: asyncio.Task[object] | None = None

    @property
    def traits(self) -> Traits:
        return self._traits

    async def open(self) -> None:
        """Missing files are created at the first opening only; missing folders never."""
        await self._begin(create=True)

    async def reopen(self) -> None:
        """Open, but create no file."""
        await self._begin(create=False)

    async def _begin(self, *, create: bool) -> None:
        async with self._opening:
            if not self._open:
                await self._members.open(create=create)
                self._open = True

    def missing(self, *, creating: bool = False) -> str:
        """The first file or folder that opening would have to create, in words; "" if a partition
        exists: then opening creates nothing, and shuts out those that are missing."""
        files = [each.files for each in self._members.all if each.files is not None]
        if len(files) < len(self._members.all) or not all(_missing(each) for each in files):
            return ""
        return next(filter(None, (_missing(each, creating=creating) for each in files)), "")

    async def close(self) -> None:
        async with self._opening:
            if not self._open:
                return
            self._open = False
            if self._counting is not None:
                self._counting.cancel()
                await asyncio.wait([self._counting])
            await self._leaser.close()
            await self._members.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        """In every partition; one that is shut out gets the settings before it comes back."""
        self._check_open()
        checks.check_queue(queue)
        related = {queue.name, queue.dead_queue or queue.name}
        found = await self._members.ask_all(
            lambda engine: engine.queues(names=related, counts=False)
        )
        names = [{view.queue.name for view in views} for views in found.values()]
        checks.check_dead_queue(queue, set().union(*names))
        if await self._change_settings(queue.name, queue, instead_of):
            return True
        if not all(queue.name in known for known in names):
            # The caller that won may have been killed before it updated every partition.
            for view in await self.queues(names=[queue.name], counts=False):
                await self._change_settings(queue.name, view.queue, view.queue)
        return False

    async def drop(self, name: str) -> None:
        self._check_open()
        if bounds.QUEUE_NAME.match(name):
            await self._change_settings(name, None, ANY)

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        """While a partition is shut out, the counts are lower bounds and marked estimates."""
        found = await self._everywhere(lambda engine: engine.queues(names=names, counts=counts))
        if counts and names is None:
            for place, views in found.items():
                self._members.all[place].counted(views)
        return merge.queues(found, whole=not counts or len(found) == len(self._members.all))

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        """See `Countable`. A partition that cannot count so far gives lower bounds."""

        def ask(engine: Engine) -> Awaitable[list[QueueView]]:
            far = extra(engine, Countable)
            return far.count_far(names, most=most) if far else engine.queues(names=names)

        found = await self._everywhere(ask)
        return merge.queues(found, whole=len(found) == len(self._members.all))

    async def revision(self) -> str | None:
        """See `Revisioned`; None if a partition does not know."""
        return await self._revision(lambda engine: engine.revision())

    async def count_revision(self) -> str | None:
        """See `Revisioned`; None if a partition does not know."""
        return await self._revision(lambda engine: engine.count_revision())

    async def _revision(self, read: Callable[[Revisioned], Awaitable[str | None]]) -> str | None:
        async def ask(engine: Engine) -> str | None:
            revisioned = extra(engine, Revisioned)
            return None if revisioned is None else await read(revisioned)

        found = await self._everywhere(ask)
        if None in found.values():
            return None
        return " ".join(f"{number}:{text}" for number, text in sorted(found.items()))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._check_open()
        checks.check_batch(len(jobs))
        self._count_soon()
        return await self._enqueuer.enqueue(jobs)

    def mint(self) -> str:
        """A job id whose home is the emptiest partition in use."""
        usable = self._members.usable or self._members.all
        emptiest = min(usable, key=lambda each: each.waiting).place
        return make_at_home(lambda: str(uuid_utils.uuid7()), (emptiest,), len(self._members.all))

    def mint_instead(self, id: str) -> str | None:
        home = self._members.all[home_of(id, len(self._members.all))]
        return None if home.is_in or not self._members.usable else self.mint()

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """In order within each partition; the fullest partition first."""
        self._check_open()
        checks.check_request(request)
        if len(self._members.all) == 1:
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
        batch = PartitionedBatch[Renewal, Lease | None](self._members)
        for at, renewal in enumerate(renewals):
            place = place_of(renewal.lease.token)
            if place < len(self._members.all):
                batch.add(at, place, replace(renewal, lease=inner(renewal.lease)))
            else:
                batch.answers[at] = None
        await batch.ask(lambda engine, part: engine.renew(part), lambda each: each.health.settles)
        for at, lease in batch.answers.items():
            if lease is not None:
                batch.answers[at] = outer(lease, batch.places[at])
        return batch.whole(len(renewals))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """A verdict is REFUSED if a follow-up job belongs to another partition."""
        self._check_open()
        checks.check_batch(len(settlements))
        places = [place_of(given.lease.token) for given in settlements]
        batch = PartitionedBatch[Settlement, Outcome](self._members)
        allowed = await self._enqueuer.follow_ups(settlements, places)
        for at, (given, place) in enumerate(zip(allowed, places, strict=True)):
            if place >= len(self._members.all):
                batch.answers[at] = Outcome.LOST
            elif given is None:
                batch.answers[at] = Outcome.REFUSED
            else:
                batch.add(at, place, replace(given, lease=inner(given.lease)))
        await batch.ask(lambda engine, part: engine.settle(part), lambda each: each.health.settles)
        return batch.whole(len(settlements))

    async def overdue(self, limit: int) -> Overdue:
        """By deadline, from the partitions in use."""
        return merge.overdue(await self._everywhere(lambda engine: engine.overdue(limit)), limit)

    async def expired(self, limit: int) -> Expired:
        return merge.expired(await self._everywhere(lambda engine: engine.expired(limit)), limit)

    async def finished(self, limit: int) -> list[Job]:
        found = await self._everywhere(lambda engine: engine.finished(limit))
        return list(merge.jobs_by(found, lambda job: job.finished_at or 0, limit))

    async def recount(self, limit: int) -> int:
        return sum((await self._everywhere(lambda engine: engine.recount(limit))).values())

    async def flow(self, queue: str, *, limit: int) -> Flow:
        found = await self._everywhere(lambda engine: engine.flow(queue, limit=limit))
        return merge.flow(found.values(), limit)

    async def waits(self, id: str) -> Waits | None:
        found = await self._look(id, lambda engine: engine.waits(id))
        return None if found is None else found[1]

    async def get(self, id: str) -> Job | None:
        """Raises EngineUnavailable if the job may be in a partition that is shut out."""
        found = await self._look(id, lambda engine: engine.get(id))
        return None if found is None else outer_job(found[1], found[0])

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """Newest first by creation time, from the partitions in use."""
        return await self._find(_find, wanted, limit, after)

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """See `ListsRows`."""
        return await self._find(_find_rows, wanted, limit, after)

    async def _find(self, find: _Find, wanted: JobFilter, limit: int, after: int | None) -> Page:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        positions = merge.decode_cursor(after, len(self._members.all))
        found = await self._members.ask_each(
            (each, find(wanted, limit, positions[each.place].after))
            for each in self._members.some()
            if not positions[each.place].ended
        )
        return merge.page(positions, found, limit)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._check_open()
        checks.check_page(limit)
        found = await self._everywhere(
            lambda engine: engine.tally(wanted, by, limit=bounds.PAGE_MAX)
        )
        return merge.tally(found.values(), limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        """One partition after the other, oldest jobs first in each."""
        self._check_open()
        checks.check_page(limit)
        changed = 0
        failures: list[EngineError] = []
        usable = self._members.some()
        for each in usable:
            try:
                changed += await self._members.ask(each, _amend(wanted, amendment, limit - changed))
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
        return merge.records(found.values(), limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._check_open()
        checks.check_batch(len(records))
        batch = PartitionedBatch[Record, Saved](self._members)
        for at, record in enumerate(records):
            checks.check_record(record)
            _check_kind(record.kind)
            batch.add(at, home_of(f"{record.kind}/{record.key}", len(self._members.all)), record)
        await batch.ask(lambda engine, part: engine.save(part), lambda each: each.is_in)
        return batch.whole(len(records))

    async def examine(self, *, deep: bool = False) -> Examination:
        """The reports of the partitions, and which ones are shut out."""

        async def ask(engine: Engine) -> Examination | None:
            examinable = extra(engine, Examinable)
            return None if examinable is None else await examinable.examine(deep=deep)

        found = await self._everywhere(ask)
        reports = {place: report for place, report in found.items() if report is not None}
        names = [each.name for each in self._members.all]
        trouble = [
            f"partition {view.name} is shut out, with its jobs: {view.text}"
            for view in self.partitions()
            if view.out_ms is not None
        ]
        return merge.examination(reports, names, trouble)

    def partitions(self) -> list[PartitionView]:
        """The state of each partition."""
        return self._members.views()

    def lifecycles(self) -> list[Engine]:
        """An engine for the upkeep of each partition."""
        return [PartitionLifecycle(self, self._members, each) for each in self._members.all]

    async def _take(self, request: LeaseRequest) -> list[Lease]:
        if not request.ids:
            return await self._leaser.take(request)
        places = await self._enqueuer.locate(request.ids)
        return await self._leaser.take_ids(request, places)

    async def _top_up(self, request: LeaseRequest, leases: list[Lease]) -> list[Lease]:
        """The first job ended the wait; more may be due by now."""
        if len(leases) == request.limit or self._closed():
            return leases
        rest = replace(request, limit=request.limit - len(leases))
        return await self._leaser.top_up(leases, self._take(rest))

    async def _change_settings(self, name: str, queue: Queue | None, instead_of: Known) -> bool:
        """One partition decides, the same one for all callers while it is in use; then every
        partition gets the new settings. False if `instead_of` was not current."""
        numbers = await self._members.ask_all(lambda engine: settings.latest_number(engine, name))
        usable = self._members.some()
        home = home_of(name, len(self._members.all))
        first = next((each for each in usable if each.place == home), usable[0])
        floor = max(numbers.values())
        version = await self._members.ask(
            first,
            lambda engine: settings.decide(engine, name, queue, instead_of=instead_of, floor=floor),
        )
        if version is None:
            return False
        # If this fails halfway, the next opening of the deciding partition completes it.
        with unknown_if_partial(lambda: True):
            await self._members.ask_all(
                lambda engine: settings.apply_version(engine, name, version)
            )
        return True

    async def _everywhere(self, ask: Callable[[Engine], Awaitable[T]]) -> dict[int, T]:
        self._check_open()
        return await self._members.ask_all(ask)

    async def _look(
        self, id: str, ask: Callable[[Engine], Awaitable[T | None]]
    ) -> tuple[int, T] | None:
        """Ask the home of the id first, where most jobs are."""
        self._check_open()
        usable = self._members.some()
        home = home_of(id, len(self._members.all))
        usable.sort(key=lambda each: each.place != home)
        for part in (usable[:1], usable[1:]):
            found = await self._members.ask_each((each, ask) for each in part)
            for place, answer in found.items():
                if answer is not None:
                    return place, answer
        if not self._members.whole:
            raise self._members.first_out().unavailable()
        return None

    def _count_soon(self) -> None:
        """Refresh the counts of waiting jobs in the background, at most every few seconds."""
        now = asyncio.get_running_loop().time()
        if len(self._members.all) == 1 or now - self._counted_at < _COUNT_S:
            return
        if self._counting is None or self._counting.done():
            self._counted_at = now
            self._counting = asyncio.create_task(self._members.count())

    def _closed(self) -> bool:
        """True if the engine was closed, perhaps during this call."""
        return not self._open

    def _check_open(self) -> None:
        if not self._open:
            raise EngineClosed("the partitioned engine is not open: call open() first")


def _missing(files: FileBacked, *, creating: bool = False) -> str:
    """See `FileBacked`. A file that cannot be examined exists: opening it reports why."""
    try:
        return files.missing(creating=creating)
    except HoldfastError:
        return ""


_Find = Callable[[JobFilter, int, int | None], Callable[[Engine], Awaitable[Page]]]


def _find(wanted: JobFilter, limit: int, after: int | None) -> Callable[[Engine], Awaitable[Page]]:
    return lambda engine: engine.find(wanted, limit=limit, after=after)


def _find_rows(
    wanted: JobFilter, limit: int, after: int | None
) -> Callable[[Engine], Awaitable[Page]]:
    return lambda engine: find_rows(engine, wanted, limit=limit, after=after)


def _amend(
    wanted: JobFilter, amendment: Amendment, limit: int
) -> Callable[[Engine], Awaitable[int]]:
    return lambda engine: engine.amend(wanted, amendment, limit=limit)


def _check_kind(kind: str) -> None:
    if kind in (KIND, settings.KIND):
        raise UsageError(f"kind {kind} is reserved for the partitioned engine's own records")


def common_traits(each: Sequence[Traits]) -> Traits:
    """The abilities that all partitions have, except those that need one count or one order of all
    jobs.
    """
    common = {
        name: min(getattr(traits, name) for traits in each)
        for name in Traits.__struct_fields__
        if name != "name"
    }
    alone = Traits(**common | {"name": NAME, "transactional": False})
    if len(each) == 1:
        return alone
    return replace(
        alone,
        ordered=False,
        limits=False,
        rates=False,
        fairness=False,
        combinations=False,
        atomic_max=min(alone.atomic_max, 1),
    )
