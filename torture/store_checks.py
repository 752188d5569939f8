"""Steps of a torture run outside the faults: prepare the store, compare its slots with its leases,
wait until it drains, and write its contents to the history."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.conformance.history import Journal, Recorded, dump
from holdfast.core import bounds
from holdfast.core.lanes import is_same_flow, lane_of
from holdfast.core.limits import SlotKey
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.verdict import Redrive
from holdfast.engines.base import Engine
from torture.client import retry_until_answered
from torture.workload import QUEUES, SETTINGS

RECOUNTS = 5


async def prepare(engine: Engine, journal: Journal) -> None:
    """Declare all queues."""
    recorded = Recorded(engine, journal)
    await recorded.open()
    for queue in QUEUES.values():
        await recorded.declare(queue)
    await recorded.close()


async def check_slots(engine: Engine, journal: Journal) -> None:
    """Record used and held slots right after all clients were killed, before any repair."""
    await retry_until_answered(engine.open)
    for _ in range(20):
        # A server may still process the last statements of killed clients.
        found = await retry_until_answered(lambda: _slots(engine))
        if all(used == held for used, held in found.values()):
            break
        await asyncio.sleep(0.1)
    for slot, (used, held) in found.items():
        journal.note("audit", limit=slot.limit, key=slot.key, used=used, held=held)
    await engine.close()


async def drain(engine: Engine, journal: Journal, seconds_max: float) -> bool:
    """Wait until every job is finished."""
    recorded = Recorded(engine, journal)
    await retry_until_answered(recorded.open)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds_max
    polls = 0
    drained = False
    while not drained and loop.time() < end:
        drained = not await retry_until_answered(lambda: _unfinished(engine))
        polls += 1
        if polls % 10 == 0:
            await retry_until_answered(lambda: _release_held(recorded))
        await asyncio.sleep(0.1)
    await recorded.close()
    return drained


async def is_drained(engine: Engine) -> bool:
    """Whether every job is finished."""
    await retry_until_answered(engine.open)
    unfinished = await retry_until_answered(lambda: _unfinished(engine))
    await engine.close()
    return not unfinished


async def survey(engine: Engine, journal: Journal) -> None:
    """Record the contents of the store, and whether every job is finished."""
    recorded = Recorded(engine, journal)
    await retry_until_answered(recorded.open)
    unfinished = await retry_until_answered(lambda: _unfinished(engine))
    journal.note("undrained" if unfinished else "drained")
    # On PostgreSQL a process that is killed leaves it to the next reaper to notify children.
    await retry_until_answered(lambda: engine.overdue(1))
    for _ in range(RECOUNTS):
        await retry_until_answered(lambda: recorded.recount(bounds.PAGE_MAX))
    await retry_until_answered(lambda: dump(engine, journal))
    await recorded.close()


async def _release_held(engine: Recorded) -> None:
    """Redrive dead parents, so that jobs held by them can end."""
    for job in await all_jobs(engine, (State.WAITING,)):
        waits = await engine.waits(job.id)
        if waits is not None and waits.parents:
            dead = JobFilter(ids=waits.parents, states=(State.DEAD, State.CANCELLED))
            if (await engine.find(dead, limit=1)).jobs:
                await engine.amend(dead, Redrive(), limit=len(waits.parents))


async def _slots(engine: Engine) -> dict[SlotKey, tuple[int, int]]:
    """Used and held slots of the limits whose settings never change."""
    steady = [
        queue
        for name, queue in QUEUES.items()
        if all(is_same_flow(queue, variant) for variant in SETTINGS[name])
    ]
    held: Counter[SlotKey] = Counter()
    for job in await all_jobs(engine, (State.LEASED,)):
        lane = lane_of(job, QUEUES[job.queue])
        held.update(lane.slots if lane else ())
    used: dict[SlotKey, int] = {}
    for queue in steady:
        flow = await engine.flow(queue.name, limit=bounds.PAGE_MAX)
        used |= {SlotKey(slot.limit, slot.key): slot.used for slot in flow.slots}
    names = {limit.name for queue in steady for limit in queue.limits}
    return {
        slot: (used.get(slot, 0), held[slot])
        for slot in used.keys() | held.keys()
        if slot.limit in names
    }


async def _unfinished(engine: Engine) -> bool:
    wanted, after = JobFilter(states=(State.WAITING, State.LEASED)), None
    while True:
        page = await engine.find(wanted, limit=1, after=after)
        after = page.after
        if page.jobs or after is None:
            return bool(page.jobs)


async def all_jobs(engine: Engine, states: tuple[State, ...]) -> list[Job]:
    """Read every job in these states."""
    wanted, after = JobFilter(states=states), None
    found: list[Job] = []
    while True:
        page = await engine.find(wanted, limit=bounds.PAGE_MAX, after=after)
        found += page.jobs
        after = page.after
        if after is None:
            return found
