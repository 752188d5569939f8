"""KEEP TIME: the loops that end overdue leases, prune, tick schedules, redrive, carry out acts,
distribute, and handle the dead messages of a broker.

There is no leader: any number of each loop may run, in any number of processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.engines.base import Engine
from holdfast.engines.extras import Brokered, ServerBacked, UpkeepByPartition, extra
from holdfast.events import Listeners, Tell, ignore_event
from holdfast.ops.jobs.bulk import Archive
from holdfast.ops.service import Service, run_service
from holdfast.process import wall_ms
from holdfast.upkeep.amender import Amender
from holdfast.upkeep.dead_letter_handler import DeadLetterHandler
from holdfast.upkeep.distributor import Distributor
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.queue_watch import QueueWatch
from holdfast.upkeep.reaper import Reaper
from holdfast.upkeep.redriver import Redriver
from holdfast.upkeep.scheduler import Scheduler

__all__ = [
    "Amender",
    "DeadLetterHandler",
    "Distributor",
    "Pruner",
    "QueueWatch",
    "Reaper",
    "Redriver",
    "Scheduler",
    "Upkeep",
]

RunUntil = Callable[[asyncio.Event], Coroutine[object, object, None]]
"""Runs until the event is set."""


class Upkeep:
    """All loops on one engine that its traits allow."""

    def __init__(
        self,
        engine: Engine,
        *,
        archive: Path | str | None = None,
        tell: Tell = ignore_event,
        wall_ms: Callable[[], int] = wall_ms,
        more: Sequence[Service] = (),
        background: Sequence[RunUntil] = (),
    ) -> None:
        """`more` are further services; `background` are functions that run alongside them."""
        self._tell = tell
        partitioned = extra(engine, UpkeepByPartition)
        lifecycles = [engine] if partitioned is None else partitioned.lifecycles()
        kept = None if archive is None else Archive(archive)
        traits = engine.traits
        self._reapers = [Reaper(each, tell=tell) for each in lifecycles if traits.overdue]
        services: list[Service] = [*self._reapers]
        if traits.records:
            services += [Pruner(each, archive=kept, tell=tell) for each in lifecycles]
            services += [Scheduler(engine, wall_ms, tell=tell)]
            services += [Redriver(engine, wall_ms, tell=tell)] if traits.inspect else []
            if traits.inspect and extra(engine, ServerBacked) is None:
                # A server alone may change the records of acts: it has checked who asked for them.
                services += [Amender(engine, wall_ms)]
            services += [Distributor(engine, tell=tell), *_broker_services(engine, tell), *more]
        self.services: tuple[Service, ...] = tuple(services)
        self._background = background

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; a step in progress is finished."""
        with self._listening_reapers():
            async with asyncio.TaskGroup() as group:
                for run in self._background:
                    group.create_task(run(stop), name="background")
                for service in self.services:
                    alarm = service.alarm if isinstance(service, Reaper) else None
                    running = run_service(service, stop, self._tell, alarm)
                    group.create_task(running, name=service.name)

    @contextmanager
    def _listening_reapers(self) -> Iterator[None]:
        """Tell the reapers of the leases that this process grants, if its calls are reported."""
        listeners = self._tell
        if not isinstance(listeners, Listeners):
            yield
            return
        for reaper in self._reapers:
            listeners.add(reaper.on_event)
        try:
            yield
        finally:
            for reaper in self._reapers:
                listeners.remove(reaper.on_event)


def _broker_services(engine: Engine, tell: Tell) -> tuple[Service, ...]:
    """The services of an engine that has a broker beside its store."""
    brokered = extra(engine, Brokered)
    if brokered is None:
        return ()
    broker = brokered.broker()
    return DeadLetterHandler(engine, broker, tell=tell), QueueWatch(engine, broker, tell=tell)
