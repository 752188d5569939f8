"""A worker takes jobs at the moment of their expiry, while the dead-letter handler and the reaper
end them. Each job must have exactly one outcome: done by the worker, or dead because it expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast.conformance.history import Journal, Recorded, dump
from holdfast.core.model import Job, LeaseRequest, NewJob, Queue, Reason, State
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.extras import Brokered, extra
from holdfast.errors import HoldfastError
from holdfast.events import DeadMessagesHandled, ProcessEvent
from holdfast.upkeep.dead_letter_handler import DeadLetterHandler
from holdfast.upkeep.reaper import Reaper

ATTENDED, UNATTENDED = "worker.ann", "worker.ben"
"""The worker of the first queue receives its messages; those of the other expire at the broker."""
AT_ONCE = 25
TTL_MS = (150, 400)
APART_MS = 25
"""How far from the expiry a worker looks, at most."""
REAP_S = 1.0
"""Rare, so that most jobs are ended by the handler, and some by the reaper."""
END_S_MAX = 60.0
_HANDLERS = 2


class RaceResult(NamedTuple):
    """Counts of a run by outcome, and what is wrong."""

    taken: int
    expired: int
    by_handler: int
    wrong: list[str]


class ExpiryRace:
    """`make` creates an engine with a broker; each part of the race has one of its own. `journal`
    creates the journal of a part."""

    def __init__(
        self, make: Callable[[], Engine], journal: Callable[[str], Journal], seed: int
    ) -> None:
        self._make = make
        self._journal = journal
        self._rng = random.Random(seed)
        self._taken: set[str] = set()
        self._by_handler: Counter[str] = Counter()

    async def run(self, rounds: int) -> RaceResult:
        """Race for that many jobs."""
        async with contextlib.AsyncExitStack() as stack:
            engine = await self._opened(stack, "worker")
            for name in (ATTENDED, UNATTENDED):
                await engine.declare(Queue(name=name))
            loops = [
                asyncio.create_task(self._handle(await self._opened(stack, f"handler{number}")))
                for number in range(_HANDLERS)
            ]
            loops.append(asyncio.create_task(self._reap(await self._opened(stack, "reaper"))))
            jobs: list[Job] = []
            try:
                for start in range(0, rounds, AT_ONCE):
                    jobs += await self._race(engine, start, min(AT_ONCE, rounds - start))
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
            survey = self._journal("survey")
            survey.note("drained")
            await dump(engine, survey)
        return RaceResult(
            taken=len(self._taken),
            expired=sum(job.state is State.DEAD for job in jobs),
            by_handler=self._by_handler["buried"],
            wrong=[text for job in jobs if (text := judge(job, job.id in self._taken))],
        )

    async def _race(self, engine: Engine, start: int, count: int) -> list[Job]:
        """One batch: returns its jobs when all have ended."""
        rng = self._rng
        ttls_ms = [rng.randint(*TTL_MS) for _ in range(count)]
        new = [
            NewJob(
                id=f"race-{start + index}",
                task="race",
                queue=rng.choice((ATTENDED, UNATTENDED)),
                expires_ms=ttl_ms,
            )
            for index, ttl_ms in enumerate(ttls_ms)
        ]
        await engine.enqueue(new)
        await asyncio.gather(
            *(
                self._take(engine, job, ttl_ms + rng.uniform(-APART_MS, APART_MS))
                for job, ttl_ms in zip(new, ttls_ms, strict=True)
            )
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + END_S_MAX
        while True:
            found = [job for each in new if (job := await engine.get(each.id)) is not None]
            if all(job.state.finished for job in found) or loop.time() > end:
                return found
            await asyncio.sleep(0.05)

    async def _take(self, engine: Engine, job: NewJob, after_ms: float) -> None:
        """Lease what is in the queue, as its worker does, or the job by its id; complete it."""
        await asyncio.sleep(after_ms / 1000)
        if job.queue == ATTENDED:
            request = LeaseRequest(queues=(ATTENDED,), worker="ann", wait_ms=APART_MS)
        else:
            request = LeaseRequest(ids=(job.id,), worker="ben")
        leases = await engine.lease(request)
        outcomes = await engine.settle(
            [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        )
        for lease, outcome in zip(leases, outcomes, strict=True):
            if outcome is Outcome.SETTLED:
                self._taken.add(lease.id)

    async def _handle(self, engine: Engine) -> None:
        brokered = extra(engine, Brokered)
        assert brokered is not None
        handler = DeadLetterHandler(engine, brokered.broker(), tell=self._count, wait_ms=100)
        await _repeat(handler.once, pause_s=0.0)

    async def _reap(self, engine: Engine) -> None:
        await _repeat(Reaper(engine).once, pause_s=REAP_S)

    def _count(self, event: ProcessEvent) -> None:
        if isinstance(event, DeadMessagesHandled):
            for outcomes in event.outcomes.values():
                self._by_handler.update(outcomes)

    async def _opened(self, stack: contextlib.AsyncExitStack, name: str) -> Engine:
        engine = Recorded(self._make(), self._journal(name))
        await engine.open()
        stack.push_async_callback(engine.close)
        return engine


async def _repeat(step: Callable[[], Awaitable[int | None]], *, pause_s: float) -> None:
    while True:
        with contextlib.suppress(HoldfastError):
            await step()
        await asyncio.sleep(pause_s)


def judge(job: Job, is_taken: bool) -> str:
    """The fault in the outcome of a job; "" if there is none."""
    deaths = len(job.failures)
    if is_taken:
        is_right = (job.state, job.attempt, deaths) == (State.DONE, 1, 0)
    else:
        is_right = (job.state, job.reason, job.attempt, deaths) == (
            State.DEAD,
            Reason.EXPIRED,
            0,
            1,
        )
    if is_right:
        return ""
    by = "a worker completed it" if is_taken else "no worker completed it"
    return f"job {job.id}: {by}, but it is {job.state} ({job.reason}) after {job.attempt} attempts"
