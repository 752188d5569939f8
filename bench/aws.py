"""The benchmark `aws`: workers on Amazon SQS, at our own endpoint in its own process.

API calls per job and their cost, drained jobs compared with a bare loop of boto3 and with Celery,
the CPU time that messages in flight cost, and what a noisy tenant costs a quiet one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from bench.aws_tenants import distributed_s, fair_s
from bench.drain import Log, Results
from bench.peers import run as turns
from bench.peers.catalogue import BARE_SQS, ON_SQS, SQS_PEERS, Contestant
from bench.peers.install import NotInstalled, install_python
from bench.peers.run import DRAIN_S_MAX, Failed
from bench.peers.workspace import SQS_KEYS, Workspace, sqs_depth, sqs_endpoint, sqs_workspace
from bench.processes import cpu_ns
from bench.report import Report
from bench.sqs_counter import counting_proxy
from holdfast import Holdfast

CALLS_MAX = 0.35
BARE_GOAL = 0.5
PEER_GOAL = 3.0
HELD_PERCENT_MAX = 5
TENANT_FACTOR_MAX = 2
USD_PER_MILLION = 0.40
"""A million requests to a standard queue in us-east-1: Amazon's list price, without the first
million of a month, which are free. A request of more than 64 KiB counts as several."""
HELD_LEASE_S = 30
"""The visibility timeout of messages in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    jobs: int = 20_000
    repeats: int = 3
    held: int = 1_000
    held_s: float = 60.0
    noisy: int = 100_000
    quiet: int = 100


QUICK = Sizes(jobs=1_000, repeats=1, held=100, held_s=5.0, noisy=2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`peers`: also measure Celery. `parts` are the measurements, and `endpoint` a running server,
    used instead of a new one for each measurement."""

    sizes: Sizes = Sizes()
    peers: bool = True
    parts: tuple[str, ...] = ("calls", "drain", "held", "tenants")
    endpoint: str | None = None


async def run(options: Options, log: Log) -> Report:
    """Run on our own endpoint on SQLite with full durability, in temporary directories."""
    report = Report("aws")
    os.environ.update(SQS_KEYS)
    bench = _Bench(options, report, log)
    for part in options.parts:
        await {
            "calls": bench.calls,
            "drain": bench.drain,
            "held": bench.held,
            "tenants": bench.tenants,
        }[part]()
    return report


def _peers(options: Options, report: Report, log: Log) -> tuple[Contestant, ...]:
    if not options.peers:
        return ()
    try:
        install_python(log)
    except NotInstalled as error:
        report.notes.append(f"not installed: celery ({error})")
        return ()
    return SQS_PEERS


class _Bench:
    """The measurements."""

    def __init__(self, options: Options, report: Report, log: Log) -> None:
        self._options = options
        self._sizes = options.sizes
        self._report = report
        self._log = log

    async def calls(self) -> None:
        """Count the requests of one enqueue and one drain."""
        jobs = self._sizes.jobs
        self._log(f"API calls of {jobs:,} jobs")
        self._report.section(
            f"API calls of {jobs:,} jobs, enqueued in thousands and drained; the reference is the"
            " bound"
        )

        async def act(workspace: Workspace) -> None:
            async with _counted(workspace) as (counted, counts):
                await turns.drain(ON_SQS, counted, jobs=jobs)
                add_calls(self._report, Counter(counts), jobs)

        await self._attempt("API calls", act)

    async def drain(self) -> None:
        contestants = [ON_SQS, BARE_SQS, *_peers(self._options, self._report, self._log)]
        results = {contestant.name: Results() for contestant in contestants}
        for turn in range(self._sizes.repeats):
            lead = turn % len(contestants)
            for contestant in contestants[lead:] + contestants[:lead]:
                self._log(f"drain, turn {turn + 1} of {self._sizes.repeats}: {contestant.name}")
                jobs = min(self._sizes.jobs, contestant.jobs_max)

                async def act(
                    workspace: Workspace, contestant: Contestant = contestant, jobs: int = jobs
                ) -> None:
                    drained = await turns.drain(contestant, workspace, jobs=jobs)
                    results[contestant.name].drains.append(drained)

                await self._attempt(contestant.name, act)
        size = f"{self._sizes.jobs:,} no-op jobs, medians of {self._sizes.repeats}"
        self._report.section(f"drained: {size}")
        rates = {name: each.drained for name, each in results.items() if each.drains}
        compare(self._report, rates)

    async def held(self) -> None:
        """Measure a worker whose jobs all wait."""
        sizes = self._sizes
        self._log(f"{sizes.held:,} messages in flight")
        self._report.section(
            f"messages in flight, extended every {HELD_LEASE_S // 2} s; the reference is the bound"
        )

        async def act(workspace: Workspace) -> None:
            percent = await _held_share(workspace, sizes.held, sizes.held_s) * 100
            self._report.cost(
                "sqs",
                f"worker that keeps {sizes.held:,} messages invisible",
                percent,
                unit="% of a core",
                reference=HELD_PERCENT_MAX,
                goal=1,
            )

        await self._attempt("messages in flight", act)

    async def tenants(self) -> None:
        sizes = self._sizes
        self._report.section(
            f"{sizes.quiet:,} messages of a quiet tenant beside {sizes.noisy:,} of a noisy one; the"
            " reference is twice their time alone"
        )
        for name, measure, goal in (
            ("distributor", distributed_s, 1),
            # With two tenants both have more than a tenth of the time, so that by Amazon's rule
            # both are noisy.
            ("fair queue", fair_s, None),
        ):
            took: dict[int, float] = {}
            for noisy in (0, sizes.noisy):
                self._log(f"{name}, {noisy:,} messages of a noisy tenant")

                async def act(
                    workspace: Workspace,
                    noisy: int = noisy,
                    took: dict[int, float] = took,
                    measure: Callable[..., Awaitable[float]] = measure,
                ) -> None:
                    took[noisy] = await measure(workspace, noisy=noisy, quiet=sizes.quiet)

                await self._attempt(name, act)
            if len(took) == 2:
                alone, beside = took[0], took[sizes.noisy]
                self._report.cost("sqs", f"{name}, alone", alone * 1000, unit="ms")
                self._report.cost(
                    "sqs",
                    f"{name}, beside a noisy tenant",
                    beside * 1000,
                    unit="ms",
                    reference=TENANT_FACTOR_MAX * alone * 1000,
                    goal=goal,
                )

    async def _attempt(self, what: str, act: Callable[[Workspace], Awaitable[None]]) -> None:
        """Run a measurement; a failure is noted and does not affect the others."""
        given = self._options.endpoint
        endpoint = contextlib.nullcontext(given) if given else sqs_endpoint()
        async with endpoint as url:
            with sqs_workspace(url) as workspace:
                try:
                    await act(workspace)
                except Failed as error:
                    self._log(f"{what} failed: {error}")
                    self._report.notes.append(f"failed: {what} ({error})")


@contextlib.asynccontextmanager
async def _counted(workspace: Workspace) -> AsyncIterator[tuple[Workspace, Counter[str]]]:
    port = int(workspace.endpoint.rpartition(":")[2])
    async with counting_proxy(port) as (proxy, counts):
        yield replace(workspace, endpoint=f"http://127.0.0.1:{proxy}"), counts


async def _held_share(workspace: Workspace, count: int, seconds: float) -> float:
    """Share of a core that a worker uses while all its jobs wait, children included."""
    words = ["run", "bench.aws_tasks:app", "--processes", "1", "--concurrency", str(count)]
    holder = replace(ON_SQS, settings={"words": words, "processes": None})
    port = int(workspace.endpoint.rpartition(":")[2])
    async with Holdfast(workspace.url) as app:
        await app.declare("default", lease=f"{HELD_LEASE_S}s")
        await app.enqueue_many(app.job("hold") for _ in range(count))
        async with turns.program(holder, workspace, "work") as worker:
            end = time.monotonic() + DRAIN_S_MAX
            while await asyncio.to_thread(_visible, port):
                if time.monotonic() > end:
                    raise turns.too_late(workspace, "not all messages were in flight")
                await asyncio.sleep(0.2)
            before, started = cpu_ns(worker.pid), time.monotonic_ns()
            await asyncio.sleep(seconds)
            share = (cpu_ns(worker.pid) - before) / (time.monotonic_ns() - started)
            left = await asyncio.to_thread(_visible, port)
            if left:
                raise Failed(f"{left} messages became visible meanwhile")
            return share


def _visible(port: int) -> int:
    return sqs_depth(port, ON_SQS.unfinished, kinds=("",))


def add_calls(report: Report, counts: Counter[str], jobs: int) -> None:
    """Add the calls of each action, and of all, with their cost for a million jobs."""
    for action, count in counts.most_common():
        report.cost("sqs", action, count / jobs, unit="calls/job")
    total = counts.total() / jobs
    report.cost("sqs", "all", total, unit="calls/job", reference=CALLS_MAX, goal=1)
    report.cost("sqs", "a million jobs", total * USD_PER_MILLION, unit="USD")


def compare(report: Report, rates: dict[str, float]) -> None:
    """Add the rates: Holdfast's compared with the bare loop, and with the faster setting of each
    peer."""
    for name, rate in rates.items():
        report.rate("sqs", name, rate, unit="jobs/s")
    ours = rates.get(ON_SQS.name)
    if ours is None:
        return
    report.section("drained; the reference is the other one")
    peers = [each.name for each in SQS_PEERS if each.name in rates]
    fastest = max(peers, key=lambda name: rates[name], default=None)
    for name, goal in (
        (BARE_SQS.name, BARE_GOAL),
        *((peer, PEER_GOAL if peer == fastest else None) for peer in peers),
    ):
        if name in rates:
            report.rate(
                "sqs", f"compared with {name}", ours, unit="jobs/s", reference=rates[name],
                goal=goal,
            )  # fmt: skip
