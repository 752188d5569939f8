"""The benchmark `drain`: Holdfast and its peers, no-op jobs through real workers, side by side.

Its order of work and its goals; how each number is got is in `peers/run.py` and `uses.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench import uses
from bench.peers import run as turns
from bench.peers.catalogue import HOLDFAST, PEERS, Contestant
from bench.peers.install import NotInstalled, install_node, install_python
from bench.peers.places import Place, Places, places
from bench.peers.run import Drain, Failed
from bench.report import Report
from bench.stores import ENGINES, EngineName
from bench.together import percentile

FASTEST_GOAL = 1.0
SPAWN_GOAL = 0.6
DELAY_MS_MAX = 10
IDLE_PERCENT_MAX = 1
PIPE_RATE_MIN = 20_000
PARTS = (50, 95, 99)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured; without `delays` no job comes alone. The goals are meant for the
    default."""

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


async def run(options: Options, tell: Tell) -> Report:
    """Everything in a temporary directory and on a private server, which are gone afterwards."""
    report = Report("drain")
    missing = _install(options, report, tell)
    for engine in options.engines:
        takes_part = [
            who
            for who in (*HOLDFAST, *(PEERS if options.peers else ()))
            if who.engine == engine and who.runs not in missing
        ]
        async with places(engine) as ground:
            bench = _Bench(engine, options.sizes, report, ground, tell)
            await bench.drain(takes_part)
            if options.alone:
                await bench.alone()
    return report


def _install(options: Options, report: Report, tell: Tell) -> set[str]:
    """Which kinds of peers cannot be had here."""
    missing = set()
    for kind, install in (("python", install_python), ("node", install_node)):
        wanted = [who.name for who in PEERS if who.runs == kind and who.engine in options.engines]
        if not (options.peers and wanted):
            continue
        try:
            install(tell)
        except NotInstalled as error:
            missing.add(kind)
            report.notes.append(f"not installed: {'; '.join(wanted)} ({error})")
    return missing


@dataclass(slots=True)
class Results:
    """What the turns of one contestant gave."""

    drains: list[Drain] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)

    @property
    def enqueued(self) -> float:
        return statistics.median(turn.jobs / turn.enqueue_s for turn in self.drains)

    @property
    def drained(self) -> float:
        return statistics.median(turn.jobs / turn.drain_s for turn in self.drains)

    @property
    def start_up_s(self) -> float:
        return statistics.median(turn.start_up_s for turn in self.drains)


class _Bench:
    """The measurements on one engine, of everybody who takes part there."""

    def __init__(
        self, engine: EngineName, sizes: Sizes, report: Report, ground: Places, tell: Tell
    ) -> None:
        self._engine = engine
        self._sizes = sizes
        self._report = report
        self._ground = ground
        self._tell: Tell = lambda text: tell(f"{engine}: {text}")

    async def drain(self, takes_part: list[Contestant]) -> None:
        results: dict[str, Results] = {who.name: Results() for who in takes_part}
        for turn in range(self._sizes.repeats):
            # Each leads in turn: who comes first has the machine as it was left.
            lead = turn % len(takes_part)
            for who in takes_part[lead:] + takes_part[:lead]:
                await self._drain(who, results[who.name], turn)
        for who in takes_part:
            if self._sizes.delays and results[who.name].drains and who.keeps_up:
                await self._delays(who, results[who.name])
        self._tell_all([who for who in takes_part if results[who.name].drains], results)

    async def _drain(self, who: Contestant, results: Results, turn: int) -> None:
        self._tell(f"drain, turn {turn + 1} of {self._sizes.repeats}: {who.name}")
        jobs = min(self._sizes.jobs, who.jobs_max)

        async def act(place: Place) -> None:
            results.drains.append(await turns.drain(who, place, jobs=jobs))

        await self._attempt(who.name, act)

    async def _delays(self, who: Contestant, results: Results) -> None:
        self._tell(f"jobs one by one: {who.name}")
        sizes = self._sizes

        async def act(place: Place) -> None:
            results.delays_ms = await turns.delays_ms(
                who, place, jobs=sizes.delays, rate=sizes.rate
            )

        await self._attempt(who.name, act)

    async def _attempt(self, what: str, act: Callable[[Place], Awaitable[None]]) -> None:
        """One that fails is told of, and harms no other's measurement."""
        async with self._ground.place() as place:
            try:
                await act(place)
            except Failed as error:
                self._tell(f"{what} failed: {error}")
                self._report.notes.append(f"failed on {self._engine}: {what} ({error})")

    def _tell_all(self, whole: list[Contestant], results: dict[str, Results]) -> None:
        report, engine, sizes = self._report, self._engine, self._sizes
        size = f"{sizes.jobs:,} no-op jobs, medians of {sizes.repeats}"
        report.section(f"{engine}, enqueued: {size}")
        for who in whole:
            report.rate(engine, who.name, results[who.name].enqueued, unit="jobs/s")
        report.section(f"{engine}, drained: {size}")
        for who in whole:
            name = f"{who.name} ({who.durability})"
            report.rate(engine, name, results[who.name].drained, unit="jobs/s")
        report.section(f"{engine}, from starting the workers to the first job")
        for who in whole:
            report.cost(engine, who.name, results[who.name].start_up_s, unit="s")
        report.section(f"{engine}, from enqueue to start at {sizes.rate:g} jobs/s")
        for who in whole:
            for part in PARTS if results[who.name].delays_ms else ():
                value = percentile(results[who.name].delays_ms, part / 100)
                bound = DELAY_MS_MAX if part == 95 and who.runs == "holdfast" else None
                goal = 1 if bound else None
                metric = f"{who.name}, p{part}"
                report.cost(engine, metric, value, unit="ms", reference=bound, goal=goal)
        compare(report, engine, whole, results)

    async def alone(self) -> None:
        """What only Holdfast is asked for."""
        self._report.section(
            f"{self._engine}, Holdfast alone; the reference is the bound, or bare spawns"
        )
        await self._idle()
        await self._commands()
        await self._pipe()

    async def _idle(self) -> None:
        self._tell("an idle worker")

        async def act(place: Place) -> None:
            percent = await uses.idle_share(place, seconds=self._sizes.idle_s) * 100
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

        async def act(place: Place) -> None:
            bare = uses.spawn_rate(spawns=count)
            rates.append((await uses.command_rate(place, jobs=count), bare))

        await self._turns("commands", act)
        if rates:
            value, bare = (statistics.median(side) for side in zip(*rates, strict=True))
            self._report.rate(
                self._engine,
                "commands beside bare spawns",
                value,
                unit="jobs/s",
                reference=bare,
                goal=SPAWN_GOAL,
            )

    async def _pipe(self) -> None:
        rates: list[float] = []
        lines = self._sizes.lines

        async def act(place: Place) -> None:
            rates.append(await uses.pipe_rate(place, lines=lines))

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

    async def _turns(self, what: str, act: Callable[[Place], Awaitable[None]]) -> None:
        for turn in range(self._sizes.repeats):
            self._tell(f"{what}, turn {turn + 1} of {self._sizes.repeats}")
            await self._attempt(what, act)


def compare(
    report: Report, engine: EngineName, whole: list[Contestant], results: dict[str, Results]
) -> None:
    """Holdfast's drain beside each peer's. On PostgreSQL the fastest of them has to be passed, by
    the default worker, which is what people get."""
    peers = [who for who in whole if who.runs != "holdfast"]
    if not peers:
        return
    report.section(f"{engine}, drained; the reference is the peer")
    fastest = max(peers, key=lambda who: results[who.name].drained)
    for ours in whole:
        if ours.runs != "holdfast":
            continue
        for who in peers:
            goal = who.goal
            if engine == "postgres" and who is fastest:
                goal = max(goal or 0, FASTEST_GOAL)
            report.rate(
                engine,
                f"{ours.name}, beside {who.name}",
                results[ours.name].drained,
                unit="jobs/s",
                reference=results[who.name].drained,
                goal=goal if ours.settings["processes"] is None else None,
            )
