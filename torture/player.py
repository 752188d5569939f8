"""What one tortured process does until it is killed: enqueue, lease, renew, settle and reap.

It follows the rules for users: the same ids and tokens again after an unknown outcome, policy
from `lifecycle`, an effect before it completes. It never stops by itself while the storm lasts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.core import lifecycle
from holdfast.core.backoff import Backoff
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Reason,
    Renewal,
    State,
)
from holdfast.core.verdict import Bury, Complete, Forward, Release, Retry, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.testing.history import Journal, Recorded, dump
from holdfast.upkeep.reaper import Reaper

LEASE_MS = 600
SWEEP_S = 0.1
HELD_MAX = 40
_QUICK = Backoff(kind="constant", first_ms=50, cap_ms=200, jitter=0.5)
QUEUES = (
    Queue(name="grave", lease_ms=LEASE_MS, backoff=_QUICK, max_attempts=3),
    Queue(name="plain", lease_ms=LEASE_MS, backoff=_QUICK, max_attempts=5),
    Queue(name="kept", lease_ms=LEASE_MS, backoff=_QUICK, order="keep"),
    Queue(name="moved", lease_ms=LEASE_MS, backoff=_QUICK, dead_queue="grave", max_attempts=2),
)
_BY_NAME = {queue.name: queue for queue in QUEUES}
_NAMES = ("plain", "kept", "moved")
T = TypeVar("T")


class Player:
    def __init__(self, engine: Engine, journal: Journal, seed: str, *, calm: bool) -> None:
        self._engine = Recorded(engine, journal)
        self._journal = journal
        self._dice = random.Random(seed)
        self._calm = calm
        self._made = 0
        self._ahead = 0

    async def play(self) -> None:
        await patiently(self._engine.open)
        async with asyncio.TaskGroup() as group:
            if not self._calm:
                group.create_task(self._produce())
            group.create_task(self._work())
            group.create_task(self._work())
            group.create_task(self._reap())

    async def _produce(self) -> None:
        dice = self._dice
        while True:
            jobs = [self._new_job() for _ in range(dice.choice((1, 1, 3, 10)))]
            await self._insist(lambda: self._engine.enqueue(jobs))  # noqa: B023
            self._ahead += len(jobs)
            behind = max(0, self._ahead - HELD_MAX) / HELD_MAX
            await asyncio.sleep(dice.random() * 0.03 + behind)

    async def _work(self) -> None:
        dice = self._dice
        while True:
            request = LeaseRequest(
                queues=(*dice.sample(_NAMES, 3), "grave"),
                limit=dice.choice((1, 3, 10)),
                worker=self._journal.process,
                wait_ms=dice.choice((0, 50)),
            )
            try:
                leases = await self._engine.lease(request)
            except EngineError:
                await asyncio.sleep(0.05)
                continue
            self._ahead -= len(leases)
            if leases:
                await self._attempt(leases)
            else:
                await asyncio.sleep(dice.random() * 0.05)

    async def _attempt(self, leases: list[Lease]) -> None:
        dice = self._dice
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * LEASE_MS / 2000)
            leases = await self._renewed(leases)
        if dice.random() < 0.03 and not self._calm:
            # Too slow: the lease lapses, somebody else may get the job, and then this one settles.
            await asyncio.sleep(1.5 * LEASE_MS / 1000)
        if dice.random() < 0.03 and not self._calm:
            return
        settlements = []
        for lease in leases:
            self._journal.note("effect", id=lease.id, token=lease.token)
            settlements.append(Settlement(lease=lease, verdict=self._verdict(lease)))
        if settlements:
            await self._insist(lambda: self._engine.settle(settlements))

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        """Until it is answered; but what certainly did not happen is left so now and then, and
        then it must not have happened."""
        while True:
            try:
                await call()
                return
            except EngineUnavailable:
                if self._dice.random() < 0.2 and not self._calm:
                    return
            except EngineError:
                pass
            await asyncio.sleep(0.05)

    async def _renewed(self, leases: list[Lease]) -> list[Lease]:
        note = Note(progress=self._dice.random(), checkpoint=self._dice.randbytes(20))
        renewals = [Renewal(lease=lease, note=note) for lease in leases]
        try:
            answers = await self._engine.renew(renewals)
        except EngineError:
            return leases
        return [lease for lease in answers if lease is not None]

    async def _reap(self) -> None:
        reaper = Reaper(self._engine)
        while True:
            await asyncio.sleep(SWEEP_S * (0.5 + self._dice.random()))
            try:
                await reaper.once()
            except EngineError:
                continue

    def _new_job(self) -> NewJob:
        dice = self._dice
        self._made += 1
        id_ = f"{self._journal.process}-{self._made}"
        keyed = dice.random() < 0.1
        return NewJob(
            id=id_,
            task="torture",
            queue=dice.choice(_NAMES),
            payload=id_.encode() + b" " + dice.randbytes(dice.choice((10, 200, 3_000))),
            priority=dice.choice((0, 0, 0, 1)),
            delay_ms=dice.choice((0, 0, 0, 0, 100)),
            expires_ms=300 if dice.random() < 0.02 else None,
            key=f"key-{dice.randrange(20)}" if keyed else None,
            key_window_ms=dice.choice((0, 300)),
        )

    def _verdict(self, lease: Lease) -> Verdict:
        dice, job = self._dice, lease.job
        roll = 0.0 if self._calm else dice.random()
        if roll < 0.7:
            return Complete(b"done", _follow_ups(lease))
        if roll < 0.85:
            crashed = dice.random() < 0.2
            failure = Failure(kind=FailureKind.CRASH if crashed else FailureKind.ERROR)
            return lifecycle.after_failure(_BY_NAME[job.queue], job, failure, dice.random())
        if roll < 0.92:
            return Release("not now")
        if roll < 0.94:
            return Forward(dice.choice(_NAMES))
        if roll < 0.97 and not lifecycle.exhausted(_BY_NAME[job.queue], job):
            return Retry(dice.choice((0, 50)))
        return Bury(Reason.EXPLICIT)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Until it is answered: an unknown outcome or an outage is no reason to give up."""
    while True:
        try:
            return await call()
        except EngineError:
            await asyncio.sleep(0.05)


async def prepare(engine: Engine, journal: Journal) -> None:
    recorded = Recorded(engine, journal)
    await recorded.open()
    for queue in QUEUES:
        await recorded.declare(queue)
    await recorded.close()


async def survey(engine: Engine, journal: Journal, patience_s: float) -> bool:
    """Wait until every job is finished, then write down what the store holds."""
    await patiently(engine.open)
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    drained = False
    while not drained and loop.time() < end:
        await asyncio.sleep(0.1)
        drained = not await patiently(lambda: _unfinished(engine))
    journal.note("drained" if drained else "undrained", after_s=patience_s)
    await patiently(lambda: dump(engine, journal))
    await engine.close()
    return drained


async def _unfinished(engine: Engine) -> bool:
    wanted, after = JobFilter(states=(State.WAITING, State.LEASED)), None
    while True:
        page = await engine.find(wanted, limit=1, after=after)
        after = page.after
        if page.jobs or after is None:
            return bool(page.jobs)


def _follow_ups(lease: Lease) -> tuple[NewJob, ...]:
    """The same for the same job, whoever completes it."""
    job = lease.job
    if ".then" in job.id or len(job.payload) % 5:
        return ()
    return (NewJob(id=f"{job.id}.then", task="follow", queue="plain", payload=job.id.encode()),)
