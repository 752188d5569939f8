"""Kill and freeze client processes, and PostgreSQL itself, at random while the clients enqueue,
lease, renew and settle on one store, partly in transactions of their own that stay open for a
while. Then the faults stop, the store drains, and its history is checked: no job lost, none
resurrected, no stale settle."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.conformance.checker import Findings
from holdfast.conformance.history import read_journals
from torture import results
from torture.fault_injection import FaultInjector, FaultPlan
from torture.stores import ENGINES, store

SECONDS_EACH = {"sqlite": 0.2, "postgres": 0.4}
"""Duration of a run per kill: processes must get some work done between two kills."""


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    found = {name: _torture(name, given) for name in names}
    outcomes = [(figures, findings.clean) for figures, findings in found.values()]
    code = results.conclude("kill -9", outcomes, given)
    for name, (_, findings) in found.items():
        if not findings.clean:
            print(f"{name}:\n{findings.brief}", flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture engines", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=(*ENGINES, "both"),
        default="both",
        help="engine to test [default: both]",
    )
    parser.add_argument(
        "--processes", type=int, default=8, metavar="N", help="client processes [default: 8]"
    )
    parser.add_argument(
        "--kills", type=int, default=300, metavar="N", help="kills of clients [default: 300]"
    )
    parser.add_argument(
        "--freezes",
        type=int,
        metavar="N",
        help="freezes longer than a lease [default: a tenth of kills]",
    )
    parser.add_argument(
        "--server-kills",
        type=int,
        metavar="N",
        help="kills of the database server [default: a fiftieth of kills]",
    )
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], Findings]:
    plan = FaultPlan(
        processes=given.processes,
        kills=given.kills,
        seconds=given.kills * SECONDS_EACH[name] if given.seconds is None else given.seconds,
        seed=given.seed,
        freezes=given.kills // 10 if given.freezes is None else given.freezes,
        server_kills=given.kills // 50 if given.server_kills is None else given.server_kills,
    )
    replay = (
        f"./hf torture engines --engine {name} --processes {plan.processes} "
        f"--kills {plan.kills} --freezes {plan.freezes} "
        f"--server-kills {plan.server_kills} --seconds {plan.seconds:g} "
        f"--seed {plan.seed}"
    )
    print(f"{name}: {replay}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with store(name, Path(home)) as chosen:
            findings = FaultInjector(chosen, plan, histories).run()
        transactions = sum(line.op == "transaction" for line in read_journals(histories))
        results.keep_histories(histories, name, given, wrong=not findings.clean)
    _show(findings)
    figures = _figures(name, plan, findings, time.monotonic() - started)
    return {**figures, "transactions": transactions}, findings


def _show(findings: Findings) -> None:
    print(findings, flush=True)
    for violation in findings.violations[:5]:
        print(violation)


def _figures(name: str, plan: FaultPlan, findings: Findings, took_s: float) -> dict[str, Any]:
    return {
        "engine": name,
        "seed": plan.seed,
        "processes": plan.processes,
        "seconds": round(took_s, 1),
        "kills": findings.kills,
        "server_kills": findings.server_kills,
        "freezes": findings.freezes,
        "jobs": findings.jobs,
        "operations": findings.operations,
        "unknown": findings.unknown,
        "limited": findings.limited,
        "grouped": findings.grouped,
        "children": findings.children,
        "recounts": findings.recounts,
        "lost": findings.lost,
        "resurrected": findings.resurrected,
        "stale_settles": findings.stale_settles,
        "violations": len(findings.violations),
        "recovery_ms_p50": findings.recovery_ms_p50,
        "recovery_ms_p99": findings.recovery_ms_p99,
    }
