"""A client that models the contents of a store from the results of its calls.

It owns one queue, so no other client changes its jobs. During a call the jobs may be in the state
before or after it, all of them together; once the call has returned, only in the state after it.
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


class KnownJob(NamedTuple):
    """The known state of a job. None in its place means that the job does not exist."""

    state: State
    attempt: int = 0
    progress: float | None = None


class ClientModel:
    """A client and its model. `faults` collects results that contradict the model."""

    def __init__(self, queue: str, rng: Random) -> None:
        self.queue = queue
        self.answered = 0
        self.faults: list[str] = []
        self.known: dict[str, KnownJob | None] = {}
        self.leases: dict[str, Lease] = {}
        self._rng = rng
        self._overdue: set[str] = set()
        self._payloads: dict[str, bytes] = {}
        self._after: dict[str, KnownJob] = {}
        self._lease_max = 0
        self._created = 0

    async def begin(self, engine: Engine) -> None:
        """Declare the queue. Declaring is idempotent, so the model does not track it."""
        await engine.declare(Queue(name=self.queue, lease_ms=HOUR_MS, max_attempts=0))

    async def step(self, engine: Engine) -> None:
        """Make one random call. If it raises, `check` knows its possible effects."""
        match self._rng.choices(("enqueue", "settle", "renew", "lease"), (8, 6, 2, 4))[0]:
            case "enqueue" if self._count(State.WAITING) < WAITING_MAX:
                await self._enqueue(engine)
            case "settle" if self.leases:
                await self._settle(engine)
            case "renew" if self.leases.keys() - self._overdue:
                await self._renew(engine)
            case _:
                await self._lease(engine)
        self.answered += 1

    def reboot(self) -> None:
        """Mark all leases as overdue: after a reboot they can be settled late, but not renewed."""
        self._overdue = set(self.leases)

    async def check(self, engine: Engine, *, may_have_happened: bool) -> None:
        """Compare the store with the model, then continue from the contents of the store.

        `may_have_happened`: the last call returned nothing, or an unknown outcome.
        """
        jobs = {id_: await engine.get(id_) for id_ in self.known}
        found = {id_: _known(job) for id_, job in jobs.items()}
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
        self._after = {job.id: KnownJob(State.WAITING) for job in jobs}
        receipts = await engine.enqueue(jobs)
        self._expect(all(receipt.status is Status.NEW for receipt in receipts), receipts)
        self._learn(self._after)

    async def _lease(self, engine: Engine) -> None:
        self._lease_max = self._rng.choice((1, 1, 2, 6))
        request = LeaseRequest(queues=(self.queue,), limit=self._lease_max, worker=self.queue)
        leases = await engine.lease(request)
        leased = {lease.id: _known(lease.job) for lease in leases}
        for id_, known in leased.items():
            before = self.known.get(id_)
            was_waiting = before is not None and before.state is State.WAITING
            self._expect(was_waiting and known == _leased(before), (id_, before, known))
        self.leases.update({lease.id: lease for lease in leases})
        self._learn({id_: known for id_, known in leased.items() if known is not None})

    async def _settle(self, engine: Engine) -> None:
        chosen = self._sample(list(self.leases.values()))
        settlements = [Settlement(lease=lease, verdict=self._verdict()) for lease in chosen]
        self._after = {}
        for settlement in settlements:
            before = self.known[settlement.lease.id]
            assert before is not None
            self._after[settlement.lease.id] = _settled(before, settlement.verdict)
            if isinstance(settlement.verdict, Complete):
                self._after |= {new.id: KnownJob(State.WAITING) for new in settlement.verdict.then}
        outcomes = await engine.settle(settlements)
        self._expect(all(outcome is Outcome.SETTLED for outcome in outcomes), outcomes)
        for lease in chosen:
            del self.leases[lease.id]
            self._overdue.discard(lease.id)
        self._learn(self._after)

    async def _renew(self, engine: Engine) -> None:
        chosen = self._sample(
            [each for each in self.leases.values() if each.id not in self._overdue]
        )
        progress = self._rng.randrange(1000) / 1000
        before_by_id = {lease.id: self.known[lease.id] for lease in chosen}
        self._after = {
            id_: before._replace(progress=progress)
            for id_, before in before_by_id.items()
            if before is not None
        }
        note = Note(progress=progress)
        renewed = await engine.renew([Renewal(lease=lease, note=note) for lease in chosen])
        self._expect(None not in renewed, renewed)
        self._learn(self._after)

    def _new_job(self) -> NewJob:
        self._created += 1
        id_ = f"{self.queue}-{self._created}"
        size = self._rng.choice((0, 40, 300, 300, 20_000))
        self._payloads[id_] = self._rng.randbytes(size)
        self.known[id_] = None
        return NewJob(id=id_, task="noop", queue=self.queue, payload=self._payloads[id_])

    def _sample(self, held: list[Lease]) -> list[Lease]:
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

    def _after_lease(self, found: dict[str, KnownJob | None]) -> dict[str, KnownJob]:
        """States after the unanswered call if it took effect. A lease may take any waiting jobs."""
        if not self._lease_max:
            return self._after
        waiting = {
            id_: known
            for id_, known in self.known.items()
            if known is not None and known.state is State.WAITING
        }
        taken = [id_ for id_, known in waiting.items() if found[id_] == _leased(known)]
        return {id_: _leased(waiting[id_]) for id_ in taken[: self._lease_max]}

    def _differences(
        self, found: dict[str, KnownJob | None], expected: dict[str, KnownJob | None]
    ) -> list[str]:
        return [
            f"{id_}: found {found[id_]}, the model expects {known}"
            for id_, known in expected.items()
            if found[id_] != known
        ]

    def _learn(self, changes: dict[str, KnownJob]) -> None:
        self.known.update(changes)
        self._after = {}
        self._lease_max = 0

    def _forget(self) -> None:
        """Keep only the newest of the finished and missing jobs."""
        over = [id_ for id_, known in self.known.items() if known is None or known.state.finished]
        for id_ in over[:-FINISHED_MAX]:
            del self.known[id_]
            del self._payloads[id_]

    def _expect(self, ok: bool, answer: object) -> None:
        if not ok:
            self.faults.append(f"{self.queue}: unexpected answer {answer}")

    def _count(self, state: State) -> int:
        return sum(known is not None and known.state is state for known in self.known.values())


def _known(job: Job | None) -> KnownJob | None:
    return None if job is None else KnownJob(job.state, job.attempt, job.progress)


def _leased(before: KnownJob | None) -> KnownJob:
    assert before is not None
    return before._replace(state=State.LEASED, attempt=before.attempt + 1)


def _settled(before: KnownJob, verdict: Verdict) -> KnownJob:
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
