"""The benchmark `engines`: SQLite and PostgreSQL compared with raw SQL on the same machine.

Defines the order of the measurements and their goals; other modules do the measuring.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import backlog, concurrency
from bench.cycle import Shape, compare
from bench.report import Report
from bench.store_factory import CONNECTIONS, StoreFactory, open_holdfast, store_factory
from bench.stores import ENGINES, EngineName, syncs_per_second

RAW_GOALS = {100: 0.7, 1_000: 0.8, 1: None}
"""The wanted ratio to raw SQL at each batch size."""
COALESCED_GOAL = 4.0
THREADS_GOAL = 8.0
MEMORY_MB_MAX = 150
IDLE_PERCENT_MAX = 1
COMMIT_WAIT_MS_MAX = 1_000

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    jobs: int = 20_000
    jobs_single: int = 1_000
    repeats: int = 7
    small: int = 10_000
    large: int = 1_000_000
    samples: int = 30
    callers: int = 100
    jobs_coalesced: int = 8_000
    threads: int = 16
    jobs_threads: int = 8_000
    writers: int = 32
    writers_s: float = 5.0
    wake_ups: int = 200
    idle_s: float = 5.0
    memory_s: float = 5.0


QUICK = Sizes(
    jobs=2_000,
    jobs_single=100,
    repeats=3,
    small=5_000,
    large=20_000,
    samples=10,
    jobs_coalesced=1_000,
    jobs_threads=1_000,
    writers=4,
    writers_s=1.0,
    wake_ups=40,
    idle_s=1.0,
    memory_s=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    engines: tuple[EngineName, ...] = ENGINES
    sizes: Sizes = Sizes()
    sync_delay_ms: float = 1.0


async def run(options: Options, log: Log) -> Report:
    """Run in a temporary directory, which is deleted afterwards."""
    report = Report("engines")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        directory = Path(name)
        log("the disk")
        report.section("The disk: 4 KB written and synced, one after the other")
        syncs = syncs_per_second(directory, seconds=0.5)
        report.rate("disk", "sync", syncs, unit="syncs/s")
        for engine in options.engines:
            await _Bench(engine, options, report, _about(engine, log)).run(directory)
    return report


class _Bench:
    """All measurements of one engine."""

    def __init__(self, engine: EngineName, options: Options, report: Report, log: Log) -> None:
        self._engine = engine
        self._sizes = options.sizes
        self._delay_ms = options.sync_delay_ms
        self._report = report
        self._log = log

    async def run(self, directory: Path) -> None:
        with store_factory(self._engine, directory, sync_delay_ms=0) as stores:
            await self._throughput(stores, delay_ms=0)
            await self._backlog(stores)
            await self._concurrency(stores)
            await self._threads(stores, delay_ms=0)
        if self._delay_ms > 0:
            with store_factory(
                self._engine, directory, sync_delay_ms=self._delay_ms
            ) as slow_stores:
                await self._throughput(slow_stores, delay_ms=self._delay_ms)
                await self._threads(slow_stores, delay_ms=self._delay_ms)

    async def _throughput(self, stores: StoreFactory, *, delay_ms: float) -> None:
        sizes = self._sizes
        callers = 1 if self._engine == "sqlite" else CONNECTIONS
        callers_text = "one process" if callers == 1 else f"{callers} connections"
        sync = f", sync + {delay_ms:g} ms" if delay_ms else ""
        self._report.section(
            f"{self._engine}, {callers_text}, full durability{sync}; the reference is raw SQL"
        )
        # With a slow sync, single-job calls are slow; fewer of them are enough.
        singles = max(sizes.jobs_single // 5, 10) if delay_ms else sizes.jobs_single
        raw, ours = await stores.raw(), await open_holdfast(await stores.store("holdfast"))
        for batch, goal in RAW_GOALS.items():
            jobs = singles if batch == 1 else sizes.jobs
            name = f"batch {batch:,}{sync}"
            rates = await compare(
                raw,
                ours,
                Shape(jobs=jobs, batch=batch, callers=callers),
                repeats=sizes.repeats,
                log=_about(name, self._log),
            )
            for phase, (value, reference) in rates.items():
                self._report.rate(
                    self._engine,
                    f"{phase}, {name}",
                    value,
                    unit="jobs/s",
                    reference=reference,
                    goal=goal,
                )
        await raw.close()
        await ours.close()

    async def _backlog(self, stores: StoreFactory) -> None:
        sizes = self._sizes
        self._report.section(
            f"{self._engine}, long queues; the reference is a store with {sizes.small:,} waiting"
        )
        small, large = await stores.store("small"), await stores.store("large")
        self._log(f"loading {sizes.small:,} jobs")
        await backlog.load_small(small, sizes.small)
        self._log(f"loading 3 × {sizes.large:,} jobs")
        await backlog.load_large(large, small=sizes.small, large=sizes.large)
        self._log("lease and settle on long queues")
        times = await backlog.measure(small, large, samples=sizes.samples)
        names = {
            backlog.DEEP: f"{sizes.large:,} waiting + {sizes.large:,} finished",
            backlog.LATER: f"{sizes.large:,} delayed of higher priority",
        }
        for queue, name in names.items():
            for act in ("lease", "settle"):
                reference = times[backlog.SMALL, act]
                value = times[queue, act]
                metric = f"{act} 100, {name}"
                self._report.cost(self._engine, metric, value, unit="ms", reference=reference)
        self._log("memory with a long queue")
        peak = await concurrency.memory_mb(large, queue=backlog.DEEP, seconds=sizes.memory_s)
        self._report.section(f"{self._engine}, what it uses; the reference is the bound")
        metric = f"most memory, {2 * sizes.large:,} jobs waiting"
        self._report.cost(self._engine, metric, peak, unit="MB", reference=MEMORY_MB_MAX, goal=1)

    async def _concurrency(self, stores: StoreFactory) -> None:
        sizes, report, engine = self._sizes, self._report, self._engine
        self._log("an idle engine")
        share = await concurrency.idle_share(await stores.store("idle"), seconds=sizes.idle_s)
        report.cost(
            engine,
            "idle with a waiting lease",
            share * 100,
            unit="% of a core",
            reference=IDLE_PERCENT_MAX,
            goal=1,
        )
        if engine == "sqlite":
            await self._writers(stores)
        self._log("wake-ups between processes")
        waits = await concurrency.wake_ups(await stores.store("wake_ups"), times=sizes.wake_ups)
        report.section(f"{engine}, enqueue in one process until leased in another that waits")
        for part in (50, 99):
            value = concurrency.percentile(waits, part / 100)
            report.cost(engine, f"wake-up, p{part}", value, unit="ms")
        if engine == "sqlite":
            await self._coalesced(stores)

    async def _writers(self, stores: StoreFactory) -> None:
        sizes, report, engine = self._sizes, self._report, self._engine
        self._log(f"{sizes.writers} processes that write")
        store = await stores.store("writers")
        waits, stall = await concurrency.writers(
            store, processes=sizes.writers, seconds=sizes.writers_s
        )
        report.section(f"{engine}, {sizes.writers} processes committing one job after the other")
        report.rate(engine, "all writers together", len(waits) / sizes.writers_s, unit="commits/s")
        for name, part, bound in (("p50", 0.5, None), ("p99.9", 0.999, 1), ("longest", 1.0, None)):
            report.cost(
                engine,
                f"wait for a commit, {name}",
                concurrency.percentile(waits, part),
                unit="ms",
                reference=bound and COMMIT_WAIT_MS_MAX,
                goal=bound,
            )
        report.cost(engine, "longest time without a commit by anybody", stall, unit="ms")

    async def _coalesced(self, stores: StoreFactory) -> None:
        sizes, report, engine = self._sizes, self._report, self._engine
        self._log(f"{sizes.callers} callers at once")
        report.section(
            f"{engine}, {sizes.callers} callers of single jobs through coalesced;"
            " the reference is one caller"
        )
        rates = await concurrency.coalesced(
            await stores.store("coalesced"),
            jobs=sizes.jobs_coalesced,
            callers=sizes.callers,
            repeats=max(sizes.repeats // 2, 1),
        )
        for phase, (many, one) in rates.items():
            metric = f"{phase}, {sizes.callers} callers"
            report.rate(engine, metric, many, unit="jobs/s", reference=one, goal=COALESCED_GOAL)

    async def _threads(self, stores: StoreFactory, *, delay_ms: float) -> None:
        sizes, report, engine = self._sizes, self._report, self._engine
        sync = f", sync + {delay_ms:g} ms" if delay_ms else ""
        self._log(f"{sizes.threads} threads{sync}")
        report.section(
            f"{engine}, blocking enqueue calls of {sizes.threads} threads{sync};"
            " the reference is one thread"
        )
        many, one = await concurrency.threads(
            await stores.store("threads"),
            # With a slow sync, single-job calls are slow; fewer of them are enough.
            jobs=sizes.jobs_threads // 5 if delay_ms else sizes.jobs_threads,
            count=sizes.threads,
            repeats=sizes.repeats,
        )
        metric = f"enqueue, {sizes.threads} threads{sync}"
        report.rate(engine, metric, many, unit="jobs/s", reference=one, goal=THREADS_GOAL)


def _about(name: str, log: Log) -> Log:
    return lambda text: log(f"{name}: {text}")
