"""Torture runs over engines with built-in defects; prints the rules that the checker found broken.

python -m tests.crash.torture.broken_engine DIRECTORY losing|flowing

A run has a fixed duration, and each is longer than the one before: on a busy machine it may take
several to trigger every defect.
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
from tests.crash.mutants.mutants import AckBeforeCommit, Mutant, as_new
from torture.fault_injection import FaultInjector, FaultPlan
from torture.stores import Store
from torture.workload import QUEUES

LIMITS = {"limited": 3, "batched": 4}


class LimitOutside(Mutant):
    """Checks a limit in another transaction than the lease."""

    async def declare(self, queue: Queue, **how: Any) -> bool:
        if queue.name not in LIMITS:
            return await self.engine.declare(queue, **how)
        loose = tuple(
            replace(limit, concurrency=limit.concurrency and 1_000) for limit in queue.limits
        )
        return await self.engine.declare(replace(queue, limits=loose), **how)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        queues = []
        for name in request.queues:
            held = JobFilter(queue=name, states=(State.LEASED,))
            if name not in LIMITS or not (await self.engine.find(held, limit=1)).jobs:
                queues.append(name)
        return await self.engine.lease(replace(request, queues=tuple(queues)))


class NextOnRetry(Mutant):
    """Lets the next job of a group run while the first waits for a retry."""

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
    """Releases children when a parent ends, whatever its outcome."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self.engine.enqueue([replace(job, parent_death="run") for job in jobs])


class LeakedSlot(Mutant):
    """Keeps the slot of a lease that the reaper ends."""

    path: Path

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await self.engine.settle(settlements)
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            limited = bool(QUEUES[settlement.lease.job.queue].limits)
            if outcome is Outcome.SETTLED and limited and is_reaped(settlement.verdict):
                # Use the same library: a second SQLite in a process drops the locks of the first.
                with contextlib.closing(apsw.Connection(str(self.path))) as file:
                    file.set_busy_timeout(10_000)
                    file.execute(
                        "UPDATE hf_slots SET used = used + 1"
                        " WHERE id = (SELECT min(id) FROM hf_slots)"
                    )
        return outcomes


RUNS_MAX = 8
DEFECTS: dict[str, tuple[tuple[type[Mutant], ...], set[str]]] = {
    "losing": ((AckBeforeCommit,), {"I1"}),
    "flowing": (
        (LeakedSlot, NextOnRetry, ChildRegardless, LimitOutside),
        {"I18", "I19", "I20", "I21"},
    ),
}
"""The defects of each kind, and the rules that they break."""


def main(home: Path, kind: str) -> None:
    mutants, broken = DEFECTS[kind]
    found = set[str]()
    for seed in range(1, RUNS_MAX + 1):
        run_home = home / str(seed)
        run_home.mkdir()
        found |= run_with_faults(run_home, mutants, seed)
        if broken <= found:
            break
    print(" ".join(sorted(found)))


def run_with_faults(home: Path, mutants: tuple[type[Mutant], ...], seed: int) -> set[str]:
    LeakedSlot.path = home / "jobs.db"

    def make() -> Engine:
        engine = cast(Engine, SQLiteEngine(home / "jobs.db"))
        for mutant in mutants:
            engine = cast(Engine, mutant(engine, ManualClock()))
        return engine

    plan = FaultPlan(processes=3, kills=12, seconds=2 * seed, seed=seed, freezes=0, server_kills=0)
    histories = home / "histories"
    histories.mkdir()
    store = Store("sqlite", make, None, f"sqlite:///{home}/jobs.db")
    return set(FaultInjector(store, plan, histories).run().rules)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
