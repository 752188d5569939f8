"""A store under test: an open engine on a manual clock, and ways to open the same store again.

`Harness` needs one function that makes an engine, not yet open. It closes every engine that it
opened, never sleeps and never looks inside an engine. A `Twin` makes each call on the engine and on
the reference engine, and compares the answers. Numbers that each engine makes by itself (seq,
token, cursor) are paired instead of compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import (
    RECEIPT,
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
    State,
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.wrapper import enforced
from holdfast.errors import UsageError
from holdfast.testing.clock import ManualClock

MakeEngine = Callable[[ManualClock], Engine]


class Harness:
    """An async context manager, inside which `engine` is open, with its traits enforced.

    `can_jump` is True if leases do not depend on the wall clock. Pass False for an engine that has
    only the wall clock, such as one that uses a database server's clock. `clock` is that of a
    server which outlives the harness.
    """

    def __init__(
        self, make: MakeEngine, *, can_jump: bool = True, clock: ManualClock | None = None
    ) -> None:
        self.clock: ManualClock = clock or ManualClock()
        self.can_jump = can_jump
        self.engine: Engine = enforced(make(self.clock))
        self.engines: list[Engine] = []
        """Every open engine on the store; several after `another` or `abandon`."""
        self._make = make

    async def __aenter__(self) -> Self:
        await self._open(self.engine)
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for engine in reversed(self.engines):
            await engine.close()

    async def twin(self) -> Twin:
        """The engine and the reference together: calls go to both, and the answers must agree."""
        reference = MemoryEngine(clock=self.clock)
        await reference.open()
        kind = Twin if self.engine.traits.ordered else UnorderedTwin
        return kind(self.engine, reference)

    async def another(self) -> Engine | None:
        """A second engine on the same store, like another process; None if it is not shared."""
        if not self.engine.traits.shared:
            return None
        return await self._open(enforced(self._make(self.clock)))

    async def restart(self) -> Engine:
        """Close the engine and open a new one on the same store."""
        assert self.engine.traits.durable, "only a durable store outlives its engine"
        await self.engine.close()
        self.engines.remove(self.engine)
        return await self.abandon()

    async def abandon(self) -> Engine:
        """Open a new engine on the same store and leave the old one open, like a frozen process."""
        assert self.engine.traits.durable, "only a durable store outlives its engine"
        self.engine = await self._open(enforced(self._make(self.clock)))
        return self.engine

    async def _open(self, engine: Engine) -> Engine:
        self.engines.append(engine)
        await engine.open()
        return engine


T = TypeVar("T")
Found = TypeVar("Found", Job, Lease)
TALLIED: tuple[TallyBy, ...] = (
    "queue",
    "state",
    "task",
    "tenant",
    "reason",
    "worker",
    "group",
    "fingerprint",
)

_ONE_BY_ONE = 100


class Twin:
    """An engine and the reference engine, with the verbs of `Engine`. `engine` may be replaced by
    another one on the same store."""

    def __init__(self, engine: Engine, reference: Engine) -> None:
        self.engine = engine
        self.reference = reference
        self.ids: dict[str, None] = {}
        self._pairs: dict[tuple[str, int], int] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        mine, theirs = await self._both(lambda engine: engine.declare(queue, instead_of=instead_of))
        assert mine is theirs
        return mine

    async def drop(self, name: str) -> None:
        await self._both(lambda engine: engine.drop(name))

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        mine, theirs = await self._both(lambda engine: engine.queues(names=names, counts=counts))
        assert [view.queue for view in mine] == [view.queue for view in theirs]
        if self.engine.traits.exact_counts:
            for view, twin in zip(mine, theirs, strict=True):
                differences = _differences(view, twin)
                assert not differences, f"queue {view.queue.name} differs: {differences}"
        return mine

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """The receipts, without the arrival numbers."""
        self.ids |= dict.fromkeys(job.id for job in jobs)
        mine, theirs = await self._both(lambda engine: engine.enqueue(jobs))
        mine = [replace(receipt, seq=None) for receipt in mine]
        # The text of a refusal may differ, its code may not.
        assert [replace(receipt, text="") for receipt in mine] == [
            replace(receipt, text="", seq=None) for receipt in theirs
        ]
        assert all(bool(receipt.text) == bool(receipt.code) for receipt in mine)
        return mine

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        mine, theirs = await self._both(lambda engine: engine.lease(request))
        assert [lease.id for lease in mine] == [lease.id for lease in theirs]
        for lease, twin in zip(mine, theirs, strict=True):
            assert (lease.id, lease.token) not in self._pairs, "a token came twice"
            self._pairs[lease.id, lease.token] = twin.token
            number = len(self._numbers)
            self._numbers[lease.id, lease.token] = number
            self._numbers[lease.id, -twin.token] = number
        self._agree_on_leases(mine, theirs)
        return mine

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        twins = [replace(renewal, lease=self.pair(renewal.lease)) for renewal in renewals]
        mine, theirs = await self._each(
            lambda: self.engine.renew(renewals), lambda: self.reference.renew(twins)
        )
        self._agree_on_leases(mine, theirs)
        return mine

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        for settlement in settlements:
            then = getattr(settlement.verdict, "then", ())
            self.ids |= dict.fromkeys(job.id for job in then)
        twins = [replace(given, lease=self.pair(given.lease)) for given in settlements]
        mine, theirs = await self._each(
            lambda: self.engine.settle(settlements), lambda: self.reference.settle(twins)
        )
        assert mine == theirs
        return mine

    async def overdue(self, limit: int = 100) -> Overdue:
        mine, theirs = await self._both(lambda engine: engine.overdue(limit))
        assert mine.next_ms == theirs.next_ms
        self._agree_on_leases(mine.leases, theirs.leases)
        return mine

    async def expired(self, limit: int = 100) -> Expired:
        mine, theirs = await self._both(lambda engine: engine.expired(limit))
        assert mine.next_ms == theirs.next_ms
        self._agree_on_jobs(mine.jobs, theirs.jobs)
        return mine

    async def finished(self, limit: int = 100) -> list[Job]:
        mine, theirs = await self._both(lambda engine: engine.finished(limit))
        self._agree_on_jobs(mine, theirs)
        return mine

    async def recount(self, limit: int = 1_000) -> int:
        return await self._same(lambda engine: engine.recount(limit))

    async def flow(self, queue: str = "default", *, limit: int = 100) -> Flow:
        return await self._same(lambda engine: engine.flow(queue, limit=limit))

    async def waits(self, id: str) -> Waits | None:
        return await self._same(lambda engine: engine.waits(id))

    async def get(self, id: str) -> Job | None:
        mine, theirs = await self._both(lambda engine: engine.get(id))
        self._agree_on_jobs([mine], [theirs])
        return mine

    async def find(self, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
        """All pages; each engine continues from its own cursor."""
        mine, theirs = await self._both(lambda engine: find_all(engine, wanted, limit=limit))
        self._agree_on_jobs(mine, theirs)
        return mine

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int = 100) -> list[Tally]:
        return await self._same(lambda engine: engine.tally(wanted, by, limit=limit))

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int = 100) -> int:
        return await self._same(lambda engine: engine.amend(wanted, amendment, limit=limit))

    async def load(self, of: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        return await self._same(lambda engine: engine.load(of, after=after, limit=limit))

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        return await self._same(lambda engine: engine.save(records))

    async def require(self, id: str) -> Job:
        """The whole job; it must exist."""
        job = await self.get(id)
        assert job is not None, f"job {id} is gone"
        return job

    async def agree(self) -> None:
        """Compare all jobs, counts and lists that the engine's traits allow to read. Of hundreds
        of jobs, all are compared as in lists, and about a hundred one by one."""
        if self.engine.traits.inspect:
            await self._agree_on_search()
        for view in await self.queues():
            await self.flow(view.queue.name)
        assert await self.recount() == 0
        if self.engine.traits.overdue:
            await self.overdue()
            await self.expired()
            await self.finished()

    def pair(self, lease: Lease) -> Lease:
        """The reference's lease for this one; an invented lease stands for itself."""
        return replace(lease, token=self._pairs.get((lease.id, lease.token), lease.token))

    async def _agree_on_search(self) -> None:
        ids = list(self.ids)
        for id_ in ids[:: 1 + len(ids) // _ONE_BY_ONE]:
            job = await self.get(id_)
            if job is not None and job.state is State.WAITING:
                await self.waits(id_)
        await self.find(JobFilter(), limit=max(7, len(self.ids) // 10))
        await self.tally(JobFilter(), "state")

    async def _same(self, ask: Callable[[Engine], Awaitable[T]]) -> T:
        mine, theirs = await self._both(ask)
        assert mine == theirs
        return mine

    async def _both(self, ask: Callable[[Engine], Awaitable[T]]) -> tuple[T, T]:
        return await self._each(lambda: ask(self.engine), lambda: ask(self.reference))

    async def _each(
        self, engine: Callable[[], Awaitable[T]], reference: Callable[[], Awaitable[T]]
    ) -> tuple[T, T]:
        """If the reference refuses a call, the engine must refuse it with the same code."""
        try:
            theirs = await reference()
        except UsageError as refusal:
            try:
                answer: Any = await engine()
            except UsageError as error:
                assert error.code == refusal.code, f"{error!r} instead of {refusal!r}"
                raise
            raise AssertionError(f"{answer!r} instead of {refusal!r}") from None
        return await engine(), theirs

    def _agree_on_leases(
        self, mine: Sequence[Lease | None], theirs: Sequence[Lease | None]
    ) -> None:
        self._agree_on_jobs(_jobs_of(mine), _jobs_of(theirs))
        assert [lease and lease.lease_ms for lease in mine] == [
            lease and lease.lease_ms for lease in theirs
        ]
        assert all(lease is None or lease.token == lease.job.token for lease in mine)

    def _agree_on_jobs(self, mine: Sequence[Job | None], theirs: Sequence[Job | None]) -> None:
        assert [job and job.id for job in mine] == [job and job.id for job in theirs]
        for job, twin in zip(mine, theirs, strict=True):
            if job is not None and twin is not None:
                differences = _differences(self._comparable(job, 1), self._comparable(twin, -1))
                assert not differences, f"job {job.id} differs from the reference: {differences}"

    def _comparable(self, job: Job, sign: int) -> Job:
        """Replace the token by the number of its lease, so that a wrong token is noticed."""
        token = job.token
        number = None if token is None else self._numbers.get((job.id, sign * token), token)
        job = replace(job, seq=0, token=number)
        return job if self.engine.traits.inspect else _as_leased(job)


class UnorderedTwin(Twin):
    """For engines without one order of all jobs. The engine may choose which job comes first; the
    reference must allow that choice, and an answer below its limit must leave nothing that the
    reference would have given."""

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        try:
            mine = await self.engine.lease(request)
        except UsageError:
            return await super().lease(request)
        ids = tuple(lease.id for lease in mine)
        allowed = replace(request, wait_ms=0)
        if not request.ids and not await self._would_lease(allowed, ids):
            allowed = replace(allowed, queues=(), ids=ids, limit=bounds.BATCH_MAX)
        theirs = await self.reference.lease(allowed) if ids else []
        assert [lease.id for lease in theirs] == list(ids), "the reference would not give them"
        if len(mine) < request.limit:
            left = await self.reference.lease(replace(request, wait_ms=0))
            assert not left, "the reference would have given more"
        for lease, twin in zip(mine, theirs, strict=True):
            assert (lease.id, lease.token) not in self._pairs, "a token came twice"
            self._pairs[lease.id, lease.token] = twin.token
            number = len(self._numbers)
            self._numbers[lease.id, lease.token] = number
            self._numbers[lease.id, -twin.token] = number
        self._agree_on_leases(mine, theirs)
        return mine

    async def _would_lease(self, request: LeaseRequest, ids: tuple[str, ...]) -> bool:
        """True if this call on the reference would lease exactly these jobs. Only such a call takes
        several of a group together; it is tried on a copy, because a lease cannot be undone."""
        assert isinstance(self.reference, MemoryEngine)
        views = await self.reference.queues(counts=False)
        if all(view.queue.group_batch == 1 for view in views):
            return False
        trial = self.reference.copy()
        return tuple(lease.id for lease in await trial.lease(request)) == ids

    def _agree_on_leases(
        self, mine: Sequence[Lease | None], theirs: Sequence[Lease | None]
    ) -> None:
        super()._agree_on_leases(_by_id(mine), _by_id(theirs))

    def _agree_on_jobs(self, mine: Sequence[Job | None], theirs: Sequence[Job | None]) -> None:
        super()._agree_on_jobs(_by_id(mine), _by_id(theirs))


async def find_all(engine: Engine, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
    """Every matching job, read page by page."""
    found: list[Job] = []
    page = Page(jobs=(), after=None)
    while True:
        page = await engine.find(wanted, limit=limit, after=page.after)
        assert len(page.jobs) <= limit
        found += page.jobs
        if page.after is None:
            return found


def _jobs_of(leases: Sequence[Lease | None]) -> list[Job | None]:
    return [None if lease is None else lease.job for lease in leases]


def _as_leased(job: Job) -> Job:
    """The job without what only a store that can be searched knows: its version, and the engine's
    own instants and headers."""
    headers = {name: each for name, each in job.headers.items() if not name.startswith(RECEIPT)}
    return replace(
        job, headers=headers, version=0, created_at=0, due_at=0, leased_at=0, deadline_at=0
    )


def _differences(
    mine: Job | QueueView, theirs: Job | QueueView
) -> dict[str, tuple[object, object]]:
    return {
        name: (value, expected)
        for name in mine.__struct_fields__
        if (value := getattr(mine, name)) != (expected := getattr(theirs, name))
    }


def _by_id(found: Sequence[Found | None]) -> list[Found | None]:
    """Sorted, unless it answers a batch: then None may occur and the order is that of the batch."""
    if None in found:
        return list(found)
    return sorted(found, key=lambda each: "" if each is None else each.id)
