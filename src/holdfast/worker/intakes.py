"""One intake for each kind of child, so that long jobs of one kind never keep out another's.

Here meet how much is free, how much is leased ahead, and how well the worker is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from holdfast.core.model import Lease
from holdfast.core.workers import Health, room, worker_queue
from holdfast.engines.base import Engine
from holdfast.worker.crew import Crew
from holdfast.worker.hand import KINDS, Hand, Kind
from holdfast.worker.intake import Intake, Pace
from holdfast.worker.options import WorkerOptions
from holdfast.worker.wire import TaskInfo

_HAND_MAX = 4_000
_ALONE_MAX = 256
"""Jobs that must run alone come with the others; so many may wait before no others are taken."""


class Intakes:
    """`taken` gets what was leased. Closed it leases nothing, and says so to nobody."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        hand: Hand,
        crew: Crew,
        taken: Callable[[list[Lease]], None],
    ) -> None:
        self._options = options
        self._hand = hand
        self._crew = crew
        self._paces = {kind: Pace(options.prefetch) for kind in KINDS}
        self._batch_max = 1
        self._closed = False
        self._health = Health.HEALTHY
        self._intakes = {
            kind: Intake(engine, lambda kind=kind: self.room(kind), taken)  # type: ignore[misc]
            for kind in KINDS
        }

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, intake in self._intakes.items():
                group.create_task(intake.run(), name=f"{kind} intake")

    def learn(self, worker: str, tasks: Mapping[str, TaskInfo]) -> None:
        """What may be leased, and from where: the queues asked for, or those the tasks name."""
        queues = self.queues(tasks)
        self._batch_max = max((info.batch for info in tasks.values()), default=1)
        for kind, intake in self._intakes.items():
            known = {name for name, info in tasks.items() if self._crew.kind_of(info) == kind}
            intake.ask(worker, {worker_queue(worker): 1, **queues}, frozenset(known))

    def queues(self, tasks: Mapping[str, TaskInfo]) -> dict[str, int]:
        named = {info.queue: 1 for info in tasks.values()}
        return self._options.queues or {"default": 1, **named}

    def set(self, *, closed: bool, health: Health) -> None:
        """Whatever is being waited for was asked for under other conditions."""
        if (closed, health) != (self._closed, self._health):
            self._closed, self._health = closed, health
            for intake in self._intakes.values():
                intake.interrupt()

    def look(self) -> None:
        for intake in self._intakes.values():
            intake.look()

    def ended(self, kind: Kind) -> None:
        self._paces[kind].ended()
        self._intakes[kind].look()

    def measure(self) -> None:
        for pace in self._paces.values():
            pace.measure()

    def room(self, kind: Kind) -> int:
        """Free slots and what is leased ahead; less when not well, nothing when closed."""
        if self._closed:
            return 0
        free = self._crew.capacity_of(kind) + self.ahead(kind) - self._hand.unjudged[kind]
        free = min(free, _HAND_MAX - len(self._hand))
        if kind == "python":
            free = min(free, _ALONE_MAX - self._hand.unjudged["solo"])
        return room(max(0, free), self._health)

    def ahead(self, kind: Kind) -> int:
        """A batch task wants a whole batch at once."""
        return max(self._paces[kind].ahead(), self._batch_max - 1 if kind == "python" else 0)

    def idle_s(self) -> float:
        """How long nothing has been leased, for an intake that had room."""
        open_ = (one for kind, one in self._intakes.items() if one.tasks and self.room(kind) > 0)
        return max((monotonic() - intake.leased_at for intake in open_), default=0.0)
