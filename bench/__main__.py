"""`python -m bench`: which benchmarks, how large, and where the results go."""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import platform
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import drain, engines, flow, hostile, server
from bench.report import Report, print_table, record, to_markdown, write_json
from bench.stores import ENGINES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BENCHES: dict[str, Any] = {
    "drain": drain.run,
    "engines": engines.run,
    "flow": flow.run,
    "hostile": hostile.run,
    "server": server.run,
}


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    if unknown := set(given.names) - set(BENCHES):
        sys.exit(f"hf bench: no benchmark is called {unknown.pop()!r}: {', '.join(BENCHES)}")
    # Ended from outside, it still ends what it started and removes what it wrote.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    reports: list[Report] = [
        asyncio.run(BENCHES[name](_options(name, given), tell))
        for name in given.names or sorted(BENCHES)
    ]
    # A file or a pipe has no width of its own, and a broken line is hard to read.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for report in reports:
        print_table(report, console)
        for result in report.missed:
            console.print(f"missed: {result.engine}, {result.metric}", style="red")
    console.print(f"measured in {time.monotonic() - started:.0f} s")
    if given.json is not None:
        write_json(given.json, reports)
    if given.record:
        for report in reports:
            record(PAGE, report.bench, _dated(report, given))
    return 0


def _options(
    name: str, given: argparse.Namespace
) -> engines.Options | drain.Options | flow.Options | server.Sizes | hostile.Sizes:
    chosen = ENGINES if given.engine == "all" else (given.engine,)
    sizes = {key: value for key in ("jobs", "repeats") if (value := getattr(given, key))}
    if name == "drain":
        base = drain.QUICK if given.quick else drain.Sizes()
        return drain.Options(engines=chosen, sizes=replace(base, **sizes), peers=given.peers)
    if name == "flow":
        small = flow.QUICK if given.quick else flow.Sizes()
        return flow.Options(engines=chosen, sizes=replace(small, **sizes))
    if name == "hostile":
        some = hostile.QUICK if given.quick else hostile.Sizes()
        return replace(some, rounds=given.repeats or some.rounds)
    if name == "server":
        few = server.QUICK if given.quick else server.Sizes()
        return replace(few, turns=given.repeats or few.turns)
    return engines.Options(
        engines=chosen,
        sizes=replace(engines.QUICK if given.quick else engines.Sizes(), **sizes),
        sync_delay_ms=given.sync_delay_ms,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf bench",
        description="Measure Holdfast beside the raw ceiling of this machine, and its peers.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which benchmarks: {', '.join(sorted(BENCHES))}; all when none",
    )
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="much smaller, to see that it runs")
    parser.add_argument("--repeats", type=int, help="turns (7 of the engines, 3 of a drain)")
    parser.add_argument("--jobs", type=int, help="jobs in a turn (20,000; of a drain 50,000)")
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="drain: Holdfast alone"
    )
    parser.add_argument(
        "--sync-delay-ms",
        type=float,
        default=1.0,
        metavar="MS",
        help="measure also with every sync so much longer; 0 leaves it out",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--record", action="store_true", help=f"write the table to {PAGE.name}")
    return parser


def _dated(report: Report, given: argparse.Namespace) -> str:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    version = f"Python {platform.python_version()}, load {os.getloadavg()[2]:.1f} over 15 minutes"
    command = f"./hf bench {report.bench}{' --quick' if given.quick else ''}"
    return f"{today}, {system}, {version}: `{command}`\n\n{to_markdown(report)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
