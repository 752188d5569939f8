"""`./hf bench compare`: runs the experiments, prints what they found, and records it."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.compare import page
from bench.compare.experiments import EXPERIMENTS, QUICK, Finding, Sizes, suitable
from bench.compare.page import Observation
from bench.compare.products import PRODUCTS, Product
from bench.compare.stage import Failed, Servers
from bench.peers.install import NODE, PYTHON, NotInstalled, install_node, install_python
from bench.report import record
from holdfast.conformance.private_server import ServiceUnavailable


def main(arguments: list[str]) -> int:
    """Run the chosen experiments; return the exit code: 1 if one contradicts its answer."""
    given = _parser().parse_args(arguments)
    chosen = [
        (name, product)
        for name in given.experiment or EXPERIMENTS
        for product in suitable(name)
        if not given.product or product.name in given.product
    ]
    found, notes = run(chosen, QUICK if given.quick else Sizes())
    if given.record:
        found = page.keep(found)
        write_page()
    console = Console(width=None if sys.stdout.isatty() else 160)
    _print(found, console)
    wrong = page.contradictions(page.read_answers(), found)
    for line in [*notes, *wrong]:
        console.print(line, style="red", markup=False, highlight=False)
    return 1 if wrong else 0


def run(chosen: list[tuple[str, Product]], sizes: Sizes) -> tuple[list[Observation], list[str]]:
    """Run experiments with products; a failure is a note and does not affect the others."""
    found = list[Observation]()
    notes = list[str]()
    missing = _install({product.runs for _, product in chosen}, notes)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    with ExitStack() as stack:
        servers = Servers(stack)
        for name, product in chosen:
            if product.runs in missing:
                continue
            started = time.monotonic()
            try:
                findings: list[Finding] = EXPERIMENTS[name].run(product, servers, sizes)
            except (Failed, ServiceUnavailable, subprocess.SubprocessError) as error:
                notes.append(f"{name}, {product.title}: failed: {error}")
                findings = []
            took = f"{time.monotonic() - started:.0f} s"
            print(f"{name}, {product.title}: {took}", file=sys.stderr, flush=True)
            found += [
                Observation(
                    product=product.name,
                    question=each.question,
                    answer=each.answer,
                    text=each.text,
                    version=_version(product),
                    date=today,
                )
                for each in findings
            ]
    return found, notes


def write_page() -> None:
    """Replace the tables of the page."""
    for name, text in page.tables(page.read_answers(), page.read_observed()).items():
        record(page.PAGE, name, text)


def _install(kinds: set[str], notes: list[str]) -> set[str]:
    """Install the products of these kinds; return the kinds that cannot be installed here."""
    missing = set[str]()
    for kind, install in (("python", install_python), ("node", install_node)):
        if kind not in kinds:
            continue
        try:
            install(lambda text: print(text, file=sys.stderr))
        except NotInstalled as error:
            missing.add(kind)
            notes.append(f"not installed: {kind} ({error})")
    if "node" in kinds - missing:
        for program in (Path(__file__).parent / "programs").glob("*.mjs"):
            shutil.copy(program, NODE)
    return missing


def _version(product: Product) -> str:
    match product.runs:
        case "holdfast":
            return version(product.package)
        case "node":
            text = (NODE / "node_modules" / product.package / "package.json").read_text()
            return str(json.loads(text)["version"])
        case "python":
            code = f"import importlib.metadata as m; print(m.version({product.package!r}))"
            run = subprocess.run(
                [str(PYTHON), "-c", code], capture_output=True, text=True, check=True
            )
            return run.stdout.strip()


def _print(found: list[Observation], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("question", "product", "answer", "observed"):
        table.add_column(name)
    for each in found:
        table.add_row(each.question, each.product, "yes" if each.answer else "no", each.text)
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf bench compare",
        description="Check the answers of docs/comparison.md with experiments.",
    )
    parser.add_argument(
        "--experiment",
        nargs="+",
        choices=list(EXPERIMENTS),
        metavar="NAME",
        help=f"only these: {', '.join(EXPERIMENTS)} [default: all]",
    )
    names = [product.name for product in PRODUCTS if product.store is not None]
    parser.add_argument(
        "--product",
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"only these: {', '.join(names)} [default: all]",
    )
    parser.add_argument("--quick", action="store_true", help="use small sizes and short waits")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"store the findings in {page.OBSERVED.name} and replace the tables of the page",
    )
    return parser
