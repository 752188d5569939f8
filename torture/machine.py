"""Compare an engine with the reference engine in random histories, step by step, with a Hypothesis
state machine. A failure is shrunk and printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import time
import traceback
from random import SystemRandom

from holdfast.conformance.harness import Harness
from holdfast.conformance.random_histories import run_histories
from torture import results
from torture.simulate import ENGINES, WITHOUT, factory


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hf torture machine", description=__doc__)
    parser.add_argument(
        "--engine", choices=ENGINES, default="sqlite", help="engine to test [default: sqlite]"
    )
    parser.add_argument(
        "--examples", type=int, default=500, metavar="N", help="number of histories [default: 500]"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=100,
        metavar="N",
        help="maximum steps per history [default: 100]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=SystemRandom().randrange(2**32),
        help="seed of the histories [default: random]",
    )
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    given = parser.parse_args(argv)
    replay = (
        f"./hf torture machine --engine {given.engine} --examples {given.examples} "
        f"--steps {given.steps} --seed {given.seed}"
    )
    print(replay, flush=True)
    started = time.monotonic()
    with factory(given.engine) as fresh:
        try:
            run_histories(
                lambda: Harness(fresh(), can_jump="jump" not in WITHOUT[given.engine]),
                examples=given.examples,
                steps=given.steps,
                seed=given.seed,
            )
        except Exception:  # noqa: BLE001 - any exception is a finding
            traceback.print_exc()
            print(f"replay: {replay}")
            return 1
    seconds = time.monotonic() - started
    print(f"{given.engine}: {given.examples} histories in {seconds:.0f} s, no difference found")
    if given.record:
        figures = {name: getattr(given, name) for name in ("engine", "examples", "steps", "seed")}
        results.record("state machine", {**figures, "seconds": seconds, "violations": 0})
    return 0
