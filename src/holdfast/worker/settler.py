"""Verdicts → `engine.settle`, in batches; patient while the engine is out of reach.

A verdict is kept until the engine has answered for it. What it refuses becomes a failure of the
job, so that a result too large or a follow-up for a missing queue cannot be lost or go in a ring.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable

from holdfast.core import checks, limits
from holdfast.core.model import JobFilter, Queue
from holdfast.core.text import counted
from holdfast.core.verdict import Cancel, Outcome, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, HoldfastError, OutcomeUnknown
from holdfast.worker.hand import Hand, Held
from holdfast.worker.verdicts import after_refusal

_log = logging.getLogger("holdfast.worker")

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0


class Settler:
    """`settled` is told of all that left the hand. Whoever was told too late is lost."""

    def __init__(
        self,
        engine: Engine,
        hand: Hand,
        queue_of: Callable[[str], Queue],
        settled: Callable[[list[Held]], None],
        worker: str,
    ) -> None:
        self._engine = engine
        self._hand = hand
        self._queue_of = queue_of
        self._settled = settled
        self._worker = worker
        self._pending: deque[Held] = deque()
        self._under_way = 0
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._cancels: set[str] = set()
        self.lost = 0

    @property
    def backlog(self) -> int:
        return len(self._pending) + self._under_way

    def judge(self, held: Held, verdict: Verdict, *, cancels: bool = False) -> None:
        """From now on the verdict stands; only the engine can say that it came too late."""
        if not self._hand.judge(held, verdict):
            return
        if cancels and not held.lease.cancel_requested:
            self._cancels.add(held.job.id)
        self._pending.append(held)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. One batch is under way at a time, and the next gathers meanwhile."""
        pause = _PAUSE_S_FIRST
        while True:
            if not self._pending:
                self._wake.clear()
                await self._wake.wait()
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]
            self._under_way = len(batch)
            try:
                await self._settle(batch)
                pause = _PAUSE_S_FIRST
                self._under_way = 0
                self._answered.set()
            except EngineClosed:
                raise
            except EngineError as error:
                self._under_way = 0
                # Some of the batch may have their answer: then the next are not kept waiting.
                kept = [held for held in batch if self._hand.knows(held)]
                self._pending.extendleft(reversed(kept))
                if len(kept) < len(batch):
                    pause = _PAUSE_S_FIRST
                    self._answered.set()
                _log.warning("%s kept for %.1f s: %s", counted(len(kept), "verdict"), pause, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _PAUSE_S_MAX)

    async def drain(self) -> None:
        """When everything that was judged has left the hand."""
        while self.backlog:
            self._answered.clear()
            await self._answered.wait()

    async def _settle(self, batch: list[Held]) -> None:
        for held in batch if self._cancels else ():
            if held.job.id in self._cancels:
                await self._cancel(held)
        settlements = [_settlement(held) for held in batch]
        try:
            outcomes = await self._engine.settle(settlements)
        except OutcomeUnknown as error:
            # What was refused is asked once more with the rest, and then dealt with.
            known = [at for at, each in error.known.items() if each is not Outcome.REFUSED]
            self._conclude(
                [batch[at] for at in known],
                [settlements[at] for at in known],
                [error.known[at] for at in known],
            )
            raise
        except EngineError:
            raise
        except HoldfastError as error:
            # The batch itself was refused: one by one, so that only the guilty one suffers.
            if len(batch) > 1:
                for held in batch:
                    await self._settle([held])
                return None
            _log.error("the verdict on job %s was refused: %s", batch[0].job.id, error)
            return self._refuse(batch[0], str(error))
        return self._conclude(batch, settlements, outcomes)

    def _conclude(
        self, batch: list[Held], settlements: list[Settlement], outcomes: list[Outcome]
    ) -> None:
        # Nearly always all are settled, and there is nothing to look at one by one.
        if outcomes.count(Outcome.SETTLED) == len(batch):
            return self._leave(batch)
        over: list[Held] = []
        for held, settlement, outcome in zip(batch, settlements, outcomes, strict=True):
            if outcome is Outcome.REFUSED:
                self._refuse(held, _why(settlement))
                continue
            if outcome is Outcome.LOST:
                self.lost += 1
                self._hand.lose(held)
            over.append(held)
        return self._leave(over)

    async def _cancel(self, held: Held) -> None:
        """Only in this very lease: a handler that is late must not stop the next one's run."""
        wanted = JobFilter(ids=(held.job.id,), version=held.job.version)
        await self._engine.amend(wanted, Cancel(by=self._worker, text="by its handler"), limit=1)
        self._cancels.discard(held.job.id)

    def _refuse(self, held: Held, why: str) -> None:
        held.note = None
        queue = self._queue_of(held.job.queue)
        held.verdict = after_refusal(queue, held.job, f"not accepted: {why}", random.random())
        self._pending.append(held)

    def _leave(self, over: list[Held]) -> None:
        for held in over:
            self._hand.drop(held)
        if over:
            self._settled(over)


def _why(settlement: Settlement) -> str:
    try:
        checks.check_settlement(settlement)
    except HoldfastError as error:
        return str(error)
    return "the verdict names a queue that does not exist"


def _settlement(held: Held) -> Settlement:
    assert held.verdict is not None
    return Settlement(lease=held.lease, verdict=held.verdict, note=held.note)


_BATCH = limits.BATCH_MAX
