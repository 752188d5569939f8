"""Run jobs that raise, hang, crash or cannot start among good ones. All good jobs must finish,
every poison job must become a dead letter for the right reason, memory must stay constant, and no
process may be left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from random import SystemRandom
from typing import Any

from torture import results
from torture.poison_trial import PoisonPlan, PoisonTrial
from torture.stores import ENGINES, store


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    plan = PoisonPlan(given.jobs, given.workers, given.rate, given.calm, given.seed)
    name = given.engine
    print(
        f"{name}: ./hf torture poison --engine {name} --jobs {plan.jobs} "
        f"--workers {plan.workers} --rate {plan.rate:g} --calm {plan.calm_s:g} --seed {plan.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory)
        with store(name, home) as chosen:
            trial = PoisonTrial(chosen.url, plan, home)
            violations = asyncio.run(trial.run())
        if violations:
            kept = Path(tempfile.mkdtemp(prefix="holdfast-poison-"), "workers.log")
            kept.write_bytes(trial.log.read_bytes())
            print(f"log of the workers: {kept}")
    outcome: dict[str, Any] = {"engine": name, **trial.figures, "violations": len(violations)}
    print(json.dumps(outcome), flush=True)
    for violation in violations[:10]:
        print(f"violation: {violation}")
    if given.json:
        given.json.write_text(json.dumps([outcome], indent=2) + "\n")
    if given.record:
        results.record("poison", outcome)
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture poison", description=__doc__)
    parser.add_argument(
        "--engine", choices=ENGINES, default="sqlite", help="engine to test [default: sqlite]"
    )
    parser.add_argument(
        "--jobs", type=int, default=10_000, metavar="N", help="poison jobs [default: 10000]"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers [default: 2]")
    parser.add_argument(
        "--rate", type=float, default=20.0, metavar="N", help="good jobs per second [default: 20]"
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="initial seconds without poison [default: 20]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=SystemRandom().randrange(1_000_000),
        help="seed of the jobs [default: random]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    return parser
