"""Simulate clients, workers and upkeep in one thread and virtual time, with faults drawn by a seed.
The same seed on the same engine repeats the run; a failing seed is printed with the command that
replays it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.conformance.simulate import MakeEngine, SimulationRun, simulate
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.testing.clock import ManualClock
from torture import results

ENGINES = ("memory", "sqlite", "postgres")
# Faults that an engine does not support: memory does not survive a reboot, and PostgreSQL's leases
# use the wall clock in tests.
WITHOUT = {
    "memory": frozenset({"reboot"}),
    "sqlite": frozenset[str](),
    "postgres": frozenset({"reboot", "jump"}),
}


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    first = given.seed
    if first is None:
        first = SystemRandom().randrange(1_000_000_000)
    outcome = asyncio.run(_run(given.engine, range(first, first + given.seeds), given.steps))
    print(
        f"{given.engine}: {outcome['seeds']} seeds from {first}, {outcome['operations']} operations"
        f" in {outcome['seconds']} s, {len(outcome['failed'])} failed {outcome['failed'][:20]}"
    )
    if given.json:
        given.json.write_text(json.dumps([outcome], indent=2) + "\n")
    if given.record:
        results.record("simulation", outcome)
    return 1 if outcome["failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture simulate", description=__doc__)
    parser.add_argument(
        "--engine", choices=ENGINES, default="sqlite", help="engine to test [default: sqlite]"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="first seed [default: random]")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="number of seeds [default: 1]"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=400,
        metavar="N",
        help="steps before the faults end [default: 400]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    return parser


async def _run(name: str, seeds: range, steps: int) -> dict[str, Any]:
    failed = []
    operations = calls = 0
    started = time.monotonic()
    with factory(name) as fresh:
        for seed in seeds:
            run = await simulate(seed, fresh(), steps=steps, without=WITHOUT[name])
            operations += run.findings.operations
            calls += run.findings.calls
            if not run.findings.clean:
                failed.append(seed)
                print(run.explain(name), flush=True)
            if sys.stderr.isatty():
                print(f"seed {seed}: {operations} operations", end="\r", file=sys.stderr)
    if len(seeds) == 1:
        _describe(run)
    return {
        "engine": name,
        "seed": seeds.start,
        "seeds": len(seeds),
        "steps": steps,
        "seconds": round(time.monotonic() - started, 1),
        "calls": calls,
        "operations": operations,
        "violations": len(failed),
        "failed": failed,
    }


def _describe(run: SimulationRun) -> None:
    print(f"faults: {', '.join(sorted(run.plan.faults)) or 'none'}")
    print(f"features: {', '.join(sorted(run.plan.features)) or 'none'}")
    print(run.findings)


@contextlib.contextmanager
def factory(name: str, dsn: str | None = None) -> Iterator[Callable[[], MakeEngine]]:
    """Yield a function that creates a store and returns a function that opens engines on it."""
    with contextlib.ExitStack() as stack:
        if name == "memory":
            yield _memory
        elif name == "sqlite":
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-sim-")))
            yield lambda: _sqlite(home)
        else:
            server = dsn or stack.enter_context(PrivatePostgres()).dsn
            yield lambda: _postgres(server)


def _memory() -> MakeEngine:
    made: list[Engine] = []

    def make(clock: ManualClock) -> Engine:
        if not made:
            made.append(MemoryEngine(clock=clock))
        return made[0]

    return make


def _sqlite(home: Path) -> MakeEngine:
    from holdfast.engines.sqlite import SQLiteEngine

    path = home / f"{uuid.uuid4().hex}.db"
    # Relaxed durability is enough, because the simulation has no power cuts.
    return lambda clock: SQLiteEngine(path, durability="relaxed", clock=clock)


def _postgres(dsn: str) -> MakeEngine:
    from holdfast.engines.postgres import PostgresEngine

    namespace = uuid.uuid4().hex
    return lambda clock: PostgresEngine(dsn, namespace=namespace, connections=1, clock=clock)
