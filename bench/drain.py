"""The benchmark `drain`: no-op jobs through the real workers of Holdfast and of other queues.

Defines the order of the measurements and their goals; `peers/run.py` and `worker_usage.py` do the
measuring.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from bench import worker_usage
from bench.concurrency import percentile
from bench.peers import run as turns
from bench.peers.catalogue import DEFAULT, HOLDFAST, PEERS, Contestant
from bench.peers.install import NotInstalled, install_node, install_python
from bench.peers.run import Costs, Drain, Failed
from bench.peers.workspace import Workspace, Workspaces, workspaces
from bench.processes import busy_loops
from bench.report import Report
from bench.stores import ENGINES, EngineName

FASTEST_GOAL = 1.0
SPAWN_GOAL = 0.6
DELAY_MS_MAX = 10
BUSY_LOOPS = 3
BUSY_GOAL = 0.67
"""The best peer's p95 over that of Holdfast: at most one and a half times as long."""
IDLE_PERCENT_MAX = 1
CPU_US_MAX = 32
LOG_BYTES_MAX = 700
PIPE_RATE_MIN = 20_000
PARTS = (50, 95, 99)

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements; `delays=0` skips single jobs. The goals apply to the defaults."""

    jobs: int = 50_000
    repeats: int = 3
    delays: int = 500
    rate: float = 100.0
    idle_s: float = 10.0
    commands: int = 3_000
    lines: int = 100_000


QUICK = Sizes(jobs=2_000, repeats=1, delays=50, idle_s=2.0, commands=200, lines=5_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    engines: tuple[EngineName, ...] = ENGINES
    sizes: Sizes = Sizes()
    peers: bool = True
    alone: bool = True


async def run(options: Options, log: Log) -> Report:
    """Run in a temporary directory and on a private server, which are deleted afterwards."""
    report = Report("drain")
    missing = install_peers(options.engines, report, log) if options.peers else set()
    for engine in options.engines:
        contestants = [
            contestant
            for contestant in (*HOLDFAST, *(PEERS if options.peers else ()))
            if contestant.engine == engine and contestant.runs not in missing
        ]
        async with workspaces(engine) as opened:
            bench = _Bench(engine, options.sizes, report, opened, log)
            await bench.drain(contestants)
            if options.alone:
                await bench.alone()
    return report


def install_peers(engines: Collection[EngineName], report: Report, log: Log) -> set[str]:
    """Install the peers of these engines; return the kinds that cannot be installed here."""
    missing = set()
    for kind, install in (("python", install_python), ("node", install_node)):
        wanted = [
            contestant.name
            for contestant in PEERS
            if contestant.runs == kind and contestant.engine in engines
        ]
        if not wanted:
            continue
        try:
            install(log)
        except NotInstalled as error:
            missing.add(kind)
            report.notes.append(f"not installed: {'; '.join(wanted)} ({error})")
    return missing


@dataclass(slots=True)
class Results:
    """The results of all turns of one contestant."""

    drains: list[Drain] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    busy_delays_ms: list[float] = field(default_factory=list)

    @property
    def enqueued(self) -> float:
        return statistics.median(turn.jobs / turn.enqueue_s for turn in self.drains)

    @property
    def drained(self) -> float:
        return statistics.median(turn.jobs / turn.drain_s for turn in self.drains)

    def cost(self, read: Callable[[Costs], float | None]) -> float | None:
        """The median of one of the costs of a job; None if it is not known."""
        found = [read(turn.costs) for turn in self.drains if turn.costs is not None]
        known = [each for each in found if each is not None]
        return statistics.median(known) if known else None

    @property
    def start_up_s(self) -> float:
        return statistics.median(turn.start_up_s for turn in self.drains)


class _Bench:
    """The measurements of all contestants on one engine."""

    def __init__(
        self, engine: EngineName, sizes: Sizes, report: Report, stores: Workspaces, log: Log
    ) -> None:
        self._engine = engine
        self._sizes = sizes
        self._report = report
        self._workspaces = stores
        self._log: Log = lambda text: log(f"{engine}: {text}")

    async def drain(self, contestants: list[Contestant]) -> None:
        results: dict[str, Results] = {contestant.name: Results() for contestant in contestants}
        for turn in range(self._sizes.repeats):
            # The first position rotates: the machine is in another state for the first one.
            lead = turn % len(contestants)
            for contestant in contestants[lead:] + contestants[:lead]:
                await self._drain(contestant, results[contestant.name], turn)
        prompt = [
            contestant
            for contestant in contestants
            if self._sizes.delays and results[contestant.name].drains and contestant.keeps_up
        ]
        for contestant in prompt:
            self._log(f"jobs one by one: {contestant.name}")
            results[contestant.name].delays_ms = await self._delays(contestant)
        async with busy_loops(BUSY_LOOPS if prompt else 0):
            for turn in range(self._sizes.repeats):
                lead = turn % len(prompt) if prompt else 0
                for contestant in prompt[lead:] + prompt[:lead]:
                    self._log(f"jobs one by one beside {BUSY_LOOPS} loops: {contestant.name}")
                    results[contestant.name].busy_delays_ms += await self._delays(contestant)
        self._add_results(
            [contestant for contestant in contestants if results[contestant.name].drains], results
        )

    async def _drain(self, contestant: Contestant, results: Results, turn: int) -> None:
        self._log(f"drain, turn {turn + 1} of {self._sizes.repeats}: {contestant.name}")
        jobs = min(self._sizes.jobs, contestant.jobs_max)

        async def act(workspace: Workspace) -> None:
            results.drains.append(await turns.drain(contestant, workspace, jobs=jobs))

        await self._attempt(contestant.name, act)

    async def _delays(self, contestant: Contestant) -> list[float]:
        sizes, delays_ms = self._sizes, list[float]()

        async def act(workspace: Workspace) -> None:
            delays_ms.extend(
                await turns.delays_ms(contestant, workspace, jobs=sizes.delays, rate=sizes.rate)
            )

        await self._attempt(contestant.name, act)
        return delays_ms

    async def _attempt(self, what: str, act: Callable[[Workspace], Awaitable[None]]) -> None:
        """Run a measurement; a failure is noted and does not affect the others."""
        async with self._workspaces.new() as workspace:
            try:
                await act(workspace)
            except Failed as error:
                self._log(f"{what} failed: {error}")
                self._report.notes.append(f"failed on {self._engine}: {what} ({error})")

    def _add_results(self, contestants: list[Contestant], results: dict[str, Results]) -> None:
        report, engine, sizes = self._report, self._engine, self._sizes
        size = f"{sizes.jobs:,} no-op jobs, medians of {sizes.repeats}"
        report.section(f"{engine}, enqueued: {size}")
        for contestant in contestants:
            report.rate(engine, contestant.name, results[contestant.name].enqueued, unit="jobs/s")
        report.section(f"{engine}, drained: {size}")
        for contestant in contestants:
            name = f"{contestant.name} ({contestant.durability})"
            report.rate(engine, name, results[contestant.name].drained, unit="jobs/s")
        add_costs(report, engine, contestants, results)
        report.section(f"{engine}, from starting the workers to the first job")
        for contestant in contestants:
            report.cost(engine, contestant.name, results[contestant.name].start_up_s, unit="s")
        report.section(f"{engine}, from enqueue to start at {sizes.rate:g} jobs/s")
        for contestant in contestants:
            for part in PARTS if results[contestant.name].delays_ms else ():
                value = percentile(results[contestant.name].delays_ms, part / 100)
                bound = DELAY_MS_MAX if part == 95 and contestant.runs == "holdfast" else None
                goal = 1 if bound else None
                metric = f"{contestant.name}, p{part}"
                report.cost(engine, metric, value, unit="ms", reference=bound, goal=goal)
        compare_busy(report, engine, contestants, results, rate=sizes.rate)
        compare(report, engine, contestants, results)

    async def alone(self) -> None:
        """Measure what has no counterpart in the peers."""
        self._report.section(
            f"{self._engine}, Holdfast alone; the reference is the bound, or bare spawns"
        )
        await self._idle()
        await self._commands()
        await self._pipe()

    async def _idle(self) -> None:
        self._log("an idle worker")

        async def act(workspace: Workspace) -> None:
            percent = await worker_usage.idle_share(workspace, seconds=self._sizes.idle_s) * 100
            self._report.cost(
                self._engine,
                "idle worker",
                percent,
                unit="% of a core",
                reference=IDLE_PERCENT_MAX,
                goal=1,
            )

        await self._attempt("an idle worker", act)

    async def _commands(self) -> None:
        rates: list[tuple[float, float]] = []
        count = self._sizes.commands

        async def act(workspace: Workspace) -> None:
            bare = worker_usage.spawn_rate(spawns=count)
            rates.append((await worker_usage.command_rate(workspace, jobs=count), bare))

        await self._turns("commands", act)
        if rates:
            value, bare = (statistics.median(side) for side in zip(*rates, strict=True))
            self._report.rate(
                self._engine,
                "commands, compared with bare spawns",
                value,
                unit="jobs/s",
                reference=bare,
                goal=SPAWN_GOAL,
            )

    async def _pipe(self) -> None:
        rates: list[float] = []
        lines = self._sizes.lines

        async def act(workspace: Workspace) -> None:
            rates.append(await worker_usage.pipe_rate(workspace, lines=lines))

        await self._turns("a pipe", act)
        if rates:
            self._report.rate(
                self._engine,
                f"enqueue from a pipe of {lines:,} lines",
                statistics.median(rates),
                unit="jobs/s",
                reference=PIPE_RATE_MIN,
                goal=1,
            )

    async def _turns(self, what: str, act: Callable[[Workspace], Awaitable[None]]) -> None:
        for turn in range(self._sizes.repeats):
            self._log(f"{what}, turn {turn + 1} of {self._sizes.repeats}")
            await self._attempt(what, act)


def add_costs(
    report: Report, engine: EngineName, contestants: list[Contestant], results: dict[str, Results]
) -> None:
    """Add what a drained job costs. The bounds apply to the default worker on PostgreSQL."""
    costs: tuple[tuple[str, str, Callable[[Costs], float | None], int | None], ...] = (
        ("CPU", "µs/job", lambda each: each.workers_us + each.server_us, CPU_US_MAX),
        ("CPU of the server", "µs/job", lambda each: each.server_us or None, None),
        ("log", "bytes/job", lambda each: each.log_bytes, LOG_BYTES_MAX),
        ("syncs of the log", "syncs/1,000 jobs", lambda each: _times(each.syncs, 1_000), None),
    )
    report.section(f"{engine}, costs of a drained job; the reference is the bound")
    for title, unit, read, bound in costs:
        for contestant in contestants:
            value = results[contestant.name].cost(read)
            is_bound = bound if engine == "postgres" and contestant.name == DEFAULT else None
            if value is not None:
                report.cost(
                    engine,
                    f"{contestant.name}, {title}",
                    value,
                    unit=unit,
                    reference=is_bound,
                    goal=1 if is_bound else None,
                )


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor


def compare_busy(
    report: Report,
    engine: EngineName,
    contestants: list[Contestant],
    results: dict[str, Results],
    *,
    rate: float,
) -> None:
    """Add the start delays beside busy loops. The p95 of the default worker is compared with that
    of the best peer that waits for the disk as well."""
    parts = {
        contestant.name: {
            part: percentile(sorted(results[contestant.name].busy_delays_ms), part / 100)
            for part in (50, 95)
        }
        for contestant in contestants
        if results[contestant.name].busy_delays_ms
    }
    peers = [one for one in contestants if one.runs != "holdfast" and one.syncs]
    best = min((parts[one.name][95] for one in peers if one.name in parts), default=None)
    report.section(
        f"{engine}, from enqueue to start at {rate:g} jobs/s beside {BUSY_LOOPS} busy loops;"
        " the reference is the best peer that syncs"
    )
    for contestant in contestants:
        for part, value in parts.get(contestant.name, {}).items():
            is_ours = contestant.runs == "holdfast" and part == 95
            reference = best if is_ours else None
            goal = BUSY_GOAL if reference and contestant.name == DEFAULT else None
            metric = f"{contestant.name}, busy, p{part}"
            report.cost(engine, metric, value, unit="ms", reference=reference, goal=goal)


def compare(
    report: Report, engine: EngineName, contestants: list[Contestant], results: dict[str, Results]
) -> None:
    """Add the drain rate of Holdfast compared with each peer. On PostgreSQL the default worker must
    also be faster than the fastest peer."""
    peers = [contestant for contestant in contestants if contestant.runs != "holdfast"]
    if not peers:
        return
    report.section(f"{engine}, drained; the reference is the peer")
    fastest = max(peers, key=lambda contestant: results[contestant.name].drained)
    for ours in contestants:
        if ours.runs != "holdfast":
            continue
        for contestant in peers:
            goal = contestant.goal
            if engine == "postgres" and contestant is fastest:
                goal = max(goal or 0, FASTEST_GOAL)
            report.rate(
                engine,
                f"{ours.name}, compared with {contestant.name}",
                results[ours.name].drained,
                unit="jobs/s",
                reference=results[contestant.name].drained,
                goal=goal if ours.name == DEFAULT else None,
            )
