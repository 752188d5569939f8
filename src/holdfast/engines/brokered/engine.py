"""BrokeredEngine: an engine made of a ledger, which stores the jobs, and a broker, which carries
hints about them between processes.

Every verb, trait and extra is the ledger's. No call waits for the broker, and none fails because
of it: what a hint does not find, the ledger's own polling does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import cast

from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Receipt, State, Status
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
)
from holdfast.core.workers import addressee
from holdfast.engines.base import Engine
from holdfast.engines.broker import Broker
from holdfast.engines.brokered.delivery import Deliveries
from holdfast.engines.extras import Ability, Brokered, Wakeable, extra
from holdfast.engines.support import has_gaps
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import ConfigError, EngineError, OutcomeUnknown

_UNKNOWN = (OutcomeUnknown, asyncio.CancelledError)
"""After these the call may have taken effect."""


class _LedgerCall:
    """A call of the ledger; `changed` if it may have made a job due."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed = False


_CALL: ContextVar[_LedgerCall | None] = ContextVar("_CALL", default=None)


class BrokeredEngine(Wrapper):
    """See `Engine`. This engine opens and closes the ledger and the broker."""

    def __init__(self, ledger: Engine, broker: Broker, *, namespace: str = "default") -> None:
        super().__init__(ledger)
        wakeable = extra(ledger, Wakeable)
        if wakeable is None or has_gaps(ledger.traits) or not ledger.traits.ordered:
            raise ConfigError(
                f"the {ledger.traits.name} engine cannot be the ledger of a broker: use a SQLite"
                " file or a PostgreSQL database"
            )
        self._wakeable = wakeable
        self._broker = broker
        self._namespace = namespace
        self._deliveries = Deliveries(ledger, broker)
        self._known: set[str] = set()
        """Queues of the ledger that leases have waited for."""
        wakeable.on_change(self._on_change)

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        if cast("object", ability) is Brokered:
            return cast("Ability", self)
        return super().find_extra(ability)

    def broker(self) -> Broker:
        return self._broker

    async def open(self) -> None:
        await self._engine.open()
        try:
            await self._broker.open(self._namespace, self._wakeable.wake)
        except BaseException:
            await self._engine.close()
            raise

    async def close(self) -> None:
        await self._deliveries.close()
        await self._broker.close()
        await self._engine.close()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        with _watched():
            try:
                receipts = await self._engine.enqueue(jobs)
            except _UNKNOWN:
                self._enqueued(jobs)
                raise
        self._enqueued(
            [
                job
                for job, receipt in zip(jobs, receipts, strict=True)
                if receipt.status is Status.NEW
                # An earlier job with the same key may have got another due time.
                or (receipt.status is Status.DUPLICATE and job.key_policy != "keep")
            ]
        )
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Lease by queue, not by the ids in messages: the ledger keeps the order of a queue."""
        own = [] if request.dead else [each for each in request.queues if addressee(each)]
        if request.wait_ms:
            self._broker.listen(await self._existing(request.queues))
        hinted = self._broker.received(own) if own else []
        leases = await self._engine.lease(request)
        taken = [lease.id for lease in leases if addressee(lease.job.queue) is not None]
        if hinted and len(leases) < request.limit:
            # Every job that is due was leased: the others are finished, leased, moved or delayed.
            taken += hinted
        if taken:
            self._broker.acknowledge(taken)
        return leases

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        with _watched() as call:
            try:
                outcomes = await self._engine.settle(settlements)
            except _UNKNOWN:
                self._settled(settlements)
                raise
        if call.changed:
            self._settled(
                [
                    settlement
                    for settlement, outcome in zip(settlements, outcomes, strict=True)
                    if outcome is Outcome.SETTLED
                ]
            )
        return outcomes

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        with _watched():
            try:
                count = await self._engine.amend(wanted, amendment, limit=limit)
            except _UNKNOWN:
                self._amended(wanted, amendment, limit)
                raise
        if count:
            self._amended(wanted, amendment, count)
        return count

    async def _existing(self, queues: Sequence[str]) -> list[str]:
        """Those of the queues that the ledger has: a caller can name any others, and the broker
        would declare a durable queue for each that is a worker's."""
        unknown = [name for name in queues if name not in self._known]
        if unknown:
            # The lease itself waits, or reports, if the ledger cannot be reached.
            with contextlib.suppress(EngineError):
                views = await self._engine.queues(names=unknown, counts=False)
                self._known.update(view.queue.name for view in views)
        return [name for name in queues if name in self._known]

    def _on_change(self) -> None:
        """The ledger tells that a job may be due: the current call says in which queues."""
        call = _CALL.get()
        if call is None:
            self._broker.notify(())
        else:
            call.changed = True

    def _enqueued(self, jobs: Sequence[NewJob]) -> None:
        if jobs:
            self._broker.notify({job.queue for job in jobs})
            self._deliveries.enqueued(jobs)

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        queues: set[str] = set()
        forwarded: list[str] = []
        everywhere = False
        for settlement in settlements:
            job = settlement.lease.job
            match settlement.verdict:
                case Retry() | Release():
                    queues.add(job.queue)
                case Forward(queue=target):
                    queues |= {job.queue, target}
                    if addressee(target) is not None:
                        forwarded.append(job.id)
                case Complete(then=then):
                    # The ledger does not say whether it also freed a group, a limit or children.
                    everywhere = everywhere or not then
                    queues.update(each.queue for each in then)
                    self._deliveries.enqueued(then)
                case Bury():
                    everywhere = True
        if everywhere:
            self._broker.notify(())
        elif queues:
            self._broker.notify(queues)
        if forwarded:
            self._deliveries.waiting(JobFilter(ids=tuple(forwarded), states=(State.WAITING,)))

    def _amended(self, wanted: JobFilter, amendment: Amendment, count: int) -> None:
        match amendment:
            case Delete() if wanted.states and all(state.finished for state in wanted.states):
                return
            case Retime() | Expedite() | Edit() if wanted.queue is not None:
                self._broker.notify((wanted.queue,))
            case _:
                # It may have freed groups, limits or children anywhere.
                self._broker.notify(())
        match amendment:
            case Move(queue=target) if addressee(target) is not None:
                moved = JobFilter(ids=wanted.ids, queue=target, states=(State.WAITING,))
                self._deliveries.waiting(moved, count)
            case Redrive() if wanted.ids is not None:
                self._deliveries.waiting(JobFilter(ids=wanted.ids, states=(State.WAITING,)))
            case Redrive() if wanted.queue is not None and addressee(wanted.queue) is not None:
                redriven = JobFilter(queue=wanted.queue, states=(State.WAITING,))
                self._deliveries.waiting(redriven, count)
            case _:
                pass


@contextlib.contextmanager
def _watched() -> Iterator[_LedgerCall]:
    """Learn whether the ledger's calls in this block may have made a job due."""
    call = _LedgerCall()
    token = _CALL.set(call)
    try:
        yield call
    finally:
        _CALL.reset(token)
