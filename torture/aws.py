"""Kill workers, gates and distributors on Amazon SQS, at our own endpoint behind a proxy that
throttles, loses replies, cuts connections and delivers twice. Then the faults stop, the queues
drain, and everything is compared: every acknowledged send is done or dead, each repeat has a cause,
and no dead letter is forgotten."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from torture import results
from torture.aws_gates import GatePart
from torture.aws_workers import KEYS, AwsPlan, PartResult, Service, WorkerPart
from torture.private_server import PrivateServer
from torture.sqs_proxy import SqsProxy
from torture.stores import ENGINES, store

PARTS: dict[str, Callable[[Service, AwsPlan], Callable[[], Coroutine[Any, Any, PartResult]]]] = {
    "workers": lambda service, plan: WorkerPart(service, plan).run,
    "gates": lambda service, plan: GatePart(service, plan).run,
}
SECONDS_EACH = 0.5
"""Time between two kills."""
FAULT_S = 0.2
"""Mean time between two faults of the proxy."""
FLAGS = ("--no-auth", "--sqs", "relaxed")


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    # Every client would report every fault.
    logging.disable(logging.WARNING)
    os.environ.update(KEYS)
    names = tuple(PARTS) if given.part == "all" else (given.part,)
    return results.conclude("aws", [_run_part(name, given) for name in names], given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture aws", description=__doc__)
    parser.add_argument(
        "--part",
        choices=(*PARTS, "all"),
        default="all",
        help="workers on SQS, or gates with a distributor [default: all]",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="sqlite",
        help="store behind the endpoint [default: sqlite]",
    )
    parser.add_argument("--workers", type=int, default=3, metavar="N", help="workers [default: 3]")
    parser.add_argument(
        "--kills", type=int, default=200, metavar="N", help="kills of processes [default: 200]"
    )
    parser.add_argument(
        "--freezes",
        type=int,
        metavar="N",
        help="freezes of workers beyond a lease [default: a tenth of kills]",
    )
    parser.add_argument(
        "--messages",
        type=int,
        metavar="N",
        help="messages sent meanwhile [default: 50 for each kill]",
    )
    results.add_options(parser)
    return parser


def _run_part(part: str, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    plan = AwsPlan(
        workers=given.workers,
        kills=given.kills,
        freezes=given.kills // 10 if given.freezes is None else given.freezes,
        messages=50 * given.kills if given.messages is None else given.messages,
        seconds=given.kills * SECONDS_EACH if given.seconds is None else given.seconds,
        seed=given.seed,
    )
    print(
        f"{part}: ./hf torture aws --part {part} --engine {given.engine} --workers {plan.workers}"
        f" --kills {plan.kills} --freezes {plan.freezes} --messages {plan.messages}"
        f" --seconds {plan.seconds:g} --seed {plan.seed}",
        flush=True,
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory, "histories")
        home.mkdir()
        journal = home / "service.jsonl"
        with (
            store(given.engine, Path(directory)) as behind,
            PrivateServer(behind.url, Path(directory), flags=FLAGS, upkeep=True) as server,
            SqsProxy(server.url, journal, seed=plan.seed, every_s=FAULT_S) as proxy,
        ):
            run = PARTS[part](Service(server, proxy, journal, home), plan)
            figures, wrong = asyncio.run(run())
            (home / "server.log").write_text(server.log)
        results.keep_histories(home, part, given, wrong=bool(wrong), checked=False)
    return results.finish_part(part, given, started, figures, wrong)
