"""Reports every call of an engine to listeners: verb, time, answers by queue, and error.

The engine itself stays silent. The report follows the call and never changes its result.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

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
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved
from holdfast.engines.extras import Ability, UpkeepByPartition
from holdfast.engines.wrapper import EnqueuesDirectly, Wrapper
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.events import EngineCalled, Listeners, Tell

Answer = TypeVar("Answer")
Counted = Iterable[tuple[str, str]]
"""(queue, outcome) of each answer."""


class Observed(Wrapper):
    """See `Engine`. `tell` is called with an event after every call."""

    def __init__(self, engine: Engine, tell: Tell) -> None:
        super().__init__(engine)
        self._tell = tell if isinstance(tell, Listeners) else Listeners(tell)
        inner = self._engine
        self._direct = inner if isinstance(inner, EnqueuesDirectly) else None

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        """The upkeep of each partition is reported too."""
        found = super().find_extra(ability)
        if isinstance(found, UpkeepByPartition) and ability is UpkeepByPartition:
            return cast("Ability", _ObservedUpkeep(found, self._tell))
        return found

    async def open(self) -> None:
        await self._observe("open", self._engine.open())

    async def close(self) -> None:
        await self._observe("close", self._engine.close())

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        return await self._observe(
            "declare",
            self._engine.declare(queue, instead_of=instead_of),
            lambda written: [(queue.name, "declared" if written else "known")],
        )

    async def drop(self, name: str) -> None:
        await self._observe("drop", self._engine.drop(name), lambda _: [(name, "dropped")])

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        return await self._observe("queues", self._engine.queues(names=names, counts=counts))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        def outcomes(receipts: list[Receipt]) -> Counted:
            for job, receipt in zip(jobs, receipts, strict=True):
                yield job.queue, receipt.code or receipt.status

        return await self._observe("enqueue", self._engine.enqueue(jobs), outcomes, jobs)

    @property
    def is_direct(self) -> bool:
        """See `EnqueuesDirectly`. Listeners are told on the loop."""
        return self._direct is not None and self._direct.is_direct and not self._tell

    def enqueue_directly(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """See `EnqueuesDirectly`."""
        assert self._direct is not None
        return self._direct.enqueue_directly(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        return await self._observe(
            "lease",
            self._engine.lease(request),
            lambda leases: [(lease.job.queue, "leased") for lease in leases],
            request,
        )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        def outcomes(leases: list[Lease | None]) -> Counted:
            for renewal, lease in zip(renewals, leases, strict=True):
                yield renewal.lease.job.queue, "lost" if lease is None else "renewed"

        return await self._observe("renew", self._engine.renew(renewals), outcomes, renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        def outcomes(answers: list[Outcome]) -> Counted:
            for settlement, answer in zip(settlements, answers, strict=True):
                verdict = type(settlement.verdict).__name__.lower()
                outcome = verdict if answer is Outcome.SETTLED else answer
                yield settlement.lease.job.queue, outcome

        return await self._observe(
            "settle", self._engine.settle(settlements), outcomes, settlements
        )

    async def overdue(self, limit: int) -> Overdue:
        return await self._observe(
            "overdue",
            self._engine.overdue(limit),
            lambda found: [(lease.job.queue, "overdue") for lease in found.leases],
        )

    async def expired(self, limit: int) -> Expired:
        return await self._observe(
            "expired",
            self._engine.expired(limit),
            lambda found: [(job.queue, "expired") for job in found.jobs],
        )

    async def finished(self, limit: int) -> list[Job]:
        return await self._observe(
            "finished",
            self._engine.finished(limit),
            lambda jobs: [(job.queue, job.state) for job in jobs],
        )

    async def recount(self, limit: int) -> int:
        return await self._observe(
            "recount", self._engine.recount(limit), lambda count: [("", "mended")] * count
        )

    async def flow(self, queue: str, *, limit: int) -> Flow:
        return await self._observe("flow", self._engine.flow(queue, limit=limit))

    async def waits(self, id: str) -> Waits | None:
        return await self._observe("waits", self._engine.waits(id))

    async def get(self, id: str) -> Job | None:
        return await self._observe("get", self._engine.get(id))

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        return await self._observe("find", self._engine.find(wanted, limit=limit, after=after))

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        return await self._observe("tally", self._engine.tally(wanted, by, limit=limit))

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        act = type(amendment).__name__.lower()
        return await self._observe(
            "amend",
            self._engine.amend(wanted, amendment, limit=limit),
            lambda changed: [(wanted.queue or "", act)] * changed,
            (wanted, amendment),
        )

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        return await self._observe("load", self._engine.load(kind, after=after, limit=limit))

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        return await self._observe(
            "save", self._engine.save(records), lambda answers: [("", each) for each in answers]
        )

    async def _observe(
        self,
        verb: str,
        call: Awaitable[Answer],
        outcomes: Callable[[Answer], Counted] = lambda _: (),
        asked: Any = None,
    ) -> Answer:
        start = time.perf_counter()
        try:
            answer = await call
        except BaseException as error:
            self._tell(_failed(verb, _ms_since(start), error, asked))
            raise
        # Without listeners no event is created; answers are counted only on demand.
        if self._tell:
            self._tell(
                EngineCalled(
                    verb=verb,
                    duration_ms=_ms_since(start),
                    asked=asked,
                    answer=answer,
                    counted=lambda: outcomes(answer),
                )
            )
        return answer


class _ObservedUpkeep:
    def __init__(self, engine: UpkeepByPartition, tell: Tell) -> None:
        self._engine = engine
        self._tell = tell

    def lifecycles(self) -> Sequence[Engine]:
        return [Observed(each, self._tell) for each in self._engine.lifecycles()]


def _failed(verb: str, duration_ms: float, error: BaseException, asked: Any) -> EngineCalled:
    code = error.code if isinstance(error, HoldfastError) else type(error).__name__
    called = EngineCalled(verb=verb, duration_ms=duration_ms, error=code)
    if isinstance(error, OutcomeUnknown) and error.known and isinstance(asked, Sequence):
        # Callers get these answers and do not repeat them, so they are reported here.
        known = sorted(error.known.items())
        some, answer = [asked[at] for at, _ in known], [each for _, each in known]
        return replace(called, asked=some, answer=answer)
    return called


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
