"""What one tortured process does until it is killed: enqueue, lease, renew, settle, reap, meddle.

It follows the rules for users: the same ids and tokens again after an unknown outcome, what
`policy` says, an effect before it completes. It never stops by itself while the storm lasts.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.core import limits, policy
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
from holdfast.testing.history import Journal, Recorded
from holdfast.upkeep.reaper import Reaper
from torture.making import Maker, follow_ups
from torture.queues import CHANGING, FLOWING, LEASE_MS, PLAIN, QUEUES, SETTINGS

SWEEP_S = 0.1
MEDDLE_S = 0.5
HELD_MAX = 40
T = TypeVar("T")


class Player:
    """On SIGTERM it finishes what it is about, and ends."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        seed: str,
        *,
        calm: bool,
        in_json: bool = False,
        recorded: type[Recorded] = Recorded,
    ) -> None:
        self._engine = recorded(engine, journal)
        self._stop = asyncio.Event()
        self._store = engine
        self._told = 0
        self._journal = journal
        self._dice = random.Random(seed)
        self._maker = Maker(journal.process, self._dice, in_json=in_json)
        self._calm = calm
        self._ahead = 0

    async def play(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        await patiently(self._engine.open)
        async with asyncio.TaskGroup() as group:
            if not self._calm:
                group.create_task(self._produce())
            group.create_task(self._work())
            group.create_task(self._work())
            group.create_task(self._reap())
            group.create_task(self._meddle())

    async def _produce(self) -> None:
        dice = self._dice
        while not self._stop.is_set():
            jobs = self._maker.batch()
            receipts = await self._insist(lambda: self._engine.enqueue(jobs))  # noqa: B023
            self._ahead += self._maker.answered(receipts or [])
            behind = max(0, self._ahead - HELD_MAX) / HELD_MAX
            await asyncio.sleep(dice.random() * 0.03 + behind)

    async def _work(self) -> None:
        dice = self._dice
        while not self._stop.is_set():
            try:
                leases = await self._engine.lease(self._request())
            except EngineError:
                await asyncio.sleep(0.05)
                continue
            self._ahead -= len(leases)
            if leases:
                self._maker.saw(leases)
                await self._attempt(leases)
            else:
                await asyncio.sleep(dice.random() * 0.05)

    def _request(self) -> LeaseRequest:
        dice = self._dice
        names = dice.sample(PLAIN, 3)
        if dice.random() < 0.6:
            names = dice.sample(FLOWING, dice.choice((1, 1, 3)))
        by_name = self._maker.lately[:3] if dice.random() < 0.05 else []
        return LeaseRequest(
            queues=() if by_name else (*names, "grave"),
            ids=tuple(by_name),
            limit=dice.choice((1, 3, 10)),
            worker=self._journal.process,
            wait_ms=0 if by_name else dice.choice((0, 50)),
        )

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

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Until it is answered; but what certainly did not happen is left so now and then, and
        then it must not have happened."""
        while True:
            try:
                return await call()
            except EngineUnavailable:
                if self._dice.random() < 0.2 and not self._calm:
                    return None
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
        while not self._stop.is_set():
            await asyncio.sleep(SWEEP_S * (0.5 + self._dice.random()))
            try:
                await reaper.once()
            except EngineError:
                continue

    async def _meddle(self) -> None:
        """What operators and upkeep do beside, each time one of it."""
        dice = self._dice
        while not self._stop.is_set():
            await asyncio.sleep(MEDDLE_S * (0.5 + dice.random()))
            roll = dice.random()
            try:
                if roll < 0.4 or self._calm:
                    await self._recount()
                elif roll < 0.55:
                    await self._engine.declare(dice.choice(SETTINGS[dice.choice(CHANGING)]))
                elif roll < 0.75:
                    await self._engine.flow(dice.choice(FLOWING), limit=20)
                elif self._maker.lately:
                    id_ = dice.choice(self._maker.lately)
                    await self._engine.waits(id_)
                    await self._engine.amend(JobFilter(ids=(id_,)), self._amendment(), limit=1)
            except EngineError:
                continue

    async def _recount(self) -> None:
        await self._engine.recount(limits.PAGE_MAX)
        told: int = getattr(self._store, "told", 0)
        if told > self._told:
            self._journal.note("told", count=told - self._told)
            self._told = told

    def _amendment(self) -> Amendment:
        dice = self._dice
        acts: tuple[Amendment, ...] = (
            Cancel(),
            BuryWaiting(),
            Redrive(delay_ms=dice.choice((0, 100))),
            Move(queue=dice.choice(FLOWING)),
            Retime(delay_ms=dice.choice((0, 100))),
            Expedite(),
        )
        return dice.choice(acts)

    def _verdict(self, lease: Lease) -> Verdict:
        dice, job = self._dice, lease.job
        roll = 0.0 if self._calm else dice.random()
        if roll < 0.7:
            return Complete(b"done", follow_ups(lease))
        if roll < 0.85:
            crashed = dice.random() < 0.2
            failure = Failure(kind=FailureKind.CRASH if crashed else FailureKind.ERROR)
            return policy.after_failure(QUEUES[job.queue], job, failure, dice.random())
        if roll < 0.92:
            return Release("not now")
        if roll < 0.94:
            return Forward(dice.choice((*PLAIN, *FLOWING)))
        if roll < 0.97 and not policy.exhausted(QUEUES[job.queue], job):
            return Retry(dice.choice((0, 50)))
        return Bury(Reason.EXPLICIT)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Until it is answered: an unknown outcome or an outage is no reason to give up."""
    while True:
        try:
            return await call()
        except EngineError:
            await asyncio.sleep(0.05)
