"""A client that keeps account of every answer, and can say what a store must hold because of it.

It owns one queue, so nobody else moves its jobs. While a call runs, its jobs may be as before it
or as after it, all of them together; once it is answered, only as after.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, assert_never

from holdfast.core.model import (
    Job,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine

WAITING_MAX = 40
FINISHED_MAX = 60
HOUR_MS = 3_600_000


class Seen(NamedTuple):
    """What an answer told about a job; None in its place: there is no such job."""

    state: State
    attempt: int = 0
    progress: float | None = None


class Account:
    """`faults` collects every answer that contradicts an earlier one."""

    def __init__(self, queue: str, rng: Random) -> None:
        self.queue = queue
        self.answered = 0
        self.faults: list[str] = []
        self.known: dict[str, Seen | None] = {}
        self.leases: dict[str, Lease] = {}
        self._rng = rng
        self._lapsed: set[str] = set()
        self._payloads: dict[str, bytes] = {}
        self._after: dict[str, Seen] = {}
        self._lease_max = 0
        self._made = 0

    async def begin(self, engine: Engine) -> None:
        """Declaring twice is declaring once, so it needs no account."""
        await engine.declare(Queue(name=self.queue, lease_ms=HOUR_MS, max_attempts=0))

    async def step(self, engine: Engine) -> None:
        """One call of a random sort. If it raises, `check` knows what it may have done."""
        match self._rng.choices(("enqueue", "settle", "renew", "lease"), (8, 6, 2, 4))[0]:
            case "enqueue" if self._count(State.WAITING) < WAITING_MAX:
                await self._enqueue(engine)
            case "settle" if self.leases:
                await self._settle(engine)
            case "renew" if self.leases.keys() - self._lapsed:
                await self._renew(engine)
            case _:
                await self._lease(engine)
        self.answered += 1

    def reboot(self) -> None:
        """Leases do not outlive the machine's uptime: they can be settled late, but not renewed."""
        self._lapsed = set(self.leases)

    async def check(self, engine: Engine, *, may_have_happened: bool) -> None:
        """Compare the store with the account, then go on from what the store says.

        `may_have_happened`: was the last call one without an answer, or with an unknown one?
        """
        jobs = {id_: await engine.get(id_) for id_ in self.known}
        found = {id_: _seen(job) for id_, job in jobs.items()}
        wrong = self._differences(found, self.known)
        if wrong and may_have_happened:
            wrong = self._differences(found, {**self.known, **self._after_lease(found)})
        self.faults += wrong
        for id_, job in jobs.items():
            if job is not None and job.payload != self._payloads[id_]:
                self.faults.append(f"{id_}: another payload")
        self.known = dict(found)
        self.leases = {
            job.id: Lease(job=job, token=job.token or 0, lease_ms=HOUR_MS)
            for job in jobs.values()
            if job is not None and job.state is State.LEASED
        }
        self._learn({})
        self._forget()

    async def _enqueue(self, engine: Engine) -> None:
        jobs = [self._new_job() for _ in range(self._rng.choice((1, 1, 2, 8)))]
        self._after = {job.id: Seen(State.WAITING) for job in jobs}
        receipts = await engine.enqueue(jobs)
        self._expect(all(receipt.status is Status.NEW for receipt in receipts), receipts)
        self._learn(self._after)

    async def _lease(self, engine: Engine) -> None:
        self._lease_max = self._rng.choice((1, 1, 2, 6))
        request = LeaseRequest(queues=(self.queue,), limit=self._lease_max, worker=self.queue)
        leases = await engine.lease(request)
        told = {lease.id: _seen(lease.job) for lease in leases}
        for id_, seen in told.items():
            before = self.known.get(id_)
            was_waiting = before is not None and before.state is State.WAITING
            self._expect(was_waiting and seen == _leased(before), (id_, before, seen))
        self.leases.update({lease.id: lease for lease in leases})
        self._learn({id_: seen for id_, seen in told.items() if seen is not None})

    async def _settle(self, engine: Engine) -> None:
        chosen = self._some(list(self.leases.values()))
        settlements = [Settlement(lease=lease, verdict=self._verdict()) for lease in chosen]
        self._after = {}
        for settlement in settlements:
            before = self.known[settlement.lease.id]
            assert before is not None
            self._after[settlement.lease.id] = _settled(before, settlement.verdict)
            if isinstance(settlement.verdict, Complete):
                self._after |= {new.id: Seen(State.WAITING) for new in settlement.verdict.then}
        outcomes = await engine.settle(settlements)
        self._expect(all(outcome is Outcome.SETTLED for outcome in outcomes), outcomes)
        for lease in chosen:
            del self.leases[lease.id]
            self._lapsed.discard(lease.id)
        self._learn(self._after)

    async def _renew(self, engine: Engine) -> None:
        chosen = self._some([x for x in self.leases.values() if x.id not in self._lapsed])
        progress = self._rng.randrange(1000) / 1000
        befores = {lease.id: self.known[lease.id] for lease in chosen}
        self._after = {
            id_: before._replace(progress=progress)
            for id_, before in befores.items()
            if before is not None
        }
        note = Note(progress=progress)
        renewed = await engine.renew([Renewal(lease=lease, note=note) for lease in chosen])
        self._expect(None not in renewed, renewed)
        self._learn(self._after)

    def _new_job(self) -> NewJob:
        self._made += 1
        id_ = f"{self.queue}-{self._made}"
        size = self._rng.choice((0, 40, 300, 300, 20_000))
        self._payloads[id_] = self._rng.randbytes(size)
        self.known[id_] = None
        return NewJob(id=id_, task="noop", queue=self.queue, payload=self._payloads[id_])

    def _some(self, held: list[Lease]) -> list[Lease]:
        return self._rng.sample(held, min(len(held), self._rng.choice((1, 2, 10))))

    def _verdict(self) -> Verdict:
        match self._rng.randrange(10):
            case 0:
                return Retry()
            case 1:
                return Release()
            case 2:
                return Bury()
            case 3:
                return Complete(b"result", (self._new_job(),))
            case _:
                return Complete()

    def _after_lease(self, found: dict[str, Seen | None]) -> dict[str, Seen]:
        """What the unanswered call does when it happens. A lease may take any waiting jobs."""
        if not self._lease_max:
            return self._after
        waiting = {
            id_: seen
            for id_, seen in self.known.items()
            if seen is not None and seen.state is State.WAITING
        }
        taken = [id_ for id_, seen in waiting.items() if found[id_] == _leased(seen)]
        return {id_: _leased(waiting[id_]) for id_ in taken[: self._lease_max]}

    def _differences(
        self, found: dict[str, Seen | None], wanted: dict[str, Seen | None]
    ) -> list[str]:
        return [
            f"{id_}: found {found[id_]}, the account says {seen}"
            for id_, seen in wanted.items()
            if found[id_] != seen
        ]

    def _learn(self, news: dict[str, Seen]) -> None:
        self.known.update(news)
        self._after = {}
        self._lease_max = 0

    def _forget(self) -> None:
        """Of the jobs that are over, or never came in, the newest are enough to look at again."""
        over = [id_ for id_, seen in self.known.items() if seen is None or seen.state.finished]
        for id_ in over[:-FINISHED_MAX]:
            del self.known[id_]
            del self._payloads[id_]

    def _expect(self, fine: bool, answer: object) -> None:
        if not fine:
            self.faults.append(f"{self.queue}: unexpected answer {answer}")

    def _count(self, state: State) -> int:
        return sum(seen is not None and seen.state is state for seen in self.known.values())


def _seen(job: Job | None) -> Seen | None:
    return None if job is None else Seen(job.state, job.attempt, job.progress)


def _leased(before: Seen | None) -> Seen:
    assert before is not None
    return before._replace(state=State.LEASED, attempt=before.attempt + 1)


def _settled(before: Seen, verdict: Verdict) -> Seen:
    match verdict:
        case Complete():
            return before._replace(state=State.DONE)
        case Retry():
            return before._replace(state=State.WAITING)
        case Release():
            return before._replace(state=State.WAITING, attempt=before.attempt - 1)
        case Bury():
            return before._replace(state=State.DEAD)
        case Forward():
            raise NotImplementedError
        case never:
            assert_never(never)
