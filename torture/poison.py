"""Poison: jobs that raise, hang, crash or cannot even start, beside good ones. The good ones must
finish all the same, every poison must become a dead letter for the right reason, memory must stay
flat and no process may be left."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from random import SystemRandom
from typing import Any

from torture import results
from torture.stores import ENGINES, store
from torture.worker_dose import Dose, Trial


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    dose = Dose(given.jobs, given.workers, given.rate, given.calm, given.seed)
    name = given.engine
    print(
        f"{name}: ./hf torture poison --engine {name} --jobs {dose.jobs} "
        f"--workers {dose.workers} --rate {dose.rate:g} --calm {dose.calm_s:g} --seed {dose.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory)
        with store(name, home) as chosen:
            trial = Trial(chosen.url, dose, home)
            violations = asyncio.run(trial.run())
        if violations:
            kept = Path(tempfile.mkdtemp(prefix="holdfast-poison-"), "workers.log")
            kept.write_bytes(trial.log.read_bytes())
            print(f"what the workers said: {kept}")
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
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000, help="of poison")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=20.0, help="good jobs a second")
    parser.add_argument("--calm", type=float, default=20.0, help="seconds without poison first")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--record", action="store_true", help="add the figures to docs/torture.md")
    return parser
