"""Kill RabbitMQ, its ledger, handlers of dead messages and gates under load, behind a proxy that
loses confirms and acknowledgements and cuts connections. Then the faults stop, everything drains,
and the history is checked: no job is lost, none is settled twice; each confirmed message with an id
is exactly one job, and each job of an outlet is at least one message. At last a worker takes jobs
at the moment of their expiry, and each must have exactly one outcome."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import Recorded, read_journals
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ, RabbitNode
from holdfast.core.model import Job, State
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_broker
from torture import gate_flow, results
from torture.amqp_proxy import KINDS, STALL_S, AmqpProxy
from torture.broker_client import BrokerClient, StrictBrokered
from torture.client import Client, retry_until_answered
from torture.expiry_race import ExpiryRace
from torture.fault_injection import DRAIN_S_MAX, FaultInjector, FaultPlan, journal_in
from torture.gate_flow import SOURCE, VHOST, ForeignProducer
from torture.own_transactions import OwnTransactions
from torture.store_checks import all_jobs
from torture.stores import Store, store

PARTS = ("engine", VHOST, "expiry")
"""Each part has a virtual host of its name."""
SECONDS_EACH = 4.0
"""Time between two kills of the broker, without its start."""
FAULT_S = 0.5
"""Mean time between two faults of the proxy."""
PartResult = tuple[dict[str, Any], list[str]]
"""The figures of a part, and what is wrong."""
ROLES = ("producer", "gates", "worker")
BOTH_OUTCOMES_MIN = 100
"""From this number of rounds on, an expiry race must have seen both outcomes."""


def main(argv: list[str]) -> int:
    parser = _parser()
    given = parser.parse_args(argv)
    if given.node and given.broker_kills:
        parser.error("--node: the broker is not killed; add --broker-kills 0")
    # Every client would report every outage.
    logging.disable(logging.WARNING)
    names = PARTS if given.part == "all" else (given.part,)
    with contextlib.ExitStack() as stack:
        broker = None if given.node else stack.enter_context(PrivateRabbitMQ())
        node = broker.node if broker else RabbitNode(**json.loads(given.node.read_text()))
        outcomes = [_run_part(name, broker, node, given) for name in names]
    return results.conclude("rabbitmq", outcomes, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture rabbitmq", description=__doc__)
    parser.add_argument(
        "--part",
        choices=(*PARTS, "all"),
        default="all",
        help="the engine `brokered`, gates, or the race at the expiry [default: all]",
    )
    parser.add_argument(
        "--engine",
        choices=("sqlite", "postgres"),
        default="postgres",
        help="the ledger [default: postgres]",
    )
    parser.add_argument(
        "--processes", type=int, default=6, metavar="N", help="processes [default: 6]"
    )
    parser.add_argument(
        "--broker-kills", type=int, default=20, metavar="N", help="kills of RabbitMQ [default: 20]"
    )
    parser.add_argument(
        "--kills",
        type=int,
        metavar="N",
        help="kills of processes [default: four for each kill of RabbitMQ]",
    )
    parser.add_argument(
        "--server-kills",
        type=int,
        metavar="N",
        help="kills of PostgreSQL [default: one for two kills of RabbitMQ]",
    )
    parser.add_argument(
        "--rounds", type=int, default=1_000, metavar="N", help="jobs of the race [default: 1,000]"
    )
    parser.add_argument(
        "--fault-every",
        type=float,
        default=FAULT_S,
        metavar="SECONDS",
        help=f"mean time between two faults of the proxy [default: {FAULT_S}]",
    )
    parser.add_argument(
        "--node",
        type=Path,
        metavar="FILE",
        help="JSON of a RabbitNode: use this running broker [default: a private one]",
    )
    results.add_options(parser)
    return parser


def _run_part(
    part: str, broker: PrivateRabbitMQ | None, node: RabbitNode, given: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    plan = _plan(given)
    sizes = f"--rounds {given.rounds}"
    if part != "expiry":
        sizes = f"--processes {plan.processes} --broker-kills {plan.broker_kills}"
        sizes += f" --kills {plan.kills} --server-kills {plan.server_kills}"
        sizes += f" --seconds {plan.seconds:g} --fault-every {given.fault_every:g}"
    replay = f"./hf torture rabbitmq --part {part} --engine {given.engine} {sizes}"
    print(f"{part}: {replay} --seed {given.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with (
            _vhost(node, part) as amqp,
            store(given.engine, Path(home)) as ledger,
            AmqpProxy(amqp, seed=given.seed, every_s=given.fault_every) as proxy,
        ):
            run = _PARTS[part](Scene(ledger, broker, node, proxy, plan, histories))
            figures, wrong = run(given.rounds)
        results.keep_histories(histories, part, given, wrong=bool(wrong))
    return results.finish_part(part, given, started, figures, wrong)


@contextlib.contextmanager
def _vhost(node: RabbitNode, name: str) -> Iterator[str]:
    """The URL of a new virtual host, deleted after the block."""
    url = node.add_vhost(name)
    try:
        yield url
    finally:
        node.delete_vhost(name)


def _plan(given: argparse.Namespace) -> FaultPlan:
    broker_kills: int = given.broker_kills
    return FaultPlan(
        processes=given.processes,
        kills=4 * broker_kills if given.kills is None else given.kills,
        seconds=broker_kills * SECONDS_EACH if given.seconds is None else given.seconds,
        seed=given.seed,
        freezes=0,
        server_kills=broker_kills // 2 if given.server_kills is None else given.server_kills,
        broker_kills=broker_kills,
    )


class Scene(NamedTuple):
    """The servers of a part, its faults and the directory of its histories. `broker` is None if it
    must not be killed."""

    ledger: Store
    broker: PrivateRabbitMQ | None
    node: RabbitNode
    proxy: AmqpProxy
    plan: FaultPlan
    directory: Path

    def brokered(self) -> Store:
        """The ledger, with the broker behind the proxy."""

        def make() -> Engine:
            return StrictBrokered(self.ledger.make(), open_broker(self.proxy.url))

        return self.ledger._replace(name=f"brokered on {self.ledger.name}", make=make)


class BrokerFaultInjector(FaultInjector):
    """Kills clients of `brokered`, its ledger and its broker, while the proxy injects faults."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.brokered(), scene.plan, scene.directory)
        self._ledger = scene.ledger
        self._broker = scene.broker
        self._node = scene.node
        self._proxy = scene.proxy
        self._proxied: Counter[str] = Counter()

    def __call__(self, rounds: int) -> PartResult:
        findings = self.run()
        print(findings, flush=True)
        return self._figures(findings), [str(each) for each in findings.violations]

    def _figures(self, findings: Findings) -> dict[str, Any]:
        return {
            "kills": self.done["kill"],
            "server_kills": self.done["server_kill"],
            "broker_kills": self.done["broker_kill"],
            **{f"proxy_{kind}": self._proxied[kind] for kind in KINDS},
            "jobs": findings.jobs,
            "operations": findings.operations,
            "lost": findings.lost,
            "resurrected": findings.resurrected,
            "stale_settles": findings.stale_settles,
        }

    def _inject_faults(self) -> None:
        self._proxy.start_faults()
        super()._inject_faults()
        self._proxied = self._proxy.stop_faults()

    def _client(self, name: str, *, calm: bool) -> Client:
        seed = f"{self._plan.seed}/{name}"
        own = partial(
            OwnTransactions,
            name=self._ledger.name,
            url=self._ledger.url,
            rng=random.Random(f"{seed}/own"),
        )
        return BrokerClient(self._store.make(), self._journal_of(name), seed, calm=calm, own=own)


class GateFaultInjector(BrokerFaultInjector):
    """The same with producers, gates and workers as processes, on the ledger itself."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._store = scene.ledger
        self._foreign = scene.directory / "foreign"
        self._foreign.mkdir()
        self._roles: dict[str, str] = {}

    def __call__(self, rounds: int) -> PartResult:
        figures, wrong = super().__call__(rounds)
        judged = json.loads((self._foreign / "judged.json").read_text())
        return {**figures, **judged["counts"]}, [*wrong, *judged["wrong"]]

    def _start(self, *, calm: bool) -> None:
        """Start a process of the role of which the fewest are alive."""
        roles = ROLES[1:] if calm else ROLES
        alive = Counter(self._roles[name] for name in self._alive.values())
        self._roles[f"p{self._started + 1}"] = min(roles, key=lambda role: alive[role])
        super()._start(calm=calm)

    async def _run_client(self, name: str, *, calm: bool) -> bool:
        engine = Recorded(self._store.make(), self._journal_of(name))
        match self._roles[name]:
            case "producer":
                rng = random.Random(f"{self._plan.seed}/{name}")
                await ForeignProducer(name, self._proxy.url, self._foreign, rng).run()
            case "gates":
                await gate_flow.run_gates(engine, self._proxy.url)
            case _:
                await gate_flow.run_worker(engine, name)
        return True

    async def _prepare(self) -> bool:
        journal = self._journal_of("prepare")
        await gate_flow.prepare(self._store.make(), journal, self._node.url(VHOST))
        self._node.flush()
        return True

    async def _check_slots(self) -> bool:
        return True

    async def _drain(self) -> bool:
        """Wait until the source is empty and every job is done."""
        # Messages of a killed producer that the proxy delays have arrived by then.
        await asyncio.sleep(2 * STALL_S)
        emptied = await gate_flow.wait_until_empty(self._node, SOURCE, DRAIN_S_MAX)
        return await super()._drain() and emptied

    async def _is_drained(self) -> bool:
        """Whether nothing is left: a message that was on its way to the broker may come late."""
        return not self._node.depth(VHOST, SOURCE) and await super()._is_drained()

    async def _survey(self) -> bool:
        """Compare both sides as well."""
        await super()._survey()
        lines = [
            json.loads(line)
            for path in self._foreign.glob("*.jsonl")
            for line in path.read_bytes().splitlines()
        ]
        left = self._node.depth(VHOST, SOURCE)
        sink = await gate_flow.read_sink(self._node)
        counts, wrong = gate_flow.judge_gates(lines, await _stored(self._store.make()), sink)
        if left:
            wrong.append(f"{left} messages were left at the source")
        judged = json.dumps({"counts": counts, "wrong": wrong})
        (self._foreign / "judged.json").write_text(judged)
        return True


class _Race:
    """The race at the expiry; nothing is killed."""

    def __init__(self, scene: Scene) -> None:
        self._store = scene.brokered()
        self._seed = scene.plan.seed
        self._directory = scene.directory

    def __call__(self, rounds: int) -> PartResult:
        race = ExpiryRace(self._store.make, partial(journal_in, self._directory), self._seed)
        result = asyncio.run(race.run(rounds))
        findings = check(read_journals(self._directory))
        wrong = [*result.wrong, *(str(each) for each in findings.violations)]
        if rounds >= BOTH_OUTCOMES_MIN and not (result.taken and result.expired):
            wrong.append("the race had only one kind of outcome: it proves nothing")
        figures = {
            "jobs": findings.jobs,
            "operations": findings.operations,
            "lost": findings.lost,
            "resurrected": findings.resurrected,
            "stale_settles": findings.stale_settles,
            "taken": result.taken,
            "expired": result.expired,
            "by_handler": result.by_handler,
        }
        return figures, wrong


_PARTS: dict[str, Callable[[Scene], Callable[[int], PartResult]]] = {
    "engine": BrokerFaultInjector,
    VHOST: GateFaultInjector,
    "expiry": _Race,
}


async def _stored(engine: Engine) -> list[Job]:
    await retry_until_answered(engine.open)
    try:
        return await all_jobs(engine, tuple(State))
    finally:
        await engine.close()
