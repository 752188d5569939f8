"""Check the recorded histories of a run: all *.jsonl files in a directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.conformance.checker import check
from holdfast.conformance.history import read_journals


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hf torture check", description=__doc__)
    parser.add_argument("directory", type=Path, help="directory of the histories")
    parser.add_argument(
        "--show",
        type=int,
        default=10,
        metavar="N",
        help="violations to print in full [default: 10]",
    )
    given = parser.parse_args(argv)
    lines = read_journals(given.directory)
    if not lines:
        parser.error(f"{given.directory} contains no history (*.jsonl)")
    findings = check(lines)
    print(findings)
    for violation in findings.violations[: given.show]:
        print(violation)
    if not findings.clean:
        print(findings.brief)
    return 0 if findings.clean else 1
