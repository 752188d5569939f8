"""Where an application's jobs go while a test mode is on: a store in memory with a clock by hand.

Nothing here waits for anything, so the same calls serve blocking and async tests, on any thread
and inside any event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.core import checks
from holdfast.core.model import Lease, LeaseRequest, NewJob, Queue, Receipt
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observed import Observed
from holdfast.errors import ResultTimeout
from holdfast.home import Home, Make
from holdfast.testing.clock import ManualClock

Answer = TypeVar("Answer")


def driven(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer of a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer
    coroutine.close()
    raise AssertionError("a call to the store in memory had to wait")


class StagedEngine(MemoryEngine):
    """Every queue is there when it is needed: which ones exist is no matter of a unit test."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await self._declare_missing(jobs)
        return await super().enqueue(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        # Nothing is waited for: time passes only when the test says so.
        checks.check_request(request)
        return self._store.take(request)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        for settlement in settlements:
            if isinstance(settlement.verdict, Complete):
                await self._declare_missing(settlement.verdict.then)
        return await super().settle(settlements)

    async def _declare_missing(self, jobs: Sequence[NewJob]) -> None:
        for name in {job.queue for job in jobs}:
            await self.declare(Queue(name=name), instead_of=None)

    def within(self, connection: object) -> StagedWithin:
        return StagedWithin(self)


class StagedWithin:
    """The caller's transaction is not looked at: what is enqueued in it is there at once."""

    def __init__(self, engine: StagedEngine) -> None:
        self._engine = engine

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return driven(self._engine.enqueue(jobs))


class Stage(Home):
    """The home of an application in a test mode; opening and closing it changes nothing."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.clock = ManualClock()
        store = StagedEngine(clock=self.clock)
        driven(store.open())
        super().__init__(store, Observed(store, app.listeners))
        self._turn = threading.RLock()

    @property
    def inherited(self) -> bool:
        return False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def run(self, make: Make[Answer], instead: str) -> Answer:
        with self._turn:
            return driven(make())

    async def arun(self, make: Make[Answer]) -> Answer:
        with self._turn:
            return await make()

    async def pause(self, seconds: float) -> None:
        raise ResultTimeout(
            "the job is not over, and in this test mode nobody works on it: call drain(), after "
            "advance() if it is to wait"
        )

    def ask(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        with self._turn:
            return driven(coroutine)
