"""Check the recorded histories of a run: every *.jsonl file in a directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.testing.checker import check
from holdfast.testing.history import read_journals


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hf torture check", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--show", type=int, default=10, help="violations with their lines")
    given = parser.parse_args(argv)
    lines = read_journals(given.directory)
    if not lines:
        parser.error(f"no history in {given.directory}")
    findings = check(lines)
    print(findings)
    for violation in findings.violations[: given.show]:
        print(violation)
    if not findings.clean:
        print(findings.brief)
    return 0 if findings.clean else 1
