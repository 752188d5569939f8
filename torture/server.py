"""Kill the server under load. Clients enqueue, lease, renew and settle through it, half of them
over REST and half through the remote engine, and must reconnect on their own. Then the store drains
and its history is checked: no acknowledged job is lost, and a repeated enqueue adds no job.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.conformance.history import HistoryLine, Journal, Recorded, read_journals
from holdfast.engines.base import Engine
from torture import results
from torture.client import Client
from torture.fault_injection import FaultInjector, FaultPlan
from torture.private_server import PrivateServer
from torture.rest_engine import RestEngine
from torture.retries import NotifyingRemoteEngine, RecordedRequests
from torture.stores import ENGINES, Store, StrictPostgres, store

SECONDS_EACH = 0.8
"""Time between two kills, without the start of the server."""


COME_BACK_S = 4.0
"""Time for clients to come back after the last kill: longer than their longest pause between two
requests."""
POLL_S = 0.2


class ServerFaultInjector(FaultInjector):
    """Kills only the server, not the store behind it. Every second client uses REST."""

    def __init__(self, store: Store, plan: FaultPlan, directory: Path, behind: Store) -> None:
        super().__init__(store, plan, directory)
        self._behind = behind

    def _inject_faults(self) -> None:
        super()._inject_faults()
        deadline = time.monotonic() + COME_BACK_S
        while time.monotonic() < deadline and not self._all_are_back():
            self._wait_until(min(deadline, time.monotonic() + POLL_S))

    def _all_are_back(self) -> bool:
        """True if every client was answered after every kill."""
        back = _back_ms(read_journals(self._directory))
        return len(back) == self._plan.server_kills * self._plan.processes

    def _kill_all(self, *, count: bool = True) -> None:
        """Stop the clients gracefully: the server releases the leases of a killed client, and that
        would not be in the history."""
        for pid in self._alive if count else ():
            os.kill(pid, signal.SIGTERM)
        for pid in list(self._alive) if count else ():
            self._finish(pid)
            del self._alive[pid]
        super()._kill_all(count=count)

    def _client(self, name: str, *, calm: bool) -> Client:
        seed = f"{self._plan.seed}/{name}"
        engine = self._store.make()
        assert isinstance(engine, NotifyingRemoteEngine)
        by_rest = int(name[1:]) % 2 == 1
        return Client(
            RestEngine(engine.place) if by_rest else engine,
            self._journal_of(name),
            seed,
            calm=calm,
            in_json=by_rest,
            recorded=self._recorded,
        )

    def _recorded(self, engine: Engine, journal: Journal) -> Recorded:
        behind = self._behind.make()
        if isinstance(behind, StrictPostgres):
            return DirectRecounts(engine, journal, behind)
        return RecordedRequests(engine, journal)


class DirectRecounts(RecordedRequests):
    """Recounts in the store behind the server, because only that tells how many of the differences
    are children that a killed server has not notified."""

    def __init__(self, engine: Engine, journal: Journal, behind: StrictPostgres) -> None:
        super().__init__(engine, journal)
        self._behind = behind

    async def recount(self, limit: int) -> int:
        await self._behind.open()
        told = self._behind.told
        repaired = await self._recorded("recount", limit, self._behind.recount(limit))
        if self._behind.told > told:
            self._journal.note("told", count=self._behind.told - told)
        return repaired


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    return results.conclude("server", [_torture(name, given) for name in names], given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture server", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=(*ENGINES, "both"),
        default="both",
        help="store behind the server [default: both]",
    )
    parser.add_argument(
        "--clients", type=int, default=8, metavar="N", help="client processes [default: 8]"
    )
    parser.add_argument(
        "--kills", type=int, default=50, metavar="N", help="kills of the server [default: 50]"
    )
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    seconds = given.kills * SECONDS_EACH if given.seconds is None else given.seconds
    plan = FaultPlan(
        processes=given.clients,
        kills=0,
        seconds=seconds,
        seed=given.seed,
        freezes=0,
        server_kills=given.kills,
    )
    replay = (
        f"--engine {name} --clients {given.clients} --kills {given.kills} --seconds {seconds:g}"
    )
    print(f"./hf torture server {replay} --seed {given.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with store(name, Path(home)) as behind, PrivateServer(behind.url, Path(home)) as server:
            served = Store(
                f"server on {name}",
                lambda: NotifyingRemoteEngine(server.url),
                server,
                server.url,
                clock=name == "postgres",
            )
            findings = ServerFaultInjector(served, plan, histories, behind).run()
        back_ms = _back_ms(read_journals(histories))
        results.keep_histories(histories, name, given, wrong=not findings.clean)
    print(findings, flush=True)
    for violation in findings.violations[:5]:
        print(violation)
    figures = {
        "engine": name,
        "clients": given.clients,
        "seed": given.seed,
        "seconds": round(time.monotonic() - started, 1),
        "server_kills": findings.server_kills,
        "jobs": findings.jobs,
        "operations": findings.operations,
        "unknown": findings.unknown,
        "lost": findings.lost,
        "resurrected": findings.resurrected,
        "stale_settles": findings.stale_settles,
        "violations": len(findings.violations),
        "back": len(back_ms),
        "back_ms_p50": median(back_ms) if back_ms else None,
        "back_ms_max": max(back_ms, default=None),
    }
    print(_summary(figures), flush=True)
    # A client that did not reconnect after a kill fails the run, even if the store is correct.
    return figures, findings.clean and len(back_ms) == given.clients * given.kills


def _back_ms(lines: Sequence[HistoryLine]) -> list[float]:
    """Time from each restart of the server to the next successful call of each client."""
    kills = [line.at_ns for line in lines if line.op == "server_back"]
    answers: dict[str, list[int]] = {}
    for line in lines:
        if line.phase == "ok" and line.process.startswith("p") and line.process[1:].isdigit():
            answers.setdefault(line.process, []).append(line.at_ns)
    found: list[float] = []
    heal_at = next((line.at_ns for line in lines if line.op == "heal"), None)
    for kill_at in kills:
        for instants in answers.values():
            if heal_at is not None and instants[0] > heal_at:
                continue
            later = next((at for at in instants if at > kill_at), None)
            if later is not None:
                found.append((later - kill_at) / 1e6)
    return found


def _summary(figures: dict[str, Any]) -> str:
    return (
        f"server on {figures['engine']}: killed {figures['server_kills']} times under"
        f" {figures['clients']} clients, {figures['jobs']:,} jobs,"
        f" {figures['operations']:,} operations, "
        f"{figures['unknown']:,} of them with unknown outcome; {figures['lost']} lost, "
        f"{figures['resurrected']} resurrected, {figures['violations']} violations; clients "
        f"reconnected {figures['back']:,} times: {figures['back_ms_p50'] or 0:.0f} ms at p50, "
        f"{figures['back_ms_max'] or 0:.0f} ms at most"
    )
