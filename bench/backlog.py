"""Compares lease and settle on a store with millions of jobs and on a small store.

Both stores are open at once and used in turns, so that a slow moment affects both equally.
"""

from __future__ import annotations

import statistics
import time

from bench.clone import clone
from bench.stores import Store, opened
from bench.subject import PAYLOAD, TASK, HoldfastSubject
from holdfast.core.bounds import DAY_MS
from holdfast.core.model import LeaseRequest, NewJob, Queue, Status
from holdfast.core.verdict import Complete, Settlement

SMALL, DEEP, LATER = "default", "deep", "later"
BATCH = 100


async def load_small(store: Store, count: int) -> None:
    """Fill a store with `count` waiting jobs."""
    await _enqueue(store, NewJob(id="small", task=TASK, queue=SMALL, payload=PAYLOAD))
    await clone(store, "small", count)


async def load_large(store: Store, *, small: int, large: int) -> None:
    """Fill one queue with waiting and finished jobs, and one with few due and many delayed."""
    async with opened(store) as engine:
        await engine.declare(Queue(name=DEEP))
        await engine.declare(Queue(name=LATER))
    await _enqueue(store, NewJob(id="deep", task=TASK, queue=DEEP, payload=PAYLOAD))
    await clone(store, "deep", large)
    await _enqueue(store, NewJob(id="ended", task=TASK, queue=DEEP, payload=PAYLOAD))
    async with opened(store) as engine:
        leases = await engine.lease(LeaseRequest(ids=("ended",)))
        await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    await clone(store, "ended", large)
    await _enqueue(store, NewJob(id="due", task=TASK, queue=LATER, payload=PAYLOAD))
    await clone(store, "due", small)
    for priority in (10, 20):
        job = NewJob(
            id=f"later-{priority}",
            task=TASK,
            queue=LATER,
            payload=PAYLOAD,
            priority=priority,
            delay_ms=DAY_MS,
        )
        await _enqueue(store, job)
        await clone(store, job.id, large // 2)


async def measure(small: Store, large: Store, *, samples: int) -> dict[tuple[str, str], float]:
    """Median times in ms to lease and to settle 100 jobs, by queue and call."""
    times: dict[tuple[str, str], list[float]] = {}
    async with opened(small) as few, opened(large) as many:
        subjects = {
            SMALL: HoldfastSubject(few, queue=SMALL),
            DEEP: HoldfastSubject(many, queue=DEEP),
            LATER: HoldfastSubject(many, queue=LATER),
        }
        for turn in range(-3, samples):
            for queue, subject in subjects.items():
                started = time.perf_counter()
                leases = await subject.lease(BATCH)
                leased = time.perf_counter()
                await subject.settle(leases)
                settled = time.perf_counter()
                assert leases, f"queue {queue} has no jobs left"
                if turn >= 0:
                    times.setdefault((queue, "lease"), []).append((leased - started) * 1000)
                    times.setdefault((queue, "settle"), []).append((settled - leased) * 1000)
    return {name: statistics.median(samples_ms) for name, samples_ms in times.items()}


async def _enqueue(store: Store, job: NewJob) -> None:
    async with opened(store) as engine:
        (receipt,) = await engine.enqueue([job])
        assert receipt.status is Status.NEW, receipt
