"""A storm over an engine with mistakes: run as a program, it prints what the checker found.

python -m tests.torture.spoilt DIRECTORY losing|flowing

A storm is as long as the clock says: on a busy machine it takes several to meet every mistake.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import apsw
from msgspec.structs import replace

from holdfast.core.lifecycle import is_reaped
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Queue, Receipt, State
from holdfast.core.verdict import Outcome, Retry, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock
from tests.mutants.mutants import AckBeforeCommit, Mutant, as_new
from torture.queues import QUEUES
from torture.stores import Store
from torture.storm import Storm, Weather

BOUND = {"limited": 3, "batched": 4}


class LimitOutside(Mutant):
    """Looks whether there is room under a limit, and leases in another transaction."""

    async def declare(self, queue: Queue, **how: Any) -> bool:
        if queue.name not in BOUND:
            return await self.engine.declare(queue, **how)
        loose = tuple(
            replace(limit, concurrency=limit.concurrency and 1_000) for limit in queue.limits
        )
        return await self.engine.declare(replace(queue, limits=loose), **how)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        queues = []
        for name in request.queues:
            held = JobFilter(queue=name, states=(State.LEASED,))
            if name not in BOUND or not (await self.engine.find(held, limit=1)).jobs:
                queues.append(name)
        return await self.engine.lease(replace(request, queues=tuple(queues)))


class NextOnRetry(Mutant):
    """While a member of a group waits to be retried, the next one may go."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            job, verdict = settlement.lease.job, settlement.verdict
            retried = isinstance(verdict, Retry) and outcome is Outcome.SETTLED
            if job.group is not None and retried:
                await self.remove(job.id)
                await self.engine.enqueue(
                    [replace(as_new(job), group=job.group, tenant=job.tenant)]
                )
        return outcomes


class ChildRegardless(Mutant):
    """The end of a parent lets its children go, however it ended."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self.engine.enqueue([replace(job, parent_death="run") for job in jobs])


class SlotKept(Mutant):
    """A lease that the reaper ends keeps its slot."""

    path: Path

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            limited = bool(QUEUES[settlement.lease.job.queue].limits)
            if outcome is Outcome.SETTLED and limited and is_reaped(settlement.verdict):
                # By the same library: a second one in a process takes the locks of the first.
                with contextlib.closing(apsw.Connection(str(self.path))) as file:
                    file.set_busy_timeout(10_000)
                    file.execute(
                        "UPDATE hf_slots SET used = used + 1"
                        " WHERE id = (SELECT min(id) FROM hf_slots)"
                    )
        return outcomes


STORMS_MAX = 8
SORTS: dict[str, tuple[tuple[type[Mutant], ...], set[str]]] = {
    "losing": ((AckBeforeCommit,), {"I1"}),
    "flowing": (
        (SlotKept, NextOnRetry, ChildRegardless, LimitOutside),
        {"I18", "I19", "I20", "I21"},
    ),
}
"""The mistakes of each sort, and the rules that they break."""


def main(home: Path, sort: str) -> None:
    mutants, broken = SORTS[sort]
    found = set[str]()
    for seed in range(1, STORMS_MAX + 1):
        place = home / str(seed)
        place.mkdir()
        found |= storm(place, mutants, seed)
        if broken <= found:
            break
    print(" ".join(sorted(found)))


def storm(home: Path, mutants: tuple[type[Mutant], ...], seed: int) -> set[str]:
    SlotKept.path = home / "jobs.db"

    def make() -> Engine:
        engine = cast(Engine, SQLiteEngine(home / "jobs.db"))
        for mutant in mutants:
            engine = cast(Engine, mutant(engine, ManualClock()))
        return engine

    weather = Weather(processes=3, kills=12, seconds=2, seed=seed, freezes=0, server_kills=0)
    histories = home / "histories"
    histories.mkdir()
    return set(Storm(Store("sqlite", make, None, ""), weather, histories).run().rules)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
