"""Kill and freeze children, commands, supervisors and launchers while they run jobs of every kind.
Every job must end done, or dead by policy, run again only because of a fault, and never twice at
once. No process may be left behind. Limits, groups and dependencies must hold."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.conformance.chaos.scenario import ChaosPlan
from holdfast.conformance.chaos.verify import ChaosFindings, percentile
from torture import results
from torture.stores import ENGINES, store
from torture.worker_flow import FlowChaos


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    outcomes = [_torture(name, given) for name in names]
    return results.conclude("workers", outcomes, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture workers", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=(*ENGINES, "both"),
        default="both",
        help="engine to test [default: both]",
    )
    parser.add_argument("--workers", type=int, default=3, metavar="N", help="workers [default: 3]")
    parser.add_argument(
        "--kills", type=int, default=300, metavar="N", help="kills of processes [default: 300]"
    )
    parser.add_argument(
        "--freezes",
        type=int,
        metavar="N",
        help="freezes longer than a lease [default: a tenth of kills]",
    )
    parser.add_argument(
        "--scale",
        type=float,
        metavar="FACTOR",
        default=1.0,
        help="multiply the run times of jobs, 0.1 to 5 s, by this factor [default: 1]",
    )
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    plan = ChaosPlan(
        workers=given.workers,
        kills=given.kills,
        freezes=given.kills // 10 if given.freezes is None else given.freezes,
        seconds=given.kills * 0.4 if given.seconds is None else given.seconds,
        scale=given.scale,
        seed=given.seed,
    )
    print(
        f"{name}: ./hf torture workers --engine {name} --workers {plan.workers} "
        f"--kills {plan.kills} --freezes {plan.freezes} --seconds {plan.seconds:g} "
        f"--scale {plan.scale:g} --seed {plan.seed}",
        flush=True,
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory)
        with store(name, home) as chosen:
            chaos = FlowChaos(chosen.url, plan, home)
            findings = asyncio.run(chaos.run())
        if given.keep or not findings.clean:
            kept = given.keep or Path(tempfile.mkdtemp(prefix="holdfast-workers-"))
            for file in ("runs.jsonl", "faults.jsonl", "workers.log"):
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(home / file, kept / file)
            print(f"logs of the run: {kept}")
    outcome = _figures(name, plan, chaos, findings, time.monotonic() - started)
    print(json.dumps(outcome), flush=True)
    for violation in findings.violations[:10]:
        print(f"violation: {violation}")
    return outcome, findings.clean


def _figures(
    name: str, plan: ChaosPlan, chaos: FlowChaos, findings: ChaosFindings, took_s: float
) -> dict[str, Any]:
    counts = chaos.counts
    return {
        "engine": name,
        "seed": plan.seed,
        "workers": plan.workers,
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
