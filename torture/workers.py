"""kill -9 on workers: children, commands, supervisors and launchers are killed and frozen while
they run jobs of every kind. Every job must end done or dead by policy, run again only because of
a blow, never twice at once, no process may be left; limits, groups and parents must be kept."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.chaos.judge import Findings, percentile
from holdfast.chaos.storm import Weather
from torture import results
from torture.stores import ENGINES, store
from torture.worker_flow import FlowStorm


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    outcomes = [_torture(name, given) for name in names]
    return results.conclude("workers", outcomes, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture workers", description=__doc__)
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--freezes", type=int, help="past the lease; default: a tenth of kills")
    parser.add_argument("--scale", type=float, default=1.0, help="of the jobs' 0.1 to 5 seconds")
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    weather = Weather(
        workers=given.workers,
        kills=given.kills,
        freezes=given.kills // 10 if given.freezes is None else given.freezes,
        seconds=given.kills * 0.4 if given.seconds is None else given.seconds,
        scale=given.scale,
        seed=given.seed,
    )
    print(
        f"{name}: ./hf torture workers --engine {name} --workers {weather.workers} "
        f"--kills {weather.kills} --freezes {weather.freezes} --seconds {weather.seconds:g} "
        f"--scale {weather.scale:g} --seed {weather.seed}",
        flush=True,
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory)
        with store(name, home) as chosen:
            storm = FlowStorm(chosen.url, weather, home)
            findings = asyncio.run(storm.run())
        if given.keep or not findings.clean:
            kept = given.keep or Path(tempfile.mkdtemp(prefix="holdfast-workers-"))
            for file in ("runs.jsonl", "blows.jsonl", "workers.log"):
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(home / file, kept / file)
            print(f"lines: {kept}")
    outcome = _figures(name, weather, storm, findings, time.monotonic() - started)
    print(json.dumps(outcome), flush=True)
    for violation in findings.violations[:10]:
        print(f"violation: {violation}")
    return outcome, findings.clean


def _figures(
    name: str, weather: Weather, storm: FlowStorm, findings: Findings, took_s: float
) -> dict[str, Any]:
    counts = storm.counts
    return {
        "engine": name,
        "seed": weather.seed,
        "workers": weather.workers,
        "seconds": round(took_s, 1),
        "kills": counts["kills"],
        "of_children": counts["child"] + counts["command_child"],
        "of_commands": counts["command"],
        "of_supervisors": counts["supervisor"],
        "of_launchers": counts["launcher"],
        "freezes": counts["freezes"],
        "jobs": findings.jobs,
        "done": findings.done,
        "dead": findings.dead,
        "runs": findings.runs,
        "reruns": findings.reruns,
        "lost_leases": findings.lost_leases,
        "linger_ms": round(findings.linger_ms),
        "violations": len(findings.violations),
        "recovery_ms_p50": round(percentile(findings.recovery_ms, 0.5)),
        "recovery_ms_p99": round(percentile(findings.recovery_ms, 0.99)),
    }
