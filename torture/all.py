"""Run every crash test, one after the other, each at `--scale` times its usual size."""

from __future__ import annotations

import argparse
from random import SystemRandom

from torture import (
    aws,
    dashboard,
    engines,
    machine,
    migration,
    poison,
    power,
    rabbitmq,
    server,
    simulate,
    sqs,
    workers,
    writers,
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hf torture all", description=__doc__)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="multiply all sizes by this factor [default: 1]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=SystemRandom().randrange(1_000_000),
        help="seed of all tests [default: random]",
    )
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")
    given = parser.parse_args(argv)

    def sized(number: int) -> str:
        return str(max(1, round(number * given.scale)))

    seed = ["--seed", str(given.seed)]
    record = ["--record"] if given.record else []
    statuses = [
        engines.main(["--kills", sized(300), *seed, *record]),
        workers.main(["--kills", sized(300), *seed, *record]),
        server.main(["--kills", sized(50), *seed, *record]),
        sqs.main(["--kills", sized(50), *seed, *record]),
        aws.main(["--kills", sized(200), *seed, *record]),
        rabbitmq.main(["--broker-kills", sized(20), "--rounds", sized(1_000), *seed, *record]),
        dashboard.main(["--kills", sized(50), "--jobs", sized(100_000), *seed, *record]),
        poison.main(["--jobs", sized(10_000), *seed, *record]),
        simulate.main(["--engine", "memory", "--seeds", sized(1_000), *seed, *record]),
        simulate.main(["--engine", "sqlite", "--seeds", sized(200), *seed, *record]),
        simulate.main(["--engine", "postgres", "--seeds", sized(50), *seed, *record]),
        machine.main(["--engine", "sqlite", "--examples", sized(500), *seed, *record]),
        machine.main(["--engine", "postgres", "--examples", sized(100), *seed, *record]),
        migration.main(["--jobs", sized(200_000), "--kills", sized(20), *seed]),
        power.main(["--cuts", sized(300), *seed, *record]),
        writers.main(record),
    ]
    return max(statuses)
