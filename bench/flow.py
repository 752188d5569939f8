"""The benchmark `flow`: the cost of limits, fairness, groups and aging for a queue that uses them.

Each case is drained in turns with a plain queue of the same store, so that a slow moment affects
both equally. The noisy neighbour is measured in one queue with fairness.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.report import Report
from bench.store_factory import store_factory
from bench.stores import ENGINES, EngineName, opened
from bench.subject import PAYLOAD, TASK, next_number
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Lease, LeaseRequest, NewJob, Queue, Status
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.base import Engine

GOAL = 0.5
BATCH = 100
_FREE = Rate(count=1_000_000, per_ms=1_000, burst=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`jobs` is the number drained in each turn of each case."""

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
class FlowCase:
    """A queue, and the number of tenants or groups its jobs are spread over."""

    name: str
    queue: Queue
    tenants: int = 0
    groups: int = 0


CASES = (
    FlowCase(
        name="one limit of 1,000 at a time",
        queue=Queue(name="slots", limits=(Limit(name="slots", concurrency=1_000),)),
    ),
    FlowCase(
        name="100 tenants, 20 at a time each",
        queue=Queue(name="per", limits=(Limit(name="per", key="{tenant}", concurrency=20),)),
        tenants=100,
    ),
    FlowCase(
        name="a rate that is not reached",
        queue=Queue(name="rate", limits=(Limit(name="rate", rate=_FREE),)),
    ),
    FlowCase(
        name="1,000 tenants in turn",
        queue=Queue(name="fair", fairness="shares"),
        tenants=1_000,
    ),
    FlowCase(
        name="noisy tenants behind", queue=Queue(name="noisy", fairness="noisy"), tenants=1_000
    ),
    FlowCase(name="1,000 strict groups", queue=Queue(name="groups"), groups=1_000),
    FlowCase(name="aging", queue=Queue(name="aging", aging_ms=60_000)),
)
PLAIN = FlowCase(name="plain", queue=Queue(name="plain"))


async def run(options: Options, log: Callable[[str], None]) -> Report:
    report = Report("flow")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for engine in options.engines:
            with store_factory(engine, Path(name), sync_delay_ms=0) as stores:
                for callers in (1,) if engine == "sqlite" else (1, 8):
                    store = await stores.store(f"flow{callers}")
                    async with opened(store) as engine_:
                        await _cases(engine_, options.sizes, callers, report, log)
                        if callers == 1:
                            await _neighbour(engine_, options.sizes, report, log)
    return report


async def _cases(
    engine: Engine, sizes: Sizes, callers: int, report: Report, log: Callable[[str], None]
) -> None:
    name = engine.traits.name
    callers_text = "one leaser" if callers == 1 else f"{callers} leasers"
    report.section(
        f"{name}, {callers_text}: lease and settle in batches of {BATCH}, compared with a plain"
        " queue"
    )
    for case in (PLAIN, *CASES):
        await engine.declare(case.queue)
    for case in CASES:
        rates: dict[str, list[float]] = {"plain": [], "flow": []}
        for turn in range(-1, sizes.repeats):
            log(f"{name}, {callers_text}, {case.name}: turn {max(turn, 0) + 1} of {sizes.repeats}")
            for key, each in (("plain", PLAIN), ("flow", case)):
                rate = await _drain(engine, each, sizes.jobs, callers)
                if turn >= 0:
                    rates[key].append(rate)
        report.rate(
            name,
            case.name if callers == 1 else f"{case.name}, {callers_text}",
            statistics.median(rates["flow"]),
            unit="jobs/s",
            reference=statistics.median(rates["plain"]),
            goal=None if case.name == "aging" else GOAL,
        )


async def _drain(engine: Engine, case: FlowCase, count: int, callers: int) -> float:
    await _enqueue(engine, case, count)
    left = count
    started = time.perf_counter()

    async def work() -> None:
        nonlocal left
        request = LeaseRequest(queues=(case.queue.name,), limit=BATCH, worker="worker")
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


async def _enqueue(
    engine: Engine, case: FlowCase, count: int, *, tenant: str | None = None
) -> None:
    for start in range(0, count, 1_000):
        jobs = [
            NewJob(
                id=f"job-{next_number():012d}",
                task=TASK,
                queue=case.queue.name,
                payload=PAYLOAD,
                tenant=f"t{at % case.tenants}" if case.tenants else tenant,
                group=f"g{at % case.groups}" if case.groups else None,
            )
            for at in range(start, min(start + 1_000, count))
        ]
        receipts = await engine.enqueue(jobs)
        assert all(receipt.status is Status.NEW for receipt in receipts), receipts[0]


async def _neighbour(
    engine: Engine, sizes: Sizes, report: Report, log: Callable[[str], None]
) -> None:
    """Measure a quiet tenant's jobs behind those of a noisy one, compared with the quiet one alone.

    The noisy tenant's jobs are already being processed when the quiet ones arrive.
    """
    report.section(
        f"{engine.traits.name}: {sizes.quiet} jobs of a quiet tenant behind {sizes.noisy:,} of a"
        " noisy one, compared with alone; 10 at a time"
    )
    for fairness in ("shares", "noisy"):
        log(f"{engine.traits.name}, noisy neighbour, {fairness}")
        alone = FlowCase(name="alone", queue=Queue(name=f"alone-{fairness}", fairness=fairness))
        crowd = FlowCase(name="crowd", queue=Queue(name=f"crowd-{fairness}", fairness=fairness))
        for case in (alone, crowd):
            await engine.declare(case.queue)
        await _enqueue(engine, crowd, sizes.noisy, tenant="noisy")
        took: dict[str, list[float]] = {"alone": [], "crowd": []}
        for _ in range(sizes.repeats):
            await _work(engine, crowd, 10 * sizes.quiet)
            for case in (alone, crowd):
                await _enqueue(engine, case, sizes.quiet, tenant="quiet")
                took[case.name].append(await _until_quiet(engine, case, sizes.quiet))
        report.cost(
            engine.traits.name,
            f"quiet tenant, {fairness}",
            statistics.median(took["crowd"]) * 1000,
            unit="ms",
            reference=statistics.median(took["alone"]) * 1000,
            goal=GOAL,
        )


async def _until_quiet(engine: Engine, case: FlowCase, left: int) -> float:
    started = time.perf_counter()
    while left > 0:
        done = await _work(engine, case, 10)
        left -= sum(lease.job.tenant == "quiet" for lease in done)
    return time.perf_counter() - started


async def _work(engine: Engine, case: FlowCase, count: int) -> list[Lease]:
    """Work on ten jobs at a time. The noisy tenant's jobs are never used up."""
    request = LeaseRequest(queues=(case.queue.name,), limit=10, worker="worker")
    done: list[Lease] = []
    while len(done) < count:
        leases = await engine.lease(request)
        assert leases, "the noisy tenant has no jobs left"
        await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
        done += leases
    return done
