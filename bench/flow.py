"""The benchmark `flow`: what limits, fairness, groups and dependencies cost a queue that uses them.

Each shape is drained in turns with a plain queue of the same store, lease by lease, so that a slow
moment hurts both alike. The noisy neighbour is measured in one queue with fairness.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.grounds import ground
from bench.report import Report
from bench.stores import ENGINES, EngineName, opened
from bench.subject import PAYLOAD, TASK, next_number
from holdfast.core.flow import Limit, Rate
from holdfast.core.model import Lease, LeaseRequest, NewJob, Queue, Status
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.base import Engine

GOAL = 0.5
BATCH = 100
_FREE = Rate(count=1_000_000, per_ms=1_000, burst=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`jobs` are drained in each turn of each shape."""

    jobs: int = 10_000
    repeats: int = 5
    noisy: int = 100_000
    quiet: int = 100


QUICK = Sizes(jobs=1_000, repeats=2, noisy=3_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    engines: tuple[EngineName, ...] = ENGINES
    sizes: Sizes = Sizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A queue, and how its jobs are spread over tenants or groups."""

    name: str
    queue: Queue
    tenants: int = 0
    groups: int = 0


SHAPES = (
    Shape(
        name="one limit of 1,000 at a time",
        queue=Queue(name="slots", limits=(Limit(name="slots", concurrency=1_000),)),
    ),
    Shape(
        name="100 tenants, 20 at a time each",
        queue=Queue(name="per", limits=(Limit(name="per", key="{tenant}", concurrency=20),)),
        tenants=100,
    ),
    Shape(
        name="a rate that is not reached",
        queue=Queue(name="rate", limits=(Limit(name="rate", rate=_FREE),)),
    ),
    Shape(
        name="1,000 tenants in turn",
        queue=Queue(name="fair", fairness="shares"),
        tenants=1_000,
    ),
    Shape(name="noisy tenants behind", queue=Queue(name="noisy", fairness="noisy"), tenants=1_000),
    Shape(name="1,000 strict groups", queue=Queue(name="groups"), groups=1_000),
    Shape(name="aging", queue=Queue(name="aging", aging_ms=60_000)),
)
PLAIN = Shape(name="plain", queue=Queue(name="plain"))


async def run(options: Options, tell: Callable[[str], None]) -> Report:
    report = Report("flow")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for engine in options.engines:
            with ground(engine, Path(name), sync_delay_ms=0) as where:
                for callers in (1,) if engine == "sqlite" else (1, 8):
                    store = await where.store(f"flow{callers}")
                    async with opened(store) as opened_:
                        await _shapes(opened_, options.sizes, callers, report, tell)
                        if callers == 1:
                            await _neighbour(opened_, options.sizes, report, tell)
    return report


async def _shapes(
    engine: Engine, sizes: Sizes, callers: int, report: Report, tell: Callable[[str], None]
) -> None:
    name = engine.traits.name
    who = "one leaser" if callers == 1 else f"{callers} leasers"
    report.section(f"{name}, {who}: lease and settle in batches of {BATCH}, beside a plain queue")
    for shape in (PLAIN, *SHAPES):
        await engine.declare(shape.queue)
    for shape in SHAPES:
        rates: dict[str, list[float]] = {"plain": [], "flow": []}
        for turn in range(-1, sizes.repeats):
            tell(f"{name}, {who}, {shape.name}: turn {max(turn, 0) + 1} of {sizes.repeats}")
            for key, each in (("plain", PLAIN), ("flow", shape)):
                rate = await _drain(engine, each, sizes.jobs, callers)
                if turn >= 0:
                    rates[key].append(rate)
        report.rate(
            name,
            shape.name if callers == 1 else f"{shape.name}, {who}",
            statistics.median(rates["flow"]),
            unit="jobs/s",
            reference=statistics.median(rates["plain"]),
            goal=None if shape.name == "aging" else GOAL,
        )


async def _drain(engine: Engine, shape: Shape, count: int, callers: int) -> float:
    await _enqueue(engine, shape, count)
    left = count
    started = time.perf_counter()

    async def work() -> None:
        nonlocal left
        request = LeaseRequest(queues=(shape.queue.name,), limit=BATCH, worker="worker")
        while left > 0:
            leases = await engine.lease(request)
            if not leases:
                await asyncio.sleep(0.001)
            await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
            left -= len(leases)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(work())
    return count / (time.perf_counter() - started)


async def _enqueue(engine: Engine, shape: Shape, count: int, *, tenant: str | None = None) -> None:
    for start in range(0, count, 1_000):
        jobs = [
            NewJob(
                id=f"job-{next_number():012d}",
                task=TASK,
                queue=shape.queue.name,
                payload=PAYLOAD,
                tenant=f"t{at % shape.tenants}" if shape.tenants else tenant,
                group=f"g{at % shape.groups}" if shape.groups else None,
            )
            for at in range(start, min(start + 1_000, count))
        ]
        receipts = await engine.enqueue(jobs)
        assert all(receipt.status is Status.NEW for receipt in receipts), receipts[0]


async def _neighbour(
    engine: Engine, sizes: Sizes, report: Report, tell: Callable[[str], None]
) -> None:
    """A quiet tenant's jobs come after a noisy one's: their time to the last, beside alone.

    The noisy tenant is at work already when they come, as it is where such a thing happens.
    """
    report.section(
        f"{engine.traits.name}: {sizes.quiet} jobs of a quiet tenant behind {sizes.noisy:,} of a"
        " noisy one, beside alone; 10 at a time"
    )
    for fairness in ("shares", "noisy"):
        tell(f"{engine.traits.name}, noisy neighbour, {fairness}")
        alone = Shape(name="alone", queue=Queue(name=f"alone-{fairness}", fairness=fairness))
        crowd = Shape(name="crowd", queue=Queue(name=f"crowd-{fairness}", fairness=fairness))
        for shape in (alone, crowd):
            await engine.declare(shape.queue)
        await _enqueue(engine, crowd, sizes.noisy, tenant="noisy")
        took: dict[str, list[float]] = {"alone": [], "crowd": []}
        for _ in range(sizes.repeats):
            await _work(engine, crowd, 10 * sizes.quiet)
            for shape in (alone, crowd):
                await _enqueue(engine, shape, sizes.quiet, tenant="quiet")
                took[shape.name].append(await _until_quiet(engine, shape, sizes.quiet))
        report.cost(
            engine.traits.name,
            f"quiet tenant, {fairness}",
            statistics.median(took["crowd"]) * 1000,
            unit="ms",
            reference=statistics.median(took["alone"]) * 1000,
            goal=GOAL,
        )


async def _until_quiet(engine: Engine, shape: Shape, left: int) -> float:
    started = time.perf_counter()
    while left > 0:
        done = await _work(engine, shape, 10)
        left -= sum(lease.job.tenant == "quiet" for lease in done)
    return time.perf_counter() - started


async def _work(engine: Engine, shape: Shape, count: int) -> list[Lease]:
    """Ten at a time. What the noisy tenant has is never used up."""
    request = LeaseRequest(queues=(shape.queue.name,), limit=10, worker="worker")
    done: list[Lease] = []
    while len(done) < count:
        leases = await engine.lease(request)
        assert leases, "nothing is left to be noisy with"
        await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
        done += leases
    return done
