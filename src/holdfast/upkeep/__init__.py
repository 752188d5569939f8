"""KEEP TIME: the loops that end overdue leases, prune, tick schedules, redrive and distribute.

There is no leader: any number of each loop may run, in any number of processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from holdfast.engines.base import Engine
from holdfast.events import Tell, tell_nobody
from holdfast.notation.durations import wall_ms
from holdfast.ops.jobs.bulk import Archive
from holdfast.ops.service import Service, keep
from holdfast.upkeep.distributor import Distributor
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.reaper import Reaper
from holdfast.upkeep.redriver import Redriver
from holdfast.upkeep.scheduler import Scheduler

__all__ = ["Distributor", "Pruner", "Reaper", "Redriver", "Scheduler", "Upkeep"]

RunUntil = Callable[[asyncio.Event], Coroutine[object, object, None]]
"""Runs until the event is set."""


class Upkeep:
    """All loops on one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        archive: Path | str | None = None,
        tell: Tell = tell_nobody,
        wall_ms: Callable[[], int] = wall_ms,
        more: Sequence[Service] = (),
        beside: RunUntil | None = None,
    ) -> None:
        """`more` are further services; `beside` runs next to them and ends by itself."""
        self._tell = tell
        self.services: tuple[Service, ...] = (
            Reaper(engine, tell=tell),
            Pruner(engine, archive=None if archive is None else Archive(archive), tell=tell),
            Scheduler(engine, wall_ms, tell=tell),
            Redriver(engine, wall_ms, tell=tell),
            Distributor(engine, tell=tell),
            *more,
        )
        self._beside = beside

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; a step that began is finished."""
        async with asyncio.TaskGroup() as group:
            if self._beside is not None:
                group.create_task(self._beside(stop), name="beside")
            for service in self.services:
                group.create_task(keep(service, stop, self._tell), name=service.name)
