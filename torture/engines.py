"""kill -9: processes enqueue, lease, renew and settle on one store while they, and PostgreSQL
itself, are killed and frozen at random. Then the store heals, drains, and its history is checked:
nothing lost, nothing resurrected, no stale settle."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.testing.checker import Findings
from torture import results
from torture.stores import ENGINES, store
from torture.storm import Storm, Weather

SECONDS_EACH = {"sqlite": 0.2, "postgres": 0.4}
"""How long the storm lasts for each kill: processes must come to work between two of them."""


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    found = {name: _torture(name, given) for name in names}
    outcomes = [(figures, findings.clean) for figures, findings in found.values()]
    code = results.conclude("kill -9", outcomes, given)
    for name, (_, findings) in found.items():
        if not findings.clean:
            print(f"{name}:\n{findings.brief}", flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture engines", description=__doc__)
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=300, help="of processes")
    parser.add_argument("--freezes", type=int, help="past their leases; default: a tenth of kills")
    parser.add_argument("--server-kills", type=int, help="default: a fiftieth of kills")
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], Findings]:
    weather = Weather(
        processes=given.processes,
        kills=given.kills,
        seconds=given.kills * SECONDS_EACH[name] if given.seconds is None else given.seconds,
        seed=given.seed,
        freezes=given.kills // 10 if given.freezes is None else given.freezes,
        server_kills=given.kills // 50 if given.server_kills is None else given.server_kills,
    )
    replay = (
        f"./hf torture engines --engine {name} --processes {weather.processes} "
        f"--kills {weather.kills} --freezes {weather.freezes} "
        f"--server-kills {weather.server_kills} --seconds {weather.seconds:g} "
        f"--seed {weather.seed}"
    )
    print(f"{name}: {replay}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with store(name, Path(home)) as chosen:
            findings = Storm(chosen, weather, histories).run()
        if given.keep or not findings.clean:
            kept = given.keep or Path(tempfile.mkdtemp(prefix="holdfast-histories-"))
            shutil.copytree(histories, kept / name, dirs_exist_ok=True)
            print(f"histories: {kept / name} (./hf torture check {kept / name})")
    _show(findings)
    return _figures(name, weather, findings, time.monotonic() - started), findings


def _show(findings: Findings) -> None:
    print(findings, flush=True)
    for violation in findings.violations[:5]:
        print(violation)


def _figures(name: str, weather: Weather, findings: Findings, took_s: float) -> dict[str, Any]:
    return {
        "engine": name,
        "seed": weather.seed,
        "processes": weather.processes,
        "seconds": round(took_s, 1),
        "kills": findings.kills,
        "server_kills": findings.server_kills,
        "freezes": findings.freezes,
        "jobs": findings.jobs,
        "operations": findings.operations,
        "unknown": findings.unknown,
        "limited": findings.limited,
        "grouped": findings.grouped,
        "children": findings.children,
        "recounts": findings.recounts,
        "lost": findings.lost,
        "resurrected": findings.resurrected,
        "stale_settles": findings.stale_settles,
        "violations": len(findings.violations),
        "recovery_ms_p50": findings.recovery_ms_p50,
        "recovery_ms_p99": findings.recovery_ms_p99,
    }
