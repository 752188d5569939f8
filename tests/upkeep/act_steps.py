"""Helpers of the tests of acts: jobs in every state, single steps, sums."""

from typing import Any

from holdfast.core.model import Job, JobFilter, LeaseRequest, NewJob
from holdfast.core.verdict import Bury, Settlement
from holdfast.engines.base import Engine
from holdfast.ops.jobs.acts import ACTS, ActPlan, ActRecord, Acts
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Amender

ANY = JobFilter(queue="default")


def amender_on(engine: Engine, clock: ManualClock) -> Amender:
    return Amender(engine, clock.wall_ms, boot_ns=lambda: clock.boot_ms() * 1_000_000)


async def add_jobs(engine: Engine, count: int, **fields: Any) -> list[str]:
    ids = [f"j{number:04}" for number in range(count)]
    given = {"payload": b'{"n":1}', **fields}
    await engine.enqueue([NewJob(id=id_, task="t", **given) for id_ in ids])
    return ids


async def lease_all(engine: Engine, ids: list[str]) -> None:
    assert len(await engine.lease(LeaseRequest(ids=tuple(ids), limit=100, worker="w"))) == len(ids)


async def bury_all(engine: Engine, ids: list[str]) -> None:
    leases = await engine.lease(LeaseRequest(ids=tuple(ids), limit=100, worker="w"))
    await engine.settle([Settlement(lease=each, verdict=Bury()) for each in leases])


async def start_act(acts: Acts, plan: ActPlan) -> str:
    counted = await acts.count(plan, "ann")
    return (await acts.run(counted.id, "ann")).id


async def step_until_idle(amender: Amender, steps: int = 60) -> int | None:
    """Step until there is nothing to do at once."""
    next_ms: int | None = 0
    while next_ms == 0 and steps:
        next_ms = await amender.once()
        steps -= 1
    assert next_ms != 0, "the amender never comes to rest"
    return next_ms


async def the_act(engine: Engine, id: str) -> ActRecord:
    stored = await ACTS.read(engine, id)
    assert stored is not None
    return ACTS.require(stored.record)


def sums(act: ActRecord) -> tuple[int, int, int]:
    return act.done, act.changed, act.failed


async def whole_jobs(engine: Engine) -> dict[str, Job]:
    found = (await engine.find(JobFilter(), limit=1000)).jobs
    whole = [await engine.get(job.id) for job in found]
    return {job.id: job for job in whole if job is not None}
