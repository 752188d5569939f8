"""An engine as one caller may use it: each verb within scopes, prefix, rights and quotas.

REST and the verbs of the remote engine both go through it, so that no handler has to think of who
asks. What a caller may not see is as if it were not there; what they may not do is Forbidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
    Tally,
    TallyBy,
)
from holdfast.core.verdict import (
    Amendment,
    Complete,
    Move,
    Outcome,
    Release,
    Settlement,
)
from holdfast.engines.base import ANY, Engine, Examination, Expired, Known, Overdue, Saved, Traits
from holdfast.errors import Forbidden, HoldfastError, OutcomeUnknown
from holdfast.server import audit
from holdfast.server.audit import Act, Audit
from holdfast.server.callers import Caller, Scope
from holdfast.server.quotas import Charged, Quotas
from holdfast.server.reach import Reach, is_modest, is_own_cancel
from holdfast.server.records import Shelf
from holdfast.upkeep import wall_ms

Answer = TypeVar("Answer")

_P, _C, _O = Scope.PRODUCE, Scope.CONSUME, Scope.OPERATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is asked and told beside the engine. `alive` raises when the caller's token is good no
    longer, `store` is what the engine stands on, and `peer` where the caller is."""

    alive: Callable[[], Awaitable[None]] | None = None
    quotas: Quotas | None = None
    audit: Audit | None = None
    store: Any = None
    peer: str = ""


class Guarded:
    """See `Engine`. `engine` is the application's, and stays open when this is closed."""

    def __init__(self, engine: Engine, caller: Caller, watch: Watch | None = None) -> None:
        self._engine = engine
        self._caller = caller
        self._watch = watch or Watch()
        self._alive = self._watch.alive
        self._reach = Reach(engine, caller)
        self._shelf = Shelf(engine, caller, wall_ms)

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def examine(self, *, deep: bool = False) -> Examination:
        """Those who operate see all; others the engine's clock."""
        await self._need(Scope.KNOWN)
        able = getattr(self._watch.store, "examine", None)
        if able is None:
            return Examination(now=wall_ms())
        whole = self._caller.may(_O) and not self._caller.prefix
        found: Examination = await able(deep=deep and whole)
        return found if whole else Examination(now=found.now)

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        await self._need(Scope.KNOWN)
        self._reach.check_queue(queue.name)
        if queue.dead_queue is not None:
            self._reach.check_queue(queue.dead_queue)
        declaring = self._engine.declare
        operates = self._caller.may(_O)
        if is_modest(queue, instead_of) and (instead_of is None or not operates):
            if instead_of is not None or queue.limits:
                self._must(_C, "setting the limits of tasks")
            return await declaring(queue, instead_of=instead_of)
        self._must(_O, "changing a queue")
        on = audit.about_queue(queue, instead_of)
        return await self._act("queue.declare", on, lambda: declaring(queue, instead_of=instead_of))

    async def drop(self, name: str) -> None:
        await self._need(Scope.ADMIN)
        self._reach.check_queue(name)
        await self._act("queue.drop", name, lambda: self._engine.drop(name))

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        await self._need(Scope.KNOWN)
        views = await self._engine.queues(counts=counts)
        if not self._caller.prefix:
            return views
        return [view for view in views if self._caller.owns(view.queue.name)]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await self._need(_P)
        refused = {} if self._reach.is_whole else await self._reach.unwelcome(jobs)
        if not refused:
            return await self._enqueue(jobs)
        good = [job for at, job in enumerate(jobs) if at not in refused]
        answers = iter(await self._enqueue(good) if good else ())
        return [refused[at] if at in refused else next(answers) for at in range(len(jobs))]

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        await self._need(_C)
        if self._caller.prefix:
            for queue in request.queues:
                self._reach.check_queue(queue)
            others = await self._reach.others(request.ids)
            if others:
                own = tuple(id_ for id_ in request.ids if id_ not in others)
                if not own:
                    return []
                request = replace(request, ids=own)
        leases = await self._engine.lease(request)
        try:
            if leases and request.wait_ms and self._alive is not None:
                await self._alive()
            if self._caller.prefix and request.ids:
                # One that was moved away after it was looked at.
                strays = [each for each in leases if not self._caller.owns(each.job.queue)]
                if strays:
                    await self._give_back(strays)
                    leases = [each for each in leases if each not in strays]
        except BaseException:
            # Whoever asked has left, or is not let in any more: nobody else has them.
            await asyncio.shield(self._give_back(leases))
            raise
        return leases

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        await self._need(_C)
        if not self._caller.prefix:
            return await self._engine.renew(renewals)
        others = await self._reach.others([each.lease.id for each in renewals])
        own = [each for each in renewals if each.lease.id not in others]
        answers = iter(await self._engine.renew(own) if own else ())
        return [None if each.lease.id in others else next(answers) for each in renewals]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        await self._need(_C)
        known = {} if self._reach.is_whole else await self._reach.unsettled(settlements)
        if not known:
            return await self._settle(settlements)
        good = [each for at, each in enumerate(settlements) if at not in known]
        answers = iter(await self._settle(good) if good else ())
        return [known[at] if at in known else next(answers) for at in range(len(settlements))]

    async def overdue(self, limit: int) -> Overdue:
        await self._need_whole(_C)
        return await self._engine.overdue(limit)

    async def expired(self, limit: int) -> Expired:
        await self._need_whole(_C)
        return await self._engine.expired(limit)

    async def finished(self, limit: int) -> list[Job]:
        await self._need_whole(_O)
        return await self._engine.finished(limit)

    async def recount(self, limit: int) -> int:
        await self._need_whole(_O)
        return await self._engine.recount(limit)

    async def flow(self, queue: str, *, limit: int) -> Flow:
        await self._need(_C)
        self._reach.check_queue(queue)
        return await self._engine.flow(queue, limit=limit)

    async def waits(self, id: str) -> Waits | None:
        await self._need(Scope.KNOWN)
        if self._caller.prefix and await self._reach.others([id]):
            return None
        return await self._engine.waits(id)

    async def get(self, id: str) -> Job | None:
        await self._need(Scope.KNOWN)
        job = await self._engine.get(id)
        if job is None or not self._caller.prefix or self._caller.owns(job.queue):
            return job
        return None

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        await self._need(Scope.KNOWN)
        self._reach.check_filter(wanted)
        page = await self._engine.find(wanted, limit=limit, after=after)
        if not self._caller.prefix or wanted.queue is not None:
            return page
        return replace(page, jobs=tuple(job for job in page.jobs if self._caller.owns(job.queue)))

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        await self._need(Scope.KNOWN)
        self._reach.check_filter(wanted)
        if self._caller.prefix and wanted.queue is None:
            others = await self._reach.others(wanted.ids or ())
            own = tuple(id_ for id_ in wanted.ids or () if id_ not in others)
            wanted = replace(wanted, ids=own)
        return await self._engine.tally(wanted, by, limit=limit)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        await self._need(_C)
        if not is_own_cancel(wanted, amendment):
            self._must(_O, "changing jobs")
        if isinstance(amendment, Move):
            self._reach.check_queue(amendment.queue)
        if wanted.queue is not None:
            self._reach.check_queue(wanted.queue)
        what = f"jobs.{type(amendment).__name__.lower()}"
        on = audit.about_jobs(wanted, amendment)
        return await self._act(what, on, lambda: self._amend(wanted, amendment, limit))

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        await self._need(Scope.KNOWN)
        return await self._shelf.load(kind, after=after, limit=limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        await self._need(Scope.KNOWN)
        acts = await self._shelf.acts(records)
        if not acts:
            return await self._save(records)
        what = f"{acts[0].kind}.{'remove' if acts[0].value is None else 'save'}"
        return await self._act(what, audit.about_records(acts), lambda: self._save(records))

    async def _save(self, records: Sequence[Record]) -> list[Saved]:
        await self._shelf.check_save(records)
        return await self._engine.save(records)

    async def _need(self, scope: Scope) -> None:
        if self._alive is not None:
            await self._alive()
        if scope not in self._caller.scopes:
            raise Forbidden(f"this needs the scope {scope.value}")

    def _must(self, scope: Scope, what: str) -> None:
        if scope not in self._caller.scopes:
            raise Forbidden(f"{what} needs the scope {scope.value}")

    async def _need_whole(self, scope: Scope) -> None:
        await self._need(scope)
        if self._caller.prefix:
            raise Forbidden("upkeep is for a whole namespace: it needs a token without a prefix")

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        quotas = self._watch.quotas
        if quotas is None:
            return await self._engine.enqueue(jobs)
        charged = await quotas.charge(jobs)
        try:
            receipts = await self._engine.enqueue(jobs)
        except OutcomeUnknown:
            raise
        except HoldfastError:
            quotas.refund_all(charged)
            raise
        finally:
            quotas.ended(charged)
        quotas.refund(jobs, receipts, charged)
        return receipts

    async def _settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Follow-up jobs are never refused for a quota, as they are not for a full queue, but they
        count for it."""
        quotas = self._watch.quotas
        charged: dict[int, Charged] = {}
        if quotas is not None:
            for at, each in enumerate(settlements):
                if isinstance(each.verdict, Complete) and each.verdict.then:
                    charged[at] = await quotas.charge(each.verdict.then, anyway=True)
        if quotas is None or not charged:
            return await self._engine.settle(settlements)
        try:
            outcomes = await self._engine.settle(settlements)
        finally:
            for given in charged.values():
                quotas.ended(given)
        for at, given in charged.items():
            if outcomes[at] is not Outcome.SETTLED:
                quotas.refund_all(given)
        return outcomes

    async def _amend(self, wanted: JobFilter, amendment: Amendment, limit: int) -> int:
        changed = 0
        for part in await self._reach.parts(wanted, amendment):
            if changed >= limit:
                break
            try:
                changed += await self._engine.amend(part, amendment, limit=limit - changed)
            except HoldfastError as error:
                if not changed:
                    raise
                raise OutcomeUnknown(f"{changed} were changed, and then: {error}") from error
        return changed

    async def _act(self, what: str, on: str, make: Callable[[], Awaitable[Answer]]) -> Answer:
        """An operator's act: written down before, and after with what came of it."""
        book = self._watch.audit
        if book is None:
            return await make()
        who = self._caller
        act = Act(at=0, who=who.name, token=who.token, peer=self._watch.peer, what=what, on=on)
        async with book.doing(act) as noted:
            answer = await make()
            is_count = isinstance(answer, int) and not isinstance(answer, bool)
            noted.changed = int(answer) if is_count else None  # type: ignore[call-overload]
        return answer

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        verdict = Release("it is not for this caller", unstarted=True)
        await self._engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])
