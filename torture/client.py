"""A client process of a torture test: it enqueues, leases, renews, settles, reaps and amends jobs.

It follows the rules for users: it repeats calls with the same ids and tokens after an unknown
outcome, applies `policy`, and records an effect before it completes a job. It runs until it is
killed.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.conformance.history import Journal, Recorded
from holdfast.core import bounds, retry_policy
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    Lease,
    LeaseRequest,
    Note,
    Reason,
    Renewal,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Expedite,
    Forward,
    Move,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.errors import EngineError, EngineUnavailable
from holdfast.upkeep.reaper import Reaper
from torture.own_transactions import OwnTransactions
from torture.workload import (
    CHANGING,
    FLOWING,
    LEASE_MS,
    PLAIN,
    QUEUES,
    SETTINGS,
    JobFactory,
    follow_ups,
)

REAP_S = 0.1
OPERATE_S = 0.5
HELD_MAX = 40
OWN_SHARE = 0.15
T = TypeVar("T")


class Client:
    """One client. If `calm`, it enqueues nothing and causes no failures. SIGTERM stops it."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        seed: str,
        *,
        calm: bool,
        in_json: bool = False,
        recorded: Callable[[Engine, Journal], Recorded] = Recorded,
        own: Callable[[Engine], OwnTransactions] | None = None,
    ) -> None:
        self._engine = recorded(engine, journal)
        self._stop = asyncio.Event()
        self._store = engine
        self._told = 0
        self._journal = journal
        self._rng = random.Random(seed)
        self._factory = JobFactory(journal.process, self._rng, in_json=in_json)
        self._own = None if own is None or calm else recorded(own(engine), journal)
        self._calm = calm
        self._backlog = 0

    async def run(self) -> None:
        """Run until the process is killed, or until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        await retry_until_answered(self._engine.open)
        async with asyncio.TaskGroup() as group:
            for loop in self._loops():
                group.create_task(loop)

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        loops = [self._work(), self._work(), self._reap(), self._operate()]
        return loops if self._calm else [self._produce(), *loops]

    async def _produce(self) -> None:
        rng = self._rng
        while not self._stop.is_set():
            jobs = self._factory.batch()
            engine = self._engine_of_call()
            receipts = await self._retry(lambda: engine.enqueue(jobs))  # noqa: B023
            self._backlog += self._factory.answered(receipts or [])
            behind = max(0, self._backlog - HELD_MAX) / HELD_MAX
            await asyncio.sleep(rng.random() * 0.03 + behind)

    async def _work(self) -> None:
        rng = self._rng
        while not self._stop.is_set():
            try:
                leases = await self._engine.lease(self._request())
            except EngineError:
                await asyncio.sleep(0.05)
                continue
            self._backlog -= len(leases)
            if leases:
                self._factory.saw(leases)
                await self._attempt(leases)
            else:
                await asyncio.sleep(rng.random() * 0.05)

    def _request(self) -> LeaseRequest:
        rng = self._rng
        names = rng.sample(PLAIN, 3)
        if rng.random() < 0.6:
            names = rng.sample(FLOWING, rng.choice((1, 1, 3)))
        ids = self._factory.recent[:3] if rng.random() < 0.05 else []
        return LeaseRequest(
            queues=() if ids else (*names, "grave"),
            ids=tuple(ids),
            limit=rng.choice((1, 3, 10)),
            worker=self._journal.process,
            wait_ms=0 if ids else rng.choice((0, 50)),
        )

    async def _attempt(self, leases: list[Lease]) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * LEASE_MS / 2000)
            leases = await self._renewed(leases)
        if rng.random() < 0.03 and not self._calm:
            # Settle late: the lease runs out, and another client may have the job by then.
            await asyncio.sleep(1.5 * LEASE_MS / 1000)
        if rng.random() < 0.03 and not self._calm:
            return
        settlements = []
        for lease in leases:
            self._journal.note("effect", id=lease.id, token=lease.token)
            settlements.append(Settlement(lease=lease, verdict=self._verdict(lease)))
        if settlements:
            engine = self._engine_of_call()
            await self._retry(lambda: engine.settle(settlements))

    def _engine_of_call(self) -> Recorded:
        """Mostly the engine itself; sometimes the call is part of a transaction of the client."""
        if self._own is None or self._rng.random() >= OWN_SHARE:
            return self._engine
        self._journal.note("transaction")
        return self._own

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat a call until it is answered. Sometimes give up after EngineUnavailable; then the
        call must have had no effect."""
        while True:
            try:
                return await call()
            except EngineUnavailable:
                if self._rng.random() < 0.2 and not self._calm:
                    return None
            except EngineError:
                pass
            await asyncio.sleep(0.05)

    async def _renewed(self, leases: list[Lease]) -> list[Lease]:
        note = Note(progress=self._rng.random(), checkpoint=self._rng.randbytes(20))
        renewals = [Renewal(lease=lease, note=note) for lease in leases]
        try:
            answers = await self._engine.renew(renewals)
        except EngineError:
            return leases
        return [lease for lease in answers if lease is not None]

    async def _reap(self) -> None:
        reaper = Reaper(self._engine)
        while not self._stop.is_set():
            await asyncio.sleep(REAP_S * (0.5 + self._rng.random()))
            try:
                await reaper.once()
            except EngineError:
                continue

    async def _operate(self) -> None:
        """Act as operators and upkeep do: recount, change settings, amend jobs."""
        rng = self._rng
        while not self._stop.is_set():
            await asyncio.sleep(OPERATE_S * (0.5 + rng.random()))
            roll = rng.random()
            try:
                if roll < 0.4 or self._calm:
                    await self._recount()
                elif roll < 0.55:
                    await self._engine.declare(rng.choice(SETTINGS[rng.choice(CHANGING)]))
                elif roll < 0.75:
                    await self._engine.flow(rng.choice(FLOWING), limit=20)
                elif self._factory.recent:
                    id_ = rng.choice(self._factory.recent)
                    await self._engine.waits(id_)
                    await self._engine.amend(JobFilter(ids=(id_,)), self._amendment(), limit=1)
            except EngineError:
                continue

    async def _recount(self) -> None:
        await self._engine.recount(bounds.PAGE_MAX)
        told: int = getattr(self._store, "told", 0)
        if told > self._told:
            self._journal.note("told", count=told - self._told)
            self._told = told

    def _amendment(self) -> Amendment:
        rng = self._rng
        acts: tuple[Amendment, ...] = (
            Cancel(),
            BuryWaiting(),
            Redrive(delay_ms=rng.choice((0, 100))),
            Move(queue=rng.choice(FLOWING)),
            Retime(delay_ms=rng.choice((0, 100))),
            Expedite(),
        )
        return rng.choice(acts)

    def _verdict(self, lease: Lease) -> Verdict:
        rng, job = self._rng, lease.job
        roll = 0.0 if self._calm else rng.random()
        if roll < 0.7:
            return Complete(b"done", follow_ups(lease))
        if roll < 0.85:
            crashed = rng.random() < 0.2
            failure = Failure(kind=FailureKind.CRASH if crashed else FailureKind.ERROR)
            return retry_policy.after_failure(QUEUES[job.queue], job, failure, rng.random())
        if roll < 0.92:
            return Release("not now")
        if roll < 0.94:
            return Forward(rng.choice((*PLAIN, *FLOWING)))
        if roll < 0.97 and not retry_policy.exhausted(QUEUES[job.queue], job):
            return Retry(rng.choice((0, 50)))
        return Bury(Reason.EXPLICIT)


async def retry_until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it is answered, through outages and unknown outcomes."""
    while True:
        try:
            return await call()
        except EngineError:
            await asyncio.sleep(0.05)
