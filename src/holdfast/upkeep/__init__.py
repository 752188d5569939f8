"""KEEP TIME: the reaper, pruner, scheduler, redriver and distributor, together or apart.

No leader: any number of each may run, in any number of processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from holdfast.engines.base import Engine
from holdfast.events import Tell, tell_nobody
from holdfast.upkeep.archive import Archive
from holdfast.upkeep.distributions import Distribution, Distributions
from holdfast.upkeep.distributor import Distributor
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.reaper import Reaper
from holdfast.upkeep.redrive import RedrivePlan, RedriveRecord, RedriveState
from holdfast.upkeep.redriver import Redriver
from holdfast.upkeep.redrives import Redrives, RedriveView
from holdfast.upkeep.schedule import Schedule
from holdfast.upkeep.scheduler import Scheduler
from holdfast.upkeep.schedules import Schedules
from holdfast.upkeep.service import Service, keep

__all__ = [
    "Archive",
    "Distribution",
    "Distributions",
    "Distributor",
    "Pruner",
    "Reaper",
    "RedrivePlan",
    "RedriveRecord",
    "RedriveState",
    "RedriveView",
    "Redriver",
    "Redrives",
    "Schedule",
    "Scheduler",
    "Schedules",
    "Upkeep",
    "wall_ms",
]

Run = Callable[[asyncio.Event], Coroutine[object, object, None]]
"""Until the event is set."""


def wall_ms() -> int:
    """This machine's wall clock."""
    return time.time_ns() // 1_000_000


class Upkeep:
    """All of them on one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        archive: Path | str | None = None,
        tell: Tell = tell_nobody,
        wall_ms: Callable[[], int] = wall_ms,
        more: Sequence[Service] = (),
        beside: Run | None = None,
    ) -> None:
        """`more` are services of others; `beside` them runs something with its own way to end."""
        kept = None if archive is None else Archive(archive)
        self._tell = tell
        self.services: tuple[Service, ...] = (
            Reaper(engine, tell=tell),
            Pruner(engine, archive=kept, tell=tell),
            Scheduler(engine, wall_ms, tell=tell),
            Redriver(engine, wall_ms, tell=tell),
            Distributor(engine, tell=tell),
            *more,
        )
        self._beside = beside

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; a step that has begun is finished."""
        async with asyncio.TaskGroup() as group:
            if self._beside is not None:
                group.create_task(self._beside(stop), name="beside")
            for service in self.services:
                group.create_task(keep(service, stop, self._tell), name=service.name)
