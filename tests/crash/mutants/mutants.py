"""Engines with one mistake each, made of a real one. Each mistake was shipped by somebody.

A mutant keeps what it should have written in its own memory, or does in two transactions what
belongs in one; a restart of the engine between them is the crash that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.lifecycle import is_reaped
from holdfast.core.limits import Limit
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Receipt,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import (
    Bury,
    Complete,
    Delete,
    Edit,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine, Overdue
from holdfast.testing.clock import ManualClock

Judge = Callable[..., Outcome | None]


def settle_without_token(judge: Judge) -> Judge:
    """The engine asks whether a verdict fits the job, but not whose lease it is."""

    def judge_by_id(
        job: Job | None, token: int, verdict: Verdict, *, lapsed: bool
    ) -> Outcome | None:
        held = token if job is None or job.token is None else job.token
        return judge(job, held, verdict, lapsed=lapsed)

    return judge_by_id


def reaper_without_guard(judge: Judge) -> Judge:
    """The reaper's verdict is applied to whatever has become of the job since it looked."""

    def judge_workers(
        job: Job | None, token: int, verdict: Verdict, *, lapsed: bool
    ) -> Outcome | None:
        if job is not None and is_reaped(verdict):
            return None
        return judge(job, token, verdict, lapsed=lapsed)

    return judge_workers


class Mutant:
    """Passes on every call that a mutant does not spoil."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def remove(self, id_: str) -> None:
        await self.engine.amend(JobFilter(ids=(id_,)), Delete(force=True), limit=1)


class AckBeforeCommit(Mutant):
    """Answers an enqueue when it is in its buffer, and writes the buffer a little later."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine, clock)
        self._buffer: list[NewJob] = []

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._buffer += jobs
        return [Receipt(id=job.id, status=Status.NEW) for job in jobs]

    async def overdue(self, limit: int) -> Overdue:
        jobs, self._buffer = self._buffer, []
        await self.engine.enqueue(jobs)
        return await self.engine.overdue(limit)


class PopDelete(Mutant):
    """Takes a job out of the store when it is leased, and puts it back when it is settled."""

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        leases = await self.engine.lease(request)
        for lease in leases:
            await self.remove(lease.id)
        return leases

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return [renewal.lease for renewal in renewals]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        for settlement in settlements:
            await self.engine.enqueue([as_new(settlement.lease.job)])
            [lease] = await self.engine.lease(LeaseRequest(ids=(settlement.lease.id,)))
            await self.engine.settle([replace(settlement, lease=lease)])
        return [Outcome.SETTLED] * len(settlements)


class TokenReset(Mutant):
    """The token is the number of the attempt, and so comes again after a release."""

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        leases = await self.engine.lease(request)
        return [replace(lease, token=lease.job.attempt) for lease in leases]

    async def overdue(self, limit: int) -> Overdue:
        overdue = await self.engine.overdue(limit)
        leases = tuple(replace(lease, token=lease.job.attempt) for lease in overdue.leases)
        return replace(overdue, leases=leases)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        real = [replace(each, lease=await self._real(each.lease)) for each in renewals]
        answers = await self.engine.renew(real)
        return [lease and replace(lease, token=lease.job.attempt) for lease in answers]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        real = [replace(each, lease=await self._real(each.lease)) for each in settlements]
        return await self.engine.settle(real)

    async def _real(self, lease: Lease) -> Lease:
        job = await self.engine.get(lease.id)
        same = job is not None and job.token is not None and job.attempt == lease.token
        return replace(lease, token=job.token if same and job else 0)


class AttemptCountedAtFailure(Mutant):
    """A worker that dies has not failed, so its attempt does not count."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self.engine.settle(
            [
                replace(settlement, verdict=Release())
                if is_reaped(settlement.verdict)
                else settlement
                for settlement in settlements
            ]
        )


class TwoStepBurial(Mutant):
    """A move to the dead queue in two transactions; the second is made at the next sweep."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine, clock)
        self._second_steps: list[Job] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = []
        for settlement in settlements:
            job = settlement.lease.job
            if isinstance(settlement.verdict, Bury) and job.queue == "moved":
                current = await self.engine.get(job.id)
                if current is None or current.token != settlement.lease.token:
                    outcomes.append(Outcome.LOST)
                    continue
                await self.first_step(job)
                self._second_steps.append(job)
                outcomes.append(Outcome.SETTLED)
            else:
                outcomes += await self.engine.settle([settlement])
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        jobs, self._second_steps = self._second_steps, []
        for job in jobs:
            await self.second_step(job)
        return await self.engine.overdue(limit)

    async def first_step(self, job: Job) -> None: ...

    async def second_step(self, job: Job) -> None: ...


class CopyThenDelete(TwoStepBurial):
    async def first_step(self, job: Job) -> None:
        copy = replace(as_new(job), id=f"{job.id}.dead", queue="grave")
        await self.engine.enqueue([copy])

    async def second_step(self, job: Job) -> None:
        await self.remove(job.id)


class DeleteThenCopy(TwoStepBurial):
    async def first_step(self, job: Job) -> None:
        await self.remove(job.id)

    async def second_step(self, job: Job) -> None:
        await self.engine.enqueue([replace(as_new(job), queue="grave")])


class ClientClock(Mutant):
    """The reaper compares deadlines with a clock of its own, which is fast."""

    FAST_MS = 1_500

    async def overdue(self, limit: int) -> Overdue:
        now = self.clock.wall_ms() + self.FAST_MS
        page = await self.engine.find(JobFilter(states=(State.LEASED,)), limit=limit)
        return Overdue(
            leases=tuple(
                Lease(job=job, token=job.token or 0, lease_ms=0)
                for job in page.jobs
                if (job.deadline_at or 0) <= now
            ),
            next_ms=0,
        )


class FollowUpsRegardless(Mutant):
    """The follow-up jobs go in although the settle that names them was lost."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            if isinstance(settlement.verdict, Complete) and outcome is Outcome.LOST:
                await self.engine.enqueue(settlement.verdict.then)
        return outcomes


class ExpiryIgnoredOnRetry(Mutant):
    """A retried job has no expiry any more."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            if isinstance(settlement.verdict, Retry) and outcome is Outcome.SETTLED:
                wanted = JobFilter(ids=(settlement.lease.id,), states=(State.WAITING,))
                await self.engine.amend(wanted, Edit(expires_ms=3_600_000), limit=1)
        return outcomes


class CountsApart(Mutant):
    """Each half of the store counts for itself, so that twice as many are let in."""

    async def declare(self, queue: Queue, **how: Any) -> bool:
        doubled = tuple(
            replace(limit, concurrency=limit.concurrency and 2 * limit.concurrency)
            for limit in queue.limits
        )
        return await self.engine.declare(replace(queue, limits=doubled), **how)


class FixedWindow(Mutant):
    """Counts starts by the second of the clock, and so lets twice as many in around its turn."""

    async def declare(self, queue: Queue, **how: Any) -> bool:
        bursting = tuple(
            replace(limit, rate=limit.rate and replace(limit.rate, burst=2 * limit.rate.count))
            for limit in queue.limits
        )
        return await self.engine.declare(replace(queue, limits=bursting), **how)


class GroupsByWorker(Mutant):
    """Keeps groups in order within each producer's jobs, though not between them."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self.engine.enqueue(
            [
                replace(job, group=job.group and f"{job.group}/{job.id.partition('.')[0]}")
                for job in jobs
            ]
        )

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        leases = await self.engine.lease(request)
        return [
            replace(
                lease, job=replace(lease.job, group=(lease.job.group or "").split("/")[0] or None)
            )
            for lease in leases
        ]


class FirstParentOnly(Mutant):
    """One finished parent lets a child go, whoever else it waits for."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self.engine.enqueue([replace(job, after=job.after[:1]) for job in jobs])


class SlotsOfTheDead(Mutant):
    """A worker that dies takes its slot with it: only a settle of its own gives it back."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine, clock)
        self._lost = 0

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            limited = settlement.lease.job.queue in ("plain", "moved")
            if outcome is Outcome.SETTLED and limited and is_reaped(settlement.verdict):
                await self._take_a_slot()
        return outcomes

    async def _take_a_slot(self) -> None:
        self._lost += 1
        slots = (Limit(name="slots", concurrency=1_000),)
        await self.engine.declare(Queue(name="lost", limits=slots))
        await self.engine.enqueue([NewJob(id=f"lost-{self._lost}", task="lost", queue="lost")])
        await self.engine.lease(LeaseRequest(queues=("lost",), lease_ms=7 * 86_400_000))


def as_new(job: Job) -> NewJob:
    return NewJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        payload=job.payload,
        priority=job.priority,
        overrides=job.overrides,
    )
