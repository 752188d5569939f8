"""The benchmark `rabbitmq`: Holdfast with a broker, compared with PostgreSQL alone, with other
queues on RabbitMQ, and with bare loops of a client library.

Defines the order of the measurements and their goals; `peers/run.py`, `gates.py` and
`raw_rabbitmq.py` do the measuring.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench import gates, worker_usage
from bench.concurrency import percentile, url_wake_ups
from bench.drain import IDLE_PERCENT_MAX, Log, Results
from bench.peers import run as turns
from bench.peers.catalogue import BROKER_PEERS, BROKERED, PLAIN, Contestant, StoreName
from bench.peers.install import NotInstalled, install_python
from bench.peers.run import Failed
from bench.peers.workspace import BrokerWorkspaces, Workspace, broker_workspaces
from bench.report import Report
from holdfast.conformance.rabbitmq_server import RabbitNode

PLAIN_GOAL = 0.9
PEER_GOAL = 1.5
WAKE_GOAL = 20
GATE_GOAL = 0.5
GROWTH_MB_MAX = 20
WAKE_PAUSE_S = (0.05, 1.25)
"""Longer than the interval of polls, so that a wake-up falls anywhere in it."""

Measure = Callable[..., Awaitable[gates.Rates]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    jobs: int = 50_000
    repeats: int = 3
    wake_ups: int = 100
    idle_s: float = 10.0
    messages: int = 20_000
    waiting: int = 1_000_000


QUICK = Sizes(jobs=1_000, repeats=1, wake_ups=10, idle_s=2.0, messages=1_000, waiting=20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`node` is a running broker, used instead of a private one."""

    sizes: Sizes = Sizes()
    peers: bool = True
    node: RabbitNode | None = None


async def run(options: Options, log: Log) -> Report:
    """Run on a private RabbitMQ and a private PostgreSQL, which are deleted afterwards."""
    report = Report("rabbitmq")
    contestants = [PLAIN, BROKERED, *_peers(options, report, log)]
    async with broker_workspaces(options.node) as opened:
        bench = _Bench(options.sizes, report, opened, log)
        await bench.drain(contestants)
        await bench.wake_ups()
        await bench.gates()
        await bench.usage()
    return report


def _peers(options: Options, report: Report, log: Log) -> tuple[Contestant, ...]:
    """The peers, if they can be installed here."""
    if not options.peers:
        return ()
    try:
        install_python(log)
    except NotInstalled as error:
        names = "; ".join(contestant.name for contestant in BROKER_PEERS)
        report.notes.append(f"not installed: {names} ({error})")
        return ()
    return BROKER_PEERS


class _Bench:
    """The measurements, on one broker and one database server."""

    def __init__(
        self, sizes: Sizes, report: Report, workspaces: BrokerWorkspaces, log: Log
    ) -> None:
        self._sizes = sizes
        self._report = report
        self._workspaces = workspaces
        self._log = log

    async def drain(self, contestants: list[Contestant]) -> None:
        results = {contestant.name: Results() for contestant in contestants}
        for turn in range(self._sizes.repeats):
            # The first position rotates: the machine is in another state for the first one.
            lead = turn % len(contestants)
            for contestant in contestants[lead:] + contestants[:lead]:
                await self._drain(contestant, results[contestant.name], turn)
        measured = [contestant for contestant in contestants if results[contestant.name].drains]
        size = f"{self._sizes.jobs:,} no-op jobs, medians of {self._sizes.repeats}"
        self._report.section(f"enqueued: {size}")
        for contestant in measured:
            rate = results[contestant.name].enqueued
            self._report.rate(contestant.engine, contestant.name, rate, unit="jobs/s")
        self._report.section(f"drained: {size}")
        for contestant in measured:
            name = f"{contestant.name} ({contestant.durability})"
            rate = results[contestant.name].drained
            self._report.rate(contestant.engine, name, rate, unit="jobs/s")
        compare(self._report, {each.name: results[each.name].drained for each in measured})

    async def _drain(self, contestant: Contestant, results: Results, turn: int) -> None:
        self._log(f"drain, turn {turn + 1} of {self._sizes.repeats}: {contestant.name}")
        jobs = min(self._sizes.jobs, contestant.jobs_max)

        async def act(workspace: Workspace) -> None:
            results.drains.append(await turns.drain(contestant, workspace, jobs=jobs))

        await self._attempt(contestant.name, contestant.engine, act)

    async def wake_ups(self) -> None:
        """Behind a pooler no notification of PostgreSQL arrives, so without a broker the waiting
        process polls."""
        self._report.section(
            "wake-up behind a transaction pooler: enqueue in one process until leased in another"
            " that waits; the reference is polling"
        )
        found: dict[str, list[float]] = {}
        for name in ("polling", "broker"):
            self._log(f"wake-ups: {name}")

            async def act(workspace: Workspace, name: str = name) -> None:
                database = f"{workspace.database}?pooled=true"
                brokered = f"brokered:{workspace.amqp},{database}"
                found[name] = await url_wake_ups(
                    brokered if name == "broker" else database,
                    times=self._sizes.wake_ups,
                    pause_s=WAKE_PAUSE_S,
                )

            await self._attempt(f"wake-ups, {name}", "brokered", act)
        for part in (50, 99):
            values = {name: percentile(waits, part / 100) for name, waits in found.items()}
            for name, value in values.items():
                is_ours = name == "broker"
                self._report.cost(
                    "brokered" if is_ours else "postgres",
                    f"wake-up, {name}, p{part}",
                    value,
                    unit="ms",
                    reference=values.get("polling") if is_ours else None,
                    goal=WAKE_GOAL if is_ours and part == 99 else None,
                )

    async def gates(self) -> None:
        sizes = self._sizes
        self._report.section(
            f"gates on PostgreSQL: {sizes.messages:,} messages of 256 bytes, medians of"
            f" {sizes.repeats}; the reference is a bare loop of aio-pika"
        )
        for name, compared, measure in (
            ("inlet", "consume and acknowledge", gates.inlet),
            ("outlet", "confirmed publishes", gates.outlet),
        ):
            rates: list[gates.Rates] = []
            for turn in range(sizes.repeats):
                self._log(f"{name}, turn {turn + 1} of {sizes.repeats}")

                async def act(
                    workspace: Workspace,
                    turn: int = turn,
                    measure: Measure = measure,
                    rates: list[gates.Rates] = rates,
                ) -> None:
                    bare_first = turn % 2 == 0
                    rates.append(
                        await measure(workspace, messages=sizes.messages, bare_first=bare_first)
                    )

                await self._attempt(name, "postgres", act)
            if rates:
                self._report.rate(
                    "postgres",
                    f"{name}, compared with {compared}",
                    statistics.median(rate.gate for rate in rates),
                    unit="messages/s",
                    reference=statistics.median(rate.bare for rate in rates),
                    goal=GATE_GOAL,
                )

    async def usage(self) -> None:
        """Measure an idle worker, and the memory of a gate beside many messages."""
        sizes = self._sizes
        self._report.section("what it uses; the reference is the bound")

        async def idle(workspace: Workspace) -> None:
            percent = await worker_usage.idle_share(workspace, seconds=sizes.idle_s) * 100
            self._report.cost(
                "brokered",
                "idle worker",
                percent,
                unit="% of a core",
                reference=IDLE_PERCENT_MAX,
                goal=1,
            )

        async def memory(workspace: Workspace) -> None:
            growth = await gates.inlet_growth_mb(
                workspace, waiting=sizes.waiting, seconds=sizes.idle_s
            )
            self._report.cost(
                "postgres",
                f"memory of an inlet, growth while {sizes.waiting:,} messages wait",
                growth,
                unit="MB",
                reference=GROWTH_MB_MAX,
                goal=1,
            )

        self._log("an idle worker")
        await self._attempt("an idle worker", "brokered", idle)
        self._log(f"an inlet while {sizes.waiting:,} messages wait")
        await self._attempt("memory of an inlet", "postgres", memory)

    async def _attempt(
        self, what: str, store: StoreName, act: Callable[[Workspace], Awaitable[None]]
    ) -> None:
        """Run a measurement; a failure is noted and does not affect the others."""
        async with self._workspaces.new(store) as workspace:
            try:
                await act(workspace)
            except Failed as error:
                self._log(f"{what} failed: {error}")
                self._report.notes.append(f"failed: {what} ({error})")


def compare(report: Report, rates: dict[str, float]) -> None:
    """Add the drain rate with the broker, compared with PostgreSQL alone and with each peer. The
    goal applies to the faster peer."""
    ours = rates.get(BROKERED.name)
    if ours is None:
        return
    report.section("drained; the reference is the other one")
    peers = [contestant for contestant in BROKER_PEERS if contestant.name in rates]
    fastest = max(peers, key=lambda contestant: rates[contestant.name], default=None)
    for contestant, goal in (
        (PLAIN, PLAIN_GOAL),
        *((peer, PEER_GOAL if peer is fastest else None) for peer in peers),
    ):
        if contestant.name in rates:
            report.rate(
                "brokered",
                f"compared with {contestant.name}",
                ours,
                unit="jobs/s",
                reference=rates[contestant.name],
                goal=goal,
            )
