"""Group commit: calls that arrive while one of their kind is in flight go together in the next.

An idle engine is called at once and no timer is set. A caller's batch is never divided, so one
call is still one transaction. A caller that goes away harms nobody: what it asked to enqueue or
settle may still happen, and what was leased for it is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from msgspec.structs import replace

from holdfast.core import checks
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
from holdfast.core.verdict import Amendment, Outcome, Release, Settlement
from holdfast.engines.base import ANY, Engine, Expired, Known, Overdue, Saved, Traits
from holdfast.errors import HoldfastError, OutcomeUnknown, UsageError

_log = logging.getLogger("holdfast.coalesced")

_COMPANY_MAX = 100
"""A call at least this big gains nothing from company; alone it may use another connection."""

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class Coalesced:
    """See `Engine`; every other call passes straight through."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        batch_max = engine.traits.batch_max
        self._enqueues = _Merged[NewJob, Receipt](engine.enqueue, batch_max)
        self._settles = _Merged[Settlement, Outcome](engine.settle, batch_max)
        self._renews = _Merged[Renewal, Lease | None](engine.renew, batch_max)
        self._leases: dict[LeaseRequest, _Shared] = {}
        self._apart: set[LeaseRequest] = set()
        """Requests that met the batch of a strict group, which is for one caller."""
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    async def open(self) -> None:
        await self._engine.open()

    async def close(self) -> None:
        """What was asked before is answered before."""
        for drain in (
            self._enqueues.drain,
            self._renews.drain,
            *(line.drain for line in self._leases.values()),
        ):
            await drain()
        while self._releases:
            await asyncio.wait(self._releases)
        await self._settles.drain()
        await self._engine.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        return await self._engine.declare(queue, instead_of=instead_of)

    async def drop(self, name: str) -> None:
        await self._engine.drop(name)

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        return await self._engine.queues(counts=counts)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._enqueues.ask(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Equal requests that do not wait go together, and share what comes in their order."""
        if request.wait_ms or request.ids:
            return await self._engine.lease(request)
        checks.check_request(request)
        alike = replace(request, limit=1)
        line = self._leases.get(alike)
        if line is None:
            line = self._leases[alike] = _Shared(
                self._engine, alike, self._apart, self._let_go, lambda: self._leases.pop(alike)
            )
        return await line.ask([None] * request.limit)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return await self._renews.ask(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self._settles.ask(settlements)

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

    def _let_go(self, leases: list[Lease]) -> None:
        """Release what nobody is there to work on; failing that, the leases lapse."""
        task = asyncio.create_task(self._release(leases))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, leases: list[Lease]) -> None:
        released = [Settlement(lease=lease, verdict=Release("the caller left")) for lease in leases]
        try:
            await self._settles.ask(released)
        except HoldfastError as error:
            _log.warning("%d leases of a caller that left will lapse: %s", len(leases), error)


class _Call(Generic[Ask, Answer]):
    """One caller's batch and where its answers go."""

    __slots__ = ("answer", "asks")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks
        self.answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    @property
    def left(self) -> bool:
        """Its caller was cancelled."""
        return self.answer.done()

    def fail(self, error: Exception) -> None:
        if not self.left:
            self.answer.set_exception(error)

    def succeed(self, answers: list[Answer]) -> None:
        if not self.left:
            self.answer.set_result(answers)


class _Line(Generic[Ask, Answer]):
    """Calls alike: at most one in flight, the others waiting to go together."""

    def __init__(self, batch_max: int) -> None:
        self._batch_max = batch_max
        self._waiting: list[_Call[Ask, Answer]] = []
        self._pump: asyncio.Task[None] | None = None

    async def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        call: _Call[Ask, Answer] = _Call(asks)
        self._waiting.append(call)
        if self._pump is None or self._pump.done():
            # A task of its own, so that no caller's cancellation can break the others' call.
            self._pump = asyncio.create_task(self._run())
        try:
            return await call.answer
        except asyncio.CancelledError:
            answer = call.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The answer came just before the caller could take it.
                self._forgo(answer.result())
            raise

    async def drain(self) -> None:
        while self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])

    async def _run(self) -> None:
        group: list[_Call[Ask, Answer]] = []
        try:
            while group := self._take():
                await self._serve(group)
        finally:
            self._pump = None
            # Only when the loop itself is ending is anybody left here.
            for call in (*group, *self._waiting):
                call.answer.cancel()
            self._waiting.clear()
            self._rest()

    def _take(self) -> list[_Call[Ask, Answer]]:
        """Whole calls, in their order, as many as one batch may hold."""
        waiting = [call for call in self._waiting if not call.left]
        total, count = 0, 0
        for call in waiting:
            total += len(call.asks)
            if count and total > self._batch_max:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _serve(self, group: list[_Call[Ask, Answer]]) -> None:
        """Answer every call of the group."""
        raise NotImplementedError

    def _forgo(self, answers: list[Answer]) -> None:
        """Answers that nobody will take."""

    def _rest(self) -> None:
        """Nothing is in flight and nothing waits."""


class _Merged(_Line[Ask, Answer]):
    """Batches laid end to end, and their answers taken apart again."""

    def __init__(
        self, send: Callable[[Sequence[Ask]], Awaitable[list[Answer]]], batch_max: int
    ) -> None:
        super().__init__(batch_max)
        self._send = send

    async def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        if len(asks) >= _COMPANY_MAX:
            return await self._send(asks)
        return await super().ask(asks)

    async def _serve(self, group: list[_Call[Ask, Answer]]) -> None:
        try:
            answers = await self._send([ask for call in group for ask in call.asks])
        except UsageError as error:
            if len(group) == 1:
                group[0].fail(error)
                return
            # One of them is at fault and nothing was written: each is told of its own call alone.
            for call in group:
                await self._serve([call])
        except OutcomeUnknown as error:
            _share(group, error)
        except Exception as error:  # noqa: BLE001 (it is raised again in every caller)
            for call in group:
                call.fail(error)
        else:
            at = 0
            for call in group:
                call.succeed(answers[at : at + len(call.asks)])
                at += len(call.asks)


def _share(group: list[_Call[Ask, Answer]], error: OutcomeUnknown) -> None:
    """Who asked for nothing but what is known has its answers."""
    at = 0
    for call in group:
        count = len(call.asks)
        known = {n: error.known[at + n] for n in range(count) if at + n in error.known}
        if len(known) == count:
            call.succeed([known[n] for n in range(count)])
        else:
            call.fail(OutcomeUnknown(str(error), known=known))
        at += count


class _Shared(_Line[None, Lease]):
    """Lease requests that differ in nothing but how many they ask for.

    The batch of a strict group is not divided among callers, who would run it side by side. From
    the first that would have been, such requests go one by one.
    """

    def __init__(
        self,
        engine: Engine,
        alike: LeaseRequest,
        apart: set[LeaseRequest],
        let_go: Callable[[list[Lease]], None],
        rest: Callable[[], object],
    ) -> None:
        super().__init__(engine.traits.batch_max)
        self._engine = engine
        self._alike = alike
        self._apart = apart
        self._let_go = let_go
        self._when_idle = rest

    async def _serve(self, group: list[_Call[None, Lease]]) -> None:
        total = sum(len(call.asks) for call in group)
        try:
            leases = await self._engine.lease(replace(self._alike, limit=total))
        except Exception as error:  # noqa: BLE001 (it is raised again in every caller)
            for call in group:
                call.fail(error)
            return
        for call in group:
            if not call.left:
                share, leases = leases[: len(call.asks)], leases[len(call.asks) :]
                call.succeed(share)
                leases = self._after_batch(share, leases)
        self._forgo(leases)

    def _take(self) -> list[_Call[None, Lease]]:
        calls = super()._take()
        if self._alike in self._apart:
            self._waiting = calls[1:] + self._waiting
            return calls[:1]
        return calls

    def _after_batch(self, share: list[Lease], rest: list[Lease]) -> list[Lease]:
        """What is left for others of what comes after this share."""
        batch = _batch(share[-1]) if share else None
        count = 0
        while batch is not None and count < len(rest) and _batch(rest[count]) == batch:
            count += 1
        if count:
            self._apart.add(self._alike)
            self._forgo(rest[:count])
        return rest[count:]

    def _forgo(self, answers: list[Lease]) -> None:
        if answers:
            self._let_go(answers)

    def _rest(self) -> None:
        self._when_idle()


def _batch(lease: Lease) -> tuple[str, str] | None:
    job = lease.job
    return None if job.group is None else (job.queue, job.group)
