"""Helpers of the redrive tests: dead jobs, single steps, and an engine that kills at a write."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.model import (
    EventKind,
    Failure,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Record,
    State,
)
from holdfast.core.verdict import Amendment, Bury, Settlement, Verdict
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.ops.redrives import Redrives, RedriveView
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Redriver
from tests.killed import Killed

ALL = JobFilter(states=(State.DEAD,))
BROKEN = Failure(type="ValueError", message="broken")
OTHER = Failure(type="KeyError", message="other")


class KillableEngine(MemoryEngine):
    """Ends the process at the n-th write from now, before or after it was done."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.writes = 0
        self.kill_at: tuple[int, bool] | None = None

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._maybe_kill(done=False)
        saved = await super().save(records)
        self._maybe_kill(done=True)
        return saved

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._maybe_kill(done=False)
        changed = await super().amend(wanted, amendment, limit=limit)
        self._maybe_kill(done=True)
        return changed

    def _maybe_kill(self, *, done: bool) -> None:
        if (self.writes, done) == self.kill_at:
            self.kill_at = None
            raise Killed
        self.writes += done


async def settle_waiting(engine: Engine, verdict: Verdict, queue: str = "default") -> int:
    """Lease all waiting jobs and settle them with this verdict; how many."""
    ended = 0
    while leases := await engine.lease(LeaseRequest(queues=(queue,), limit=100, worker="w")):
        await engine.settle([Settlement(lease=each, verdict=verdict) for each in leases])
        ended += len(leases)
    return ended


async def bury_jobs(
    engine: Engine, count: int, failure: Failure = BROKEN, **fields: Any
) -> list[str]:
    start = len((await engine.find(JobFilter(), limit=1000)).jobs)
    ids = [f"j{number:04}" for number in range(start, start + count)]
    await engine.enqueue([NewJob(id=id_, task="t", **fields) for id_ in ids])
    assert await settle_waiting(engine, Bury(failure=failure)) == count
    return ids


async def step_until_idle(redriver: Redriver, steps: int = 50) -> int | None:
    """Step until there is nothing to do at once."""
    next_ms: int | None = 0
    while next_ms == 0 and steps:
        next_ms = await redriver.once()
        steps -= 1
    assert next_ms != 0, "the redriver never comes to rest"
    return next_ms


async def read_jobs(engine: Engine) -> list[Job]:
    found = (await engine.find(JobFilter(), limit=1000)).jobs
    whole = [await engine.get(job.id) for job in found]
    return [job for job in whole if job is not None]


def times_redriven(job: Job) -> int:
    return sum(event.kind is EventKind.REDRIVEN for event in job.events)


def redriver_on(engine: Engine, clock: ManualClock) -> Redriver:
    return Redriver(engine, clock.wall_ms, boot_ns=lambda: clock.boot_ms() * 1_000_000)


async def read_redrive(redrives: Redrives, id: str) -> RedriveView:
    view = await redrives.get(id)
    assert view is not None
    return view
