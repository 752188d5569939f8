"""Measurements that need more than one caller: group commit, many writers, wake-ups, idling."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise

from bench.cycle import Shape, measure
from bench.processes import child
from bench.stores import Store, opened
from bench.subject import HoldfastSubject
from holdfast.engines.coalesced import Coalesced


async def coalesced(
    store: Store, *, jobs: int, callers: int, repeats: int
) -> dict[str, list[float]]:
    """By phase, the median rates of single-job calls: many callers at once, and one alone."""
    rates: dict[str, tuple[list[float], list[float]]] = {}
    async with opened(store) as engine:
        alone, grouped = HoldfastSubject(engine), HoldfastSubject(Coalesced(engine))
        for _ in range(repeats):
            many = await measure(grouped, Shape(jobs=jobs, batch=1, callers=callers))
            one = await measure(alone, Shape(jobs=max(jobs // 8, 1), batch=1))
            for phase in many:
                pair = rates.setdefault(phase, ([], []))
                pair[0].append(many[phase])
                pair[1].append(one[phase])
    return {phase: [statistics.median(side) for side in pair] for phase, pair in rates.items()}


async def writers(store: Store, *, processes: int, seconds: float) -> tuple[list[float], float]:
    """How long each of many processes waited for each of its commits, in ms, shortest first; and
    the longest time in which none of them committed, which is the machine's doing."""
    async with opened(store):
        pass
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                child("writer", store, name=f"writer-{number}", seconds=seconds)
            )
            for number in range(processes)
        ]
        for one in children:
            await one.read()
        for one in children:
            one.tell()
        calls = [call for one in children for call in await one.read()]
        for one in children:
            one.tell()
    ends = sorted(done for _, done in calls)
    stall = max((later - earlier for earlier, later in pairwise(ends)), default=0)
    return sorted((done - started) / 1000 for started, done in calls), stall / 1000


async def wake_ups(store: Store, *, times: int) -> list[float]:
    """From the call of enqueue here to the job in hand in another process, in ms, sorted."""
    waits = []
    async with opened(store) as engine, child("waker", store, times=times) as waker:
        subject = HoldfastSubject(engine)
        await waker.read()
        for job in subject.make(times):
            # By then the other waits again, at no fixed distance from its last look.
            await asyncio.sleep(random.uniform(0.01, 0.03))
            started = time.monotonic_ns()
            await subject.enqueue([job])
            waits.append((await waker.read() - started) / 1e6)
    return sorted(waits)


async def idle_share(store: Store, *, seconds: float) -> float:
    """The part of one core that an open engine with a waiting lease uses."""
    async with child("idle", store, seconds=seconds) as idle:
        return float((await idle.read())["share"])


async def memory_mb(store: Store, *, queue: str, seconds: float) -> float:
    """The most memory a process ever used that leases and settles from a long queue."""
    async with child("memory", store, queue=queue, seconds=seconds) as worker:
        found = await worker.read()
    assert found["jobs"] > 0, "nothing was leased while memory was measured"
    return float(found["rss_mb"])


def percentile(values: Sequence[float], part: float) -> float:
    """Of sorted values; the nearest at or above."""
    return values[min(len(values) - 1, int(len(values) * part))]
