"""Run moto's own SQS tests, from its source package, against a server in relaxed mode.

The table "moto's tests" in docs/sqs-compatibility.md lists the tests that fail, each with its
reason. The run fails if another test fails, or if one of the table passes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from holdfast.conformance.private_server import ServiceUnavailable
from tests.server.server_process import server_process
from tests.server.sqs.clients.environments import moto_sources, python_of
from tests.services import fresh_database, postgres_server
from tests.sources import ROOT

PAGE = ROOT / "docs" / "sqs-compatibility.md"
SECTION = "## moto's tests\n"
PLUGIN = ROOT / "torture" / "moto_plugin.py"
FILES = ("test_sqs.py", "test_sqs_message_attributes.py", "test_sqs_multiaccount.py")
"""The other files test CloudFormation, Lambda, IAM and moto's own web server."""
ACCOUNTS = ("123456789012", "111111111111")
RUN_S_MAX = 900


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./hf torture moto", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="run only these tests")
    given = parser.parse_args(argv)
    try:
        outcomes = run(given.engine, given.k)
    except ServiceUnavailable as error:
        print(f"moto cannot be installed: {error}")
        return 1
    return report(outcomes, expected(PAGE.read_text()))


def run(engine: str, chosen: str = "") -> dict[str, str]:
    """Run the tests; the outcome of each: passed, skipped, or how it failed. Raises
    ServiceUnavailable."""
    python, sources = python_of("moto"), moto_sources()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = "sqlite:///jobs.db"
        if engine == "postgres":
            url = stack.enter_context(fresh_database(stack.enter_context(postgres_server())))
        flags = ["--sqs", "relaxed", *(f"--namespace={account}" for account in ACCOUNTS)]
        server = stack.enter_context(server_process(folder, *flags, url=url))
        results = folder / "results.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "moto_plugin", f"--junitxml={results}"]
        command += ["-p", "no:cacheprovider", "-k", chosen]
        command += [f"tests/test_sqs/{name}" for name in FILES]
        subprocess.run(
            command,
            cwd=sources,
            env={**os.environ, **_variables(server.url)},
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=RUN_S_MAX,
        )
        return read_results(results.read_text())


def _variables(url: str) -> dict[str, str]:
    return {
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOLDFAST_ADDRESS": urlsplit(url).netloc,
        "MOTO_CALL_RESET_API": "false",
        "PYTHONPATH": str(PLUGIN.parent),
        "TEST_SERVER_MODE": "true",
    }


def read_results(text: str) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        found = [each for each in case if each.tag in ("failure", "error", "skipped")]
        outcome = "passed"
        if found:
            lines = (found[0].get("message") or "").splitlines() or [""]
            outcome = "skipped" if found[0].tag == "skipped" else lines[0][:200]
        outcomes[str(case.get("name"))] = outcome
    return outcomes


def expected(page: str) -> set[str]:
    """The tests that the table of the page lists."""
    section = page.partition(SECTION)[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def report(outcomes: dict[str, str], listed: set[str]) -> int:
    kinds = Counter(o if o in ("passed", "skipped") else "failed" for o in outcomes.values())
    failed = {name for name, o in outcomes.items() if o not in ("passed", "skipped")}
    for name in sorted(failed - listed):
        print(f"failed: {name}: {outcomes[name]}")
    passed = sorted(name for name in listed if outcomes.get(name) == "passed")
    for name in passed:
        print(f"passed, but {PAGE.name} lists it: {name}")
    print(f"{kinds['passed']} passed, {kinds['failed']} failed, {kinds['skipped']} skipped by moto")
    return 1 if passed or failed - listed or not outcomes else 0
