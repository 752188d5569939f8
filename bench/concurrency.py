"""Measurements with several callers or processes: group commit, writers, wake-ups, idle CPU."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import pairwise

import msgspec

from bench.cycle import Shape, measure
from bench.processes import background, child
from bench.stores import Store, build, opened
from bench.subject import PAYLOAD, TASK, HoldfastSubject
from holdfast import BlockingHoldfast
from holdfast.core.model import Queue
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.registry import open_engine


async def coalesced(
    store: Store, *, jobs: int, callers: int, repeats: int
) -> dict[str, list[float]]:
    """Median rates of single-job calls by phase: with many concurrent callers, and with one."""
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


async def threads(store: Store, *, jobs: int, count: int, repeats: int) -> tuple[float, float]:
    """Median rates of blocking enqueue calls in one process: by this many threads, and by one."""

    def measure_both() -> list[tuple[float, float]]:
        with BlockingHoldfast(engine=build(store)) as app:
            _enqueue_rate(app, jobs=max(jobs // 8, 1), threads=count)
            return [
                (
                    _enqueue_rate(app, jobs=jobs, threads=count),
                    _enqueue_rate(app, jobs=max(jobs // 8, 1), threads=1),
                )
                for _ in range(repeats)
            ]

    many, one = zip(*await asyncio.to_thread(measure_both), strict=True)
    return statistics.median(many), statistics.median(one)


def _enqueue_rate(app: BlockingHoldfast, *, jobs: int, threads: int) -> float:
    shares = [jobs // threads + (number < jobs % threads) for number in range(threads)]
    ready = threading.Barrier(threads + 1)

    def enqueue(share: int) -> None:
        ready.wait()
        for _ in range(share):
            app.enqueue(TASK, PAYLOAD)

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(enqueue, share) for share in shares]
        ready.wait()
        started = time.perf_counter()
        for call in calls:
            call.result()
        return jobs / (time.perf_counter() - started)


async def writers(store: Store, *, processes: int, seconds: float) -> tuple[list[float], float]:
    """Commit waits of many processes in ms, sorted, and the longest time without any commit.

    A time without any commit is due to the machine, not to an unfair lock.
    """
    async with opened(store):
        pass
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                child("writer", store, name=f"writer-{number}", seconds=seconds)
            )
            for number in range(processes)
        ]
        for process in children:
            await process.read()
        for process in children:
            process.write()
        calls = [call for process in children for call in await process.read()]
        for process in children:
            process.write()
    ends = sorted(done for _, done in calls)
    stall = max((later - earlier for earlier, later in pairwise(ends)), default=0)
    return sorted((done - started) / 1000 for started, done in calls), stall / 1000


async def wake_ups(store: Store, *, times: int) -> list[float]:
    """Times from enqueue in this process to the lease in another, in ms, sorted."""
    waits = []
    async with opened(store) as engine, child("waker", store, times=times) as waker:
        subject = HoldfastSubject(engine)
        await waker.read()
        for job in subject.make(times):
            # By then the other process waits again. A random pause keeps polls from aligning.
            await asyncio.sleep(random.uniform(0.01, 0.03))
            started = time.monotonic_ns()
            await subject.enqueue([job])
            waits.append((await waker.read() - started) / 1e6)
    return sorted(waits)


async def url_wake_ups(url: str, *, times: int, pause_s: tuple[float, float]) -> list[float]:
    """The same for any engine. The pauses before each enqueue are drawn from this range."""
    waits = []
    engine = open_engine(url)
    await engine.open()
    await engine.declare(Queue(name="wake"))
    subject = HoldfastSubject(engine, queue="wake")
    async with background("-m", "bench.remote", "waker", url, str(times)) as waker:
        await waker.read()
        for job in subject.make(times):
            await asyncio.sleep(random.uniform(*pause_s))
            started = time.monotonic_ns()
            await subject.enqueue([msgspec.structs.replace(job, id=f"wake-{job.id}")])
            waits.append((await waker.read() - started) / 1e6)
    await engine.close()
    return sorted(waits)


async def idle_share(store: Store, *, seconds: float) -> float:
    """Share of one core that an open engine with a waiting lease uses."""
    async with child("idle", store, seconds=seconds) as idle:
        return float((await idle.read())["share"])


async def memory_mb(store: Store, *, queue: str, seconds: float) -> float:
    """Peak memory of a process that leases and settles from a long queue."""
    async with child("memory", store, queue=queue, seconds=seconds) as worker:
        usage = await worker.read()
    assert usage["jobs"] > 0, "nothing was leased while memory was measured"
    return float(usage["rss_mb"])


def percentile(values: Sequence[float], part: float) -> float:
    """Percentile of sorted values, by the nearest rank."""
    return values[min(len(values) - 1, int(len(values) * part))]
