"""Stand-ins for tests inside one process: an engine with troubles, leases in hand, and children
that are nothing but a board and a list of what they were told.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.core.model import Lease, LeaseRequest, NewJob, Record, Renewal
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.clock import Clock
from holdfast.engines.memory import MemoryEngine
from holdfast.worker.board import Board
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Hand, Held, Kind
from holdfast.worker.link import Link, Listener
from holdfast.worker.wire import Call, ChildSetup, Down, Ready, TaskInfo, Up


class TroubledEngine(MemoryEngine):
    """The next calls of a verb raise what `trouble` holds for it; with `for_ever`, all of them.
    `asked` counts the calls, `settled` keeps what was settled, in batches."""

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


async def in_hand(
    engine: MemoryEngine, hand: Hand, *ids: str, kind: Kind = "python", **fields: Any
) -> list[Held]:
    """New jobs, leased and held."""
    await engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])
    request = LeaseRequest(ids=ids, limit=len(ids), worker="w")
    leases = await engine.lease(request)
    assert len(leases) == len(ids)
    by_id = {lease.id: lease for lease in leases}
    return hand.take([by_id[id_] for id_ in ids], boot_s(), lambda _job: kind)


class FakeLink(Link):
    """A child without a process: `said` is what it was told; `die` and `speak` are for the test."""

    def __init__(self, setup: ChildSetup, listener: Listener, solo: bool) -> None:
        super().__init__(setup, listener, solo)
        self.said: list[Down] = []
        self.killed = False
        self.mourned = asyncio.Event()

    @property
    def pid(self) -> int:
        return 0

    @property
    def calls(self) -> list[Call]:
        return [word for word in self.said if isinstance(word, Call)]

    async def start(self) -> None:
        self.board = Board.make(self.setup.slots)

    def say(self, words: list[Down]) -> None:
        self.said += words

    def kill(self) -> None:
        self.killed = True
        asyncio.get_running_loop().call_soon(self.die, -9)

    async def dead(self) -> None:
        await self.mourned.wait()

    def speak(self, *words: Up) -> None:
        self._listener.heard(self, list(words))

    def ready(self, *tasks: TaskInfo) -> None:
        self.speak(Ready(tasks or (TaskInfo("work"),)))

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
            self.mourned.set()
