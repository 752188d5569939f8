"""Test doubles: an engine that fails on demand, held leases, and children that are only a board and
a list of the messages they got.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.model import Lease, LeaseRequest, NewJob, Record, Renewal
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.clock import Clock
from holdfast.engines.memory import MemoryEngine
from holdfast.process import boot_s
from holdfast.worker.supervisor.child_process import ChildListener, ChildProcess
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases, RunnerKind
from holdfast.worker.wire import (
    Board,
    CallJob,
    ChildCalls,
    ChildReady,
    ChildSetup,
    FromChild,
    TaskInfo,
    ToChild,
)


class TroubledEngine(MemoryEngine):
    """The next calls of a verb raise the errors in `trouble`, or every call the one in `for_ever`.
    `asked` counts the calls, `settled` has the settled batches."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.trouble: dict[str, list[Exception]] = {}
        self.for_ever: dict[str, Exception] = {}
        self.asked: dict[str, int] = {}
        self.requests: list[LeaseRequest] = []
        self.settled: list[list[Settlement]] = []

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self._raise("lease")
        self.requests.append(request)
        return await super().lease(request)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._raise("renew")
        return await super().renew(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._raise("settle")
        self.settled.append(list(settlements))
        return await super().settle(settlements)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._raise("save")
        return await super().save(records)

    def _raise(self, verb: str) -> None:
        self.asked[verb] = self.asked.get(verb, 0) + 1
        if self.trouble.get(verb):
            raise self.trouble[verb].pop(0)
        if verb in self.for_ever:
            raise self.for_ever[verb]


async def hold_new(
    engine: MemoryEngine, held: HeldLeases, *ids: str, kind: RunnerKind = "python", **fields: Any
) -> list[HeldLease]:
    """Enqueue, lease and hold new jobs."""
    await engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])
    request = LeaseRequest(ids=ids, limit=len(ids), worker="w")
    leases = await engine.lease(request)
    assert len(leases) == len(ids)
    by_id = {lease.id: lease for lease in leases}
    leased = [HeldLease(by_id[id_], boot_s(), kind) for id_ in ids]
    held.add(leased)
    return leased


class GivenCall(NamedTuple):
    """One call that a child got."""

    number: int
    task: str
    jobs: tuple[CallJob, ...]
    timeout_ms: int | None


class FakeChild(ChildProcess):
    """A child without a process: `sent` has the instructions it got; `die` and `answer` are for the
    test."""

    def __init__(self, setup: ChildSetup, listener: ChildListener, solo: bool) -> None:
        super().__init__(setup, listener, solo)
        self.sent: list[ToChild] = []
        self.killed = False
        self.reported = asyncio.Event()

    @property
    def pid(self) -> int:
        return 0

    @property
    def calls(self) -> list[GivenCall]:
        return [
            GivenCall(number, message.task, jobs, message.timeout_ms)
            for message in self.sent
            if isinstance(message, ChildCalls)
            for number, jobs in enumerate(message.calls, message.first)
        ]

    async def start(self) -> None:
        self.board = Board.make(self.setup.slots)

    def write(self, instructions: list[ToChild]) -> None:
        self.sent += instructions

    def kill(self) -> None:
        self.killed = True
        asyncio.get_running_loop().call_soon(self.die, -9)

    async def wait_dead(self) -> None:
        await self.reported.wait()

    def answer(self, *messages: FromChild) -> None:
        self._listener.received(self, list(messages))

    def ready(self, *tasks: TaskInfo, schedules: bytes = b"") -> None:
        self.answer(ChildReady(tasks or (TaskInfo("work"),), schedules))

    def run(self, *numbers: int) -> None:
        """These calls have started."""
        for slot, number in enumerate(numbers):
            self.board.start(slot, number)

    def die(self, status: int = -9, tail: bytes = b"") -> None:
        if self.status is None:
            self.tail = tail
            self.status = status
            self._listener.died(self)
            self.board.close()
            self.reported.set()
