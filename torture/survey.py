"""What is done to the store when nobody else is there, or nobody is killed any more: it is
prepared, its slots are compared with its leases, it is seen to drain, and written down."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.core import limits
from holdfast.core.flow import SlotKey
from holdfast.core.lanes import is_same_flow, lane_of
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.verdict import Redrive
from holdfast.engines.base import Engine
from holdfast.testing.history import Journal, Recorded, dump
from torture.player import patiently
from torture.queues import QUEUES, SETTINGS

RECOUNTS = 5


async def prepare(engine: Engine, journal: Journal) -> None:
    recorded = Recorded(engine, journal)
    await recorded.open()
    for queue in QUEUES.values():
        await recorded.declare(queue)
    await recorded.close()


async def audit(engine: Engine, journal: Journal) -> None:
    """Everybody was just killed, and nothing was mended yet: does every slot count its leases?"""
    await patiently(engine.open)
    for _ in range(20):
        # A server may still be busy with the last words of the dead.
        found = await patiently(lambda: _slots(engine))
        if all(used == held for used, held in found.values()):
            break
        await asyncio.sleep(0.1)
    for slot, (used, held) in found.items():
        journal.note("audit", limit=slot.limit, key=slot.key, used=used, held=held)
    await engine.close()


async def survey(engine: Engine, journal: Journal, patience_s: float) -> bool:
    """Wait until every job is finished, then write down what the store holds."""
    recorded = Recorded(engine, journal)
    await patiently(recorded.open)
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    looks = 0
    drained = False
    while not drained and loop.time() < end:
        drained = not await patiently(lambda: _unfinished(engine))
        looks += 1
        if looks % 10 == 0:
            await patiently(lambda: _let_go(recorded))
        await asyncio.sleep(0.1)
    journal.note("drained" if drained else "undrained", after_s=patience_s)
    for _ in range(RECOUNTS):
        await patiently(lambda: recorded.recount(limits.PAGE_MAX))
    await patiently(lambda: dump(engine, journal))
    await recorded.close()
    return drained


async def _let_go(engine: Recorded) -> None:
    """Those that are held until a dead parent works again: put it back to work."""
    for job in await _all(engine, (State.WAITING,)):
        waits = await engine.waits(job.id)
        if waits is not None and waits.parents:
            dead = JobFilter(ids=waits.parents, states=(State.DEAD, State.CANCELLED))
            if (await engine.find(dead, limit=1)).jobs:
                await engine.amend(dead, Redrive(), limit=len(waits.parents))


async def _slots(engine: Engine) -> dict[SlotKey, tuple[int, int]]:
    """What is counted and what is held, of limits that count alike at all times."""
    steady = [
        queue
        for name, queue in QUEUES.items()
        if all(is_same_flow(queue, variant) for variant in SETTINGS[name])
    ]
    held: Counter[SlotKey] = Counter()
    for job in await _all(engine, (State.LEASED,)):
        lane = lane_of(job, QUEUES[job.queue])
        held.update(lane.slots if lane else ())
    used: dict[SlotKey, int] = {}
    for queue in steady:
        flow = await engine.flow(queue.name, limit=limits.PAGE_MAX)
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


async def _all(engine: Engine, states: tuple[State, ...]) -> list[Job]:
    wanted, after = JobFilter(states=states), None
    found: list[Job] = []
    while True:
        page = await engine.find(wanted, limit=limits.PAGE_MAX, after=after)
        found += page.jobs
        after = page.after
        if after is None:
            return found
