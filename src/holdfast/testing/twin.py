"""An engine and the reference driven as one: each answer is compared, then given.

Numbers that each engine makes for itself (seq, token, cursor) are not compared but paired: a
lease of the engine under test stands for the reference's lease of the same job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

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
    State,
    Tally,
    TallyBy,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved
from holdfast.errors import UsageError

T = TypeVar("T")
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

_ONE_BY_ONE = 500


class Twin:
    """Has the verbs of `Engine`. `engine` may be changed for another one on the same store."""

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

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        mine, theirs = await self._both(lambda engine: engine.queues(counts=counts))
        assert [view.queue for view in mine] == [view.queue for view in theirs]
        for view, twin in zip(mine, theirs, strict=True):
            differences = _differences(view, twin)
            assert not differences, f"queue {view.queue.name} differs: {differences}"
        return mine

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.ids |= dict.fromkeys(job.id for job in jobs)
        mine, theirs = await self._both(lambda engine: engine.enqueue(jobs))
        # The words of a refusal are each engine's own; its code is not.
        assert [replace(receipt, text="") for receipt in mine] == [
            replace(receipt, text="") for receipt in theirs
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
        """Every page, each engine by its own cursor."""
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

    async def the(self, id: str) -> Job:
        """The whole job, which must exist."""
        job = await self.get(id)
        assert job is not None, f"job {id} is gone"
        return job

    async def agree(self) -> None:
        """Every job, count and list is the same in both, and nothing was counted wrong. Of
        thousands of jobs, all are compared as lists have them, and some hundreds one by one."""
        ids = list(self.ids)
        for id_ in ids[:: 1 + len(ids) // _ONE_BY_ONE]:
            job = await self.get(id_)
            if job is not None and job.state is State.WAITING:
                await self.waits(id_)
        for view in await self.queues():
            await self.flow(view.queue.name)
        assert await self.recount() == 0
        await self.find(JobFilter(), limit=max(7, len(self.ids) // 10))
        await self.tally(JobFilter(), "state")
        await self.overdue()
        await self.expired()
        await self.finished()

    def pair(self, lease: Lease) -> Lease:
        """The reference's lease for this one; a made-up one stands for itself."""
        return replace(lease, token=self._pairs.get((lease.id, lease.token), lease.token))

    async def _same(self, ask: Callable[[Engine], Awaitable[T]]) -> T:
        mine, theirs = await self._both(ask)
        assert mine == theirs
        return mine

    async def _both(self, ask: Callable[[Engine], Awaitable[T]]) -> tuple[T, T]:
        return await self._each(lambda: ask(self.engine), lambda: ask(self.reference))

    async def _each(
        self, engine: Callable[[], Awaitable[T]], reference: Callable[[], Awaitable[T]]
    ) -> tuple[T, T]:
        """Where the reference refuses a call, the engine must refuse it for the same reason."""
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
        """A token becomes the number of its lease, so that the wrong one of two is noticed."""
        token = job.token
        number = None if token is None else self._numbers.get((job.id, sign * token), token)
        return replace(job, seq=0, token=number)


async def find_all(engine: Engine, wanted: JobFilter, *, limit: int = 100) -> list[Job]:
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


def _differences(
    mine: Job | QueueView, theirs: Job | QueueView
) -> dict[str, tuple[object, object]]:
    return {
        name: (value, expected)
        for name in mine.__struct_fields__
        if (value := getattr(mine, name)) != (expected := getattr(theirs, name))
    }
