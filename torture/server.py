"""kill -9 of the server under load: clients enqueue, lease, renew and settle through it, half of
them by REST and half through the remote engine, while it is killed and started again. They come
back by themselves. Then the store drains and its history is checked: nothing that was acknowledged
is lost, and what was sent again with the same id made no second job."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.testing.history import read_journals
from holdfast.testing.history.lines import Line
from torture import results
from torture.player import Player
from torture.rest import RestEngine
from torture.serving import PrivateServer
from torture.stores import Store
from torture.storm import Storm, Weather
from torture.tries import EachTry, Told

SECONDS_EACH = 0.8
"""How long the server lives between two kills; the time that it takes to start comes on top."""


COME_BACK_S = 4.0
"""After the last kill: as long as a client may pause between two tries, and a while."""


class ServerStorm(Storm):
    """Every second client speaks REST."""

    def _rage(self) -> None:
        super()._rage()
        self._wait_until(time.monotonic() + COME_BACK_S)

    def _kill_all(self, *, count: bool = True) -> None:
        """Not by force: what was leased for a client that is gone the server gives back, and nobody
        would write that down."""
        for pid in self._alive if count else ():
            os.kill(pid, signal.SIGTERM)
        for pid in list(self._alive) if count else ():
            self._finish(pid)
            del self._alive[pid]
        super()._kill_all(count=count)

    def _player(self, name: str, *, calm: bool) -> Player:
        seed = f"{self._weather.seed}/{name}"
        engine = self._store.make()
        assert isinstance(engine, Told)
        by_rest = int(name[1:]) % 2 == 1
        return Player(
            RestEngine(engine.place) if by_rest else engine,
            self._journal_of(name),
            seed,
            calm=calm,
            in_json=by_rest,
            recorded=EachTry,
        )


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    return results.conclude("server", [_torture(given)], given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture server", description=__doc__)
    parser.add_argument("--clients", type=int, default=8, help="processes")
    parser.add_argument("--kills", type=int, default=50, help="of the server")
    results.add_options(parser)
    return parser


def _torture(given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    seconds = given.kills * SECONDS_EACH if given.seconds is None else given.seconds
    weather = Weather(
        processes=given.clients,
        kills=0,
        seconds=seconds,
        seed=given.seed,
        freezes=0,
        server_kills=given.kills,
    )
    replay = f"--clients {given.clients} --kills {given.kills} --seconds {seconds:g}"
    print(f"./hf torture server {replay} --seed {given.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with PrivateServer(f"sqlite:///{home}/jobs.db", Path(home)) as server:
            store = Store("server", lambda: Told(server.url), server, server.url, clock=False)
            findings = ServerStorm(store, weather, histories).run()
        back_ms = _back_ms(read_journals(histories))
        if given.keep or not findings.clean:
            kept = given.keep or Path(tempfile.mkdtemp(prefix="holdfast-histories-"))
            shutil.copytree(histories, kept / "server", dirs_exist_ok=True)
            print(f"histories: {kept / 'server'} (./hf torture check {kept / 'server'})")
    print(findings, flush=True)
    for violation in findings.violations[:5]:
        print(violation)
    figures = {
        "engine": "remote",
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
    # A client that did not come back after some kill is not well, whatever the store says.
    return figures, findings.clean and len(back_ms) == given.clients * given.kills


def _back_ms(lines: Sequence[Line]) -> list[float]:
    """For each kill and each client: from when the server listened to the first good answer."""
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
        f"server: killed {figures['server_kills']} times under {figures['clients']} clients, "
        f"{figures['jobs']:,} jobs, {figures['operations']:,} operations, "
        f"{figures['unknown']:,} of them in doubt; {figures['lost']} lost, "
        f"{figures['resurrected']} resurrected, {figures['violations']} violations; clients were "
        f"back {figures['back']:,} times, after {figures['back_ms_p50'] or 0:.0f} ms at p50 and "
        f"{figures['back_ms_max'] or 0:.0f} ms at most"
    )
