"""Writes results: as JSON, and as rows of the tables in docs/torture.md, newest first."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from random import SystemRandom
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torture.md"
COLUMNS = {
    "kill -9": (
        "engine", "processes", "seconds", "kills", "server_kills", "freezes", "jobs",
        "operations", "limited", "grouped", "children", "transactions", "recounts", "lost",
        "resurrected", "stale_settles", "violations", "recovery_ms_p50", "recovery_ms_p99", "seed",
    ),
    "workers": (
        "engine", "workers", "seconds", "kills", "of_children", "of_commands", "of_supervisors",
        "of_launchers", "freezes", "jobs", "dead", "runs", "reruns", "lost_leases",
        "violations", "recovery_ms_p50", "recovery_ms_p99", "seed",
    ),
    "server": (
        "engine", "clients", "seconds", "server_kills", "jobs", "operations", "unknown", "lost",
        "resurrected", "stale_settles", "violations", "back_ms_p50", "back_ms_max", "seed",
    ),
    "sqs": (
        "engine", "clients", "receivers", "seconds", "server_kills", "sent", "received", "deleted",
        "unknown", "moved", "moves", "interrupted_moves", "lost", "resurrected", "held_twice",
        "out_of_order", "violations", "seed",
    ),
    "aws": (
        "part", "engine", "seconds", "kills", "freezes", "proxy_throttle", "proxy_entry",
        "proxy_request", "proxy_reply", "proxy_half", "proxy_stall", "proxy_double",
        "proxy_shuffle", "proxy_empty", "sent", "done", "dead", "runs", "reruns", "overlaps",
        "entered", "published", "published_again", "moved", "moved_again", "adopted",
        "violations", "seed",
    ),
    "rabbitmq": (
        "part", "engine", "seconds", "broker_kills", "server_kills", "kills", "proxy_confirm",
        "proxy_ack", "proxy_delivery", "proxy_cut", "proxy_frame", "proxy_stall", "jobs",
        "operations", "confirmed", "entered", "published", "published_again", "taken", "expired",
        "by_handler", "lost", "resurrected", "stale_settles", "violations", "seed",
    ),
    "dashboard": (
        "part", "engine", "seconds", "pages", "heap_mb", "page_mb", "server_kills", "back_ms_p50",
        "back_ms_max", "own_ms_p50", "own_ms_max", "others_ms_p50", "others_ms_max", "jobs",
        "changed", "left_alone", "violations", "seed",
    ),
    "poison": (
        "engine", "workers", "seconds", "poison", "good", "good_ms_p50_alone",
        "good_ms_p99_alone", "good_ms_p50", "good_ms_p99", "supervisor_mb_early",
        "supervisor_mb_late", "violations", "seed",
    ),
    "simulation": (
        "engine", "seeds", "steps", "seconds", "calls", "operations", "violations", "seed",
    ),
    "state machine": ("engine", "examples", "steps", "seconds", "violations", "seed"),
    "power cuts": (
        "durability", "cuts", "in_checkpoints", "while_opening", "seconds", "answered_calls",
        "cuts_with_losses", "damaged_files", "seed",
    ),
    "writers": (
        "processes", "commits", "wait_ms_p50", "wait_ms_p99", "wait_ms_p99.9", "wait_ms_worst",
        "least_by_one", "most_by_one",
    ),
}  # fmt: skip


def add_options(parser: ArgumentParser) -> None:
    """Add the options that all fault-injection tests have."""
    parser.add_argument(
        "--seconds", type=float, help="duration of the faults [default: by the number of kills]"
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=SystemRandom().randrange(1_000_000),
        help="seed of jobs and faults [default: random]",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the histories in DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--record", action="store_true", help="add the results to docs/torture.md")


def record(heading: str, outcome: dict[str, Any]) -> None:
    """Insert the result of one run at the top of its table."""
    columns = COLUMNS[heading]
    values = [_cell(name, outcome.get(name)) for name in columns]
    row = "| " + " | ".join([_when(), _where(), *values]) + " |"
    text = PAGE.read_text()
    marker = f"<!-- {heading} -->\n"
    assert marker in text, f"{PAGE} has no table for {heading}: the line {marker!r} is missing"
    head = "| " + " | ".join(["date", "machine", *(c.replace("_", " ") for c in columns)]) + " |\n"
    rule = "|" + "---|" * (len(columns) + 2) + "\n"
    before, _, after = text.partition(marker)
    rows = after.removeprefix(head).removeprefix(rule)
    PAGE.write_text(before + marker + head + rule + row + "\n" + rows)


def finish_part(
    part: str, given: Namespace, started: float, figures: dict[str, Any], wrong: list[str]
) -> tuple[dict[str, Any], bool]:
    """Print the result of a part; return it, and whether nothing was wrong."""
    outcome = {
        "part": part,
        "engine": given.engine,
        "seed": given.seed,
        "seconds": round(time.monotonic() - started, 1),
        **figures,
        "violations": len(wrong),
    }
    counts = ", ".join(
        f"{value:,} {name.replace('_', ' ')}"
        for name, value in outcome.items()
        if isinstance(value, int) and name != "seed"
    )
    print(f"{part} on {given.engine}: {counts}", flush=True)
    for each in wrong[:10]:
        print(each, flush=True)
    return outcome, not wrong


def keep_histories(
    histories: Path, name: str, given: Namespace, *, wrong: bool, checked: bool = True
) -> None:
    """Copy the histories if that was asked for or something is wrong, and print where they are.
    `checked` means that `./hf torture check` reads them."""
    if not (given.keep or wrong):
        return
    kept = (given.keep or Path(tempfile.mkdtemp(prefix="holdfast-histories-"))) / name
    shutil.copytree(histories, kept, dirs_exist_ok=True)
    print(f"histories: {kept}" + (f" (./hf torture check {kept})" if checked else ""))


def conclude(kind: str, outcomes: list[tuple[dict[str, Any], bool]], given: Namespace) -> int:
    """Write the results where the options say so; return the exit code."""
    if given.json:
        given.json.write_text(json.dumps([outcome for outcome, _ in outcomes], indent=2) + "\n")
    if given.record:
        for outcome, _ in outcomes:
            record(kind, outcome)
    return 0 if all(clean for _, clean in outcomes) else 1


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}"
    if isinstance(value, int) and name != "seed":
        return f"{value:,}"
    return "-" if value is None else str(value)


def _when() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _where() -> str:
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
