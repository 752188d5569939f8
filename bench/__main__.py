"""`./hf bench`: parses the options, runs the benchmarks, prints and records the results."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import (
    aws,
    charts,
    dashboard,
    drain,
    engines,
    fleet,
    flow,
    history,
    hostile,
    rabbitmq,
    server,
    single,
    sqs,
    start,
)
from bench.compare.main import main as compare
from bench.report import Report, print_table, record, to_markdown, write_json
from bench.stores import ENGINES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
HISTORY = history.FOLDER
BENCHES: dict[str, Any] = {
    "aws": aws.run,
    "dashboard": dashboard.run,
    "drain": drain.run,
    "engines": engines.run,
    "fleet": fleet.run,
    "flow": flow.run,
    "hostile": hostile.run,
    "rabbitmq": rabbitmq.run,
    "server": server.run,
    "single": single.run,
    "sqs": sqs.run,
    "start": start.run,
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks named in the arguments; return the exit code."""
    if arguments[:1] == ["compare"]:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return compare(arguments[1:])
    given = _parser().parse_args(arguments)
    if unknown := set(given.names) - set(BENCHES):
        sys.exit(f"hf bench: unknown benchmark {unknown.pop()!r}; choose from {', '.join(BENCHES)}")
    if given.record and given.quick:
        sys.exit("hf bench: --quick only checks that benchmarks run; --record needs the full sizes")
    names = given.names or sorted(BENCHES)
    commit = history.current_commit() if given.record else None
    if given.record:
        _require_readable_history(names)
    # On SIGTERM, end the child processes and remove the temporary files as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def log(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    reports: list[Report] = [
        asyncio.run(BENCHES[name](_options(name, given), log)) for name in names
    ]
    # A file or a pipe has no width; a fixed one avoids broken lines.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for report in reports:
        print_table(report, console)
        for result in report.missed:
            console.print(f"goal missed: {result.engine}, {result.metric}", style="red")
    console.print(f"measured in {time.monotonic() - started:.0f} s")
    if given.json is not None:
        write_json(given.json, reports)
    if given.record:
        runs = [history.run_of(each, _command(each.bench, given), commit) for each in reports]
        _record(reports, runs)
    return 0


def _require_readable_history(names: list[str]) -> None:
    """End before anything is measured if the runs could not be recorded afterwards."""
    try:
        for name in names:
            history.read(name, HISTORY)
        charts.plots(HISTORY)
    except history.HistoryError as error:
        sys.exit(f"hf bench: {error}")


def _record(reports: list[Report], runs: list[history.Run]) -> None:
    """Replace the tables in the docs, add the runs to the history, and draw the charts."""
    for report, run in zip(reports, runs, strict=True):
        heading = f"{run.date}, {run.machine}: `{run.command}`"
        record(PAGE, report.bench, f"{heading}\n\n{to_markdown(report)}")
        history.add(run, HISTORY)
    charts.draw_all(HISTORY)


def _command(name: str, given: argparse.Namespace) -> str:
    """The command that runs one benchmark with the given options."""
    parser = _parser()
    words = ["./hf", "bench", name]
    for option in ("engine", "repeats", "jobs", "sync_delay_ms"):
        if (value := getattr(given, option)) != parser.get_default(option):
            words += [f"--{option.replace('_', '-')}", f"{value}"]
    if not given.peers:
        words.append("--no-peers")
    return " ".join(words)


def _options(
    name: str, given: argparse.Namespace
) -> (
    engines.Options
    | aws.Options
    | dashboard.Options
    | drain.Options
    | fleet.Options
    | flow.Options
    | rabbitmq.Options
    | server.Sizes
    | single.Options
    | sqs.Options
    | hostile.Sizes
    | start.Sizes
):
    chosen = ENGINES if given.engine == "all" else (given.engine,)
    changes = {key: value for key in ("jobs", "repeats") if (value := getattr(given, key))}
    match name:
        case "aws":
            aws_sizes = replace(aws.QUICK if given.quick else aws.Sizes(), **changes)
            return aws.Options(sizes=aws_sizes, peers=given.peers)
        case "dashboard":
            page_sizes = replace(dashboard.QUICK if given.quick else dashboard.Sizes(), **changes)
            return dashboard.Options(engines=chosen, sizes=page_sizes)
        case "drain":
            drain_sizes = replace(drain.QUICK if given.quick else drain.Sizes(), **changes)
            return drain.Options(engines=chosen, sizes=drain_sizes, peers=given.peers)
        case "fleet":
            fleet_sizes = fleet.QUICK if given.quick else fleet.Sizes()
            fleet_sizes = replace(
                fleet_sizes,
                messages=given.jobs or fleet_sizes.messages,
                repeats=given.repeats or fleet_sizes.repeats,
            )
            return fleet.Options(sizes=fleet_sizes)
        case "flow":
            flow_sizes = replace(flow.QUICK if given.quick else flow.Sizes(), **changes)
            return flow.Options(engines=chosen, sizes=flow_sizes)
        case "hostile":
            hostile_sizes = hostile.QUICK if given.quick else hostile.Sizes()
            return replace(hostile_sizes, rounds=given.repeats or hostile_sizes.rounds)
        case "rabbitmq":
            broker_sizes = replace(rabbitmq.QUICK if given.quick else rabbitmq.Sizes(), **changes)
            return rabbitmq.Options(sizes=broker_sizes, peers=given.peers)
        case "server":
            server_sizes = server.QUICK if given.quick else server.Sizes()
            return replace(server_sizes, turns=given.repeats or server_sizes.turns)
        case "single":
            single_sizes = replace(single.QUICK if given.quick else single.Sizes(), **changes)
            return single.Options(engines=chosen, sizes=single_sizes, peers=given.peers)
        case "sqs":
            sqs_sizes = sqs.QUICK if given.quick else sqs.Sizes()
            sqs_sizes = replace(sqs_sizes, turns=given.repeats or sqs_sizes.turns)
            return sqs.Options(sizes=sqs_sizes, peers=given.peers)
        case "start":
            start_sizes = start.QUICK if given.quick else start.Sizes()
            return replace(start_sizes, repeats=given.repeats or start_sizes.repeats)
        case _:
            sizes = replace(engines.QUICK if given.quick else engines.Sizes(), **changes)
            return engines.Options(engines=chosen, sizes=sizes, sync_delay_ms=given.sync_delay_ms)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf bench",
        description="Compare Holdfast with raw SQL on this machine and with other queues.",
        epilog="hf bench compare checks the answers of docs/comparison.md: see its --help.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"benchmarks to run: {', '.join(sorted(BENCHES))} [default: all]",
    )
    parser.add_argument(
        "--engine",
        choices=[*ENGINES, "all"],
        default="all",
        help="only this engine [default: all]",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use small sizes, to check that the benchmarks run"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help="repetitions of each measurement [default: 7 for engines and start; 5 for single; 3"
        " for aws, drain, fleet and rabbitmq]",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="jobs per repetition [default: 20,000; 50,000 for drain and rabbitmq; 2,000 for"
        " single; 1,000 for fleet]; jobs in the store of dashboard [default: 1,000,000]",
    )
    parser.add_argument(
        "--no-peers",
        dest="peers",
        action="store_false",
        help="aws, drain, rabbitmq, single, sqs: measure only Holdfast",
    )
    parser.add_argument(
        "--sync-delay-ms",
        type=float,
        default=1.0,
        metavar="MS",
        help="engines: measure again with this delay added to each sync; 0 skips it [default: 1]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"replace the tables in docs/{PAGE.name}, and add the run to the history and the"
        " charts in docs/benchmarks",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
