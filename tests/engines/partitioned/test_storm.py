"""Partitions that fail at random, before or after they did what was asked: nothing acknowledged is
lost, nothing is there twice, and nothing is ended twice."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, State, Status
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper
from tests.engines.partitioned.fragile import Fragile

pytestmark = pytest.mark.anyio

VERBS = ("enqueue", "lease", "renew", "settle", "save", "load", "find", "declare", "queues")
LEASE_MS = 1_000


class Shaky(Fragile):
    """Every so many calls it has gone, or its answer has."""

    def __init__(self, clock: ManualClock, dice: Random) -> None:
        super().__init__(clock)
        self.dice = dice
        self.share = 0.0

    def __getattr__(self, name: str) -> Any:
        verb = super().__getattr__(name)
        if name not in VERBS:
            return verb

        async def call(*given: Any, **named: Any) -> Any:
            luck = self.dice.random()
            if luck < self.share / 2:
                raise EngineUnavailable("nobody answers")
            if luck < self.share * 3 / 4:
                raise OutcomeUnknown("the question was lost")
            answer = await verb(*given, **named)
            if luck < self.share:
                raise OutcomeUnknown("the answer was lost")
            return answer

        return call


class FaultRun:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.clock = ManualClock()
        self.stores = [Shaky(self.clock, self.dice) for _ in range(3)]
        named: list[tuple[str, Any]] = [(f"p{n}", each) for n, each in enumerate(self.stores)]
        self.engine = PartitionedEngine(named, sleep=lambda _: asyncio.sleep(0))
        self.accepted: set[str] = set()
        self.refused: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.made = 0

    def jobs(self) -> list[NewJob]:
        """Of every sort of home: an id of one's own, a made one, a key, a group, a family."""
        new: list[NewJob] = []
        for _ in range(self.dice.randrange(1, 6)):
            self.made += 1
            id_ = self.engine.mint() if self.dice.random() < 0.5 else f"job-{self.made}"
            sort = self.dice.randrange(4)
            key = f"k{self.made}" if sort == 1 else None
            group = f"g{self.dice.randrange(4)}" if sort == 2 else None
            after = (new[-1].id,) if sort == 3 and new else ()
            new.append(a_job(id_, key=key, group=group, after=after))
        self.dice.shuffle(new)
        return new

    async def enqueue(self) -> None:
        """Until every job has an answer, as a producer does."""
        jobs = self.jobs()
        while jobs:
            try:
                answers = dict(enumerate(await self.engine.enqueue(jobs)))
            except OutcomeUnknown as error:
                answers = dict(error.known)
            except EngineError:
                answers = {}
            for receipt in answers.values():
                if receipt.status is not Status.REFUSED:
                    self.accepted.add(receipt.id)
                elif receipt.code == "unsupported":
                    self.refused.add(receipt.id)
            known = self.accepted | self.refused
            jobs = [job for job in jobs if job.id not in known]
            jobs = [job for job in jobs if not self.refused.intersection(job.after)]
            await asyncio.sleep(0)

    async def work(self) -> int:
        try:
            leases = await self.engine.lease(LeaseRequest(queues=("default",), limit=4))
        except EngineError:
            return 0
        done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        for _ in range(5):
            if not done:
                break
            try:
                answers = dict(enumerate(await self.engine.settle(done)))
            except OutcomeUnknown as error:
                answers = dict(error.known)
            except EngineError:
                answers = {}
            self.ended.update(
                done[at].lease.id for at, each in answers.items() if each is Outcome.SETTLED
            )
            done = [each for at, each in enumerate(done) if at not in answers]
            await asyncio.sleep(0)
        return len(leases)

    async def reap(self) -> None:
        self.clock.advance(LEASE_MS + 1)
        try:
            await Reaper(self.engine).once()
        except EngineError:
            return

    async def calm(self) -> None:
        for each in self.stores:
            each.share = 0.0
        members = self.engine._members
        while not members.whole:
            await members.changed.wait()
        while await self.work() or (await self.engine.queues())[0].leased:
            await self.reap()


@pytest.mark.parametrize("seed", range(10))
async def test_random_failures_lose_nothing(seed: int) -> None:
    """Once more with its number: pytest -k "test_random_failures_lose_nothing[SEED]"."""
    run = FaultRun(seed)
    engine = run.engine
    await engine.open()
    queue = a_queue("default", lease_ms=LEASE_MS, max_attempts=1_000, max_crashes=1_000)
    await engine.declare(queue)
    for each in run.stores:
        each.share = run.dice.choice([0.0, 0.05, 0.3])
    acts = (run.enqueue, run.work, run.work, run.reap)
    for _ in range(60):
        await asyncio.gather(*(run.dice.choice(acts)() for _ in range(3)))
    await run.calm()
    found = [(await store.engine.find(JobFilter(), limit=1_000)).jobs for store in run.stores]
    jobs = [job for each in found for job in each]
    there = Counter(job.id for job in jobs)
    assert set(there) >= run.accepted, "lost"
    assert set(there.values()) <= {1}, "twice"
    assert {job.state for job in jobs} <= {State.DONE}
    assert max(run.ended.values(), default=1) == 1, "ended twice"
    await engine.close()
