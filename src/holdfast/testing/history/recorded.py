"""An engine that writes down what is asked of another one and what it answers.

It decides nothing and changes nothing; reads that move no job are passed on unrecorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from holdfast.core import limits
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
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved, Traits
from holdfast.testing.history.journal import Journal
from holdfast.testing.history.lines import stored

T = TypeVar("T")


class Recorded:
    """See `Engine`."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    async def open(self) -> None:
        await self._engine.open()

    async def close(self) -> None:
        await self._engine.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        return await self._told(
            "declare", queue, self._engine.declare(queue, instead_of=instead_of)
        )

    async def drop(self, name: str) -> None:
        await self._told("drop", name, self._engine.drop(name))

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        return await self._engine.queues(counts=counts)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._told("enqueue", jobs, self._engine.enqueue(jobs))

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        return await self._told("lease", request, self._engine.lease(request))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return await self._told("renew", renewals, self._engine.renew(renewals))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self._told("settle", settlements, self._engine.settle(settlements))

    async def overdue(self, limit: int) -> Overdue:
        return await self._told("overdue", limit, self._engine.overdue(limit))

    async def expired(self, limit: int) -> Expired:
        return await self._told("expired", limit, self._engine.expired(limit))

    async def finished(self, limit: int) -> list[Job]:
        return await self._engine.finished(limit)

    async def recount(self, limit: int) -> int:
        return await self._told("recount", limit, self._engine.recount(limit))

    async def flow(self, queue: str, *, limit: int) -> Flow:
        return await self._engine.flow(queue, limit=limit)

    async def waits(self, id: str) -> Waits | None:
        return await self._engine.waits(id)

    async def get(self, id: str) -> Job | None:
        return await self._engine.get(id)

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        return await self._engine.find(wanted, limit=limit, after=after)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        return await self._engine.tally(wanted, by, limit=limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        call = self._engine.amend(wanted, amendment, limit=limit)
        return await self._told("amend", wanted, call, amendment)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        return await self._engine.load(kind, after=after, limit=limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        return await self._engine.save(records)

    async def _told(
        self, op: str, argument: object, call: Awaitable[T], amendment: Amendment | None = None
    ) -> T:
        number = self._journal.begin(op, argument, amendment)
        try:
            answer = await call
        except BaseException as error:
            self._journal.end(number, op, argument, error)
            raise
        self._journal.end(number, op, argument, answer)
        return answer


async def dump(engine: Engine, journal: Journal) -> int:
    """Write down every job that is in the store, and what it counts itself; how many jobs."""
    after: int | None = None
    total = 0
    while True:
        page = await engine.find(JobFilter(), limit=limits.PAGE_MAX, after=after)
        for job in page.jobs:
            journal.note_job("dump", stored(job))
        total += len(page.jobs)
        after = page.after
        if after is None:
            break
    for view in await engine.queues():
        journal.note(
            "counts",
            queue=view.queue.name,
            waiting=view.ready + view.delayed + view.blocked,
            leased=view.leased,
            done=view.done,
            dead=view.dead,
            cancelled=view.cancelled,
            exact=not view.estimated,
        )
        for slot in (await engine.flow(view.queue.name, limit=limits.PAGE_MAX)).slots:
            journal.note("slot", limit=slot.limit, key=slot.key, used=slot.used)
    journal.note("dumped", jobs=total)
    return total
