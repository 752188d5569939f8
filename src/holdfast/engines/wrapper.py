"""Engines around engines: `Wrapper` forwards every verb and extra to the engine inside.

A composition derives from it and overrides what it changes, so a new verb is added here once.
Every wrapper makes sure that the traits of the engine inside are enforced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from holdfast.core import checks
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
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.extras import Ability, ListsRows, Transactional, extra
from holdfast.engines.support import Support, has_gaps
from holdfast.errors import OutcomeUnknown


def enforced(engine: Engine) -> Engine:
    """The engine wrapped so that calls that need missing traits are refused; an engine with all
    traits is returned unchanged.
    """
    if isinstance(engine, Wrapper) or not has_gaps(engine.traits):
        return engine
    return Supported(engine)


@runtime_checkable
class EnqueuesDirectly(Protocol):
    """Can enqueue from a thread that may block, past the event loop.

    This is not one of the extras, which every wrapper forwards: the wrapper's own `enqueue` would
    be left out. A wrapper has these methods itself, or calls go over the loop.
    """

    @property
    def is_direct(self) -> bool:
        """False while calls must go over the loop."""

    def enqueue_directly(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Enqueue one batch, and block until it is durable."""


class Wrapper:
    """An engine that passes every call on to the engine inside; see `Engine` for the verbs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = enforced(engine)

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """See `extras.extra`."""
        return extra(self._engine, ability)

    async def open(self) -> None:
        await self._engine.open()

    async def close(self) -> None:
        await self._engine.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        return await self._engine.declare(queue, instead_of=instead_of)

    async def drop(self, name: str) -> None:
        await self._engine.drop(name)

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        return await self._engine.queues(names=names, counts=counts)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._engine.enqueue(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        return await self._engine.lease(request)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return await self._engine.renew(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self._engine.settle(settlements)

    async def overdue(self, limit: int) -> Overdue:
        return await self._engine.overdue(limit)

    async def expired(self, limit: int) -> Expired:
        return await self._engine.expired(limit)

    async def finished(self, limit: int) -> list[Job]:
        return await self._engine.finished(limit)

    async def recount(self, limit: int) -> int:
        return await self._engine.recount(limit)

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
        return await self._engine.amend(wanted, amendment, limit=limit)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        return await self._engine.load(kind, after=after, limit=limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        return await self._engine.save(records)


async def enqueue_supported(
    support: Support,
    jobs: Sequence[NewJob],
    enqueue: Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]],
) -> list[Receipt]:
    """An unsupported job is REFUSED like any other invalid one; the others are enqueued."""
    errors = support.job_errors(jobs)
    if not errors:
        return await enqueue(jobs)
    answers = {at: checks.refusal(jobs[at].id, error) for at, error in errors.items()}
    good = [at for at in range(len(jobs)) if at not in errors]
    try:
        receipts = await enqueue([jobs[at] for at in good]) if good else []
    except OutcomeUnknown as error:
        answers |= {good[at]: receipt for at, receipt in error.known.items()}
        raise OutcomeUnknown(str(error), known=answers) from error
    answers |= zip(good, receipts, strict=True)
    return [answers[at] for at in range(len(jobs))]


class Supported(Wrapper):
    """An engine with missing traits: a call that needs one is Unsupported and does not reach it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._support = Support(engine.traits)

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """Lists without payloads, and calls inside a transaction of the caller, are checked too."""
        found = super().find_extra(ability)
        if isinstance(found, Transactional) and ability is Transactional:
            return cast("Ability", _SupportedTransactional(found, self._support))
        if isinstance(found, ListsRows) and ability is ListsRows:
            return cast("Ability", _SupportedRows(found, self._support))
        return found

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._support.check_queue(queue)
        return await self._engine.declare(queue, instead_of=instead_of)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:

        async def enqueue(supported: Sequence[NewJob]) -> list[Receipt]:
            return await self._engine.enqueue(supported)

        return await enqueue_supported(self._support, jobs, enqueue)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self._support.check_request(request)
        return await self._engine.lease(request)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._support.check_renewals(renewals)
        return await self._engine.renew(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._support.check_settlements(settlements)
        return await self._engine.settle(settlements)

    async def waits(self, id: str) -> Waits | None:
        self._support.check_search("looking up what a job waits for")
        return await self._engine.waits(id)

    async def get(self, id: str) -> Job | None:
        self._support.check_search("reading a job by its id")
        return await self._engine.get(id)

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self._support.check_find(wanted)
        return await self._engine.find(wanted, limit=limit, after=after)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._support.check_search("counting jobs by value")
        self._support.check_filter(wanted)
        return await self._engine.tally(wanted, by, limit=limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._support.check_amendment(amendment)
        self._support.check_filter(wanted)
        return await self._engine.amend(wanted, amendment, limit=limit)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._support.check_records()
        return await self._engine.load(kind, after=after, limit=limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._support.check_records()
        return await self._engine.save(records)


class _SupportedRows:
    def __init__(self, engine: ListsRows, support: Support) -> None:
        self._engine = engine
        self._support = support

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self._support.check_find(wanted)
        return await self._engine.find_rows(wanted, limit=limit, after=after)


class _SupportedTransactional:
    def __init__(self, engine: Transactional, support: Support) -> None:
        self._engine = engine
        self._support = support

    def within(self, connection: Any) -> Any:
        return _SupportedTransaction(self._engine.within(connection), self._support)


class _SupportedTransaction:
    """Enqueues and settles inside a transaction of the caller, blocking or async as the engine
    does. One unsupported job raises Unsupported for its whole call."""

    def __init__(self, transaction: Any, support: Support) -> None:
        self._transaction = transaction
        self._support = support

    def enqueue(self, jobs: Sequence[NewJob]) -> Any:
        for error in self._support.job_errors(jobs).values():
            raise error
        return self._transaction.enqueue(jobs)

    def settle(self, settlements: Sequence[Settlement]) -> Any:
        self._support.check_settlements(settlements)
        return self._transaction.settle(settlements)
