"""Runs the command line as a program."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests import template

# Commands that start processes or run until they are stopped.
_LONG_RUNNING = (
    *(("chaos",), ("demo",), ("distribute",), ("serve",), ("top",), ("up",)),
    *(("fleet", "run"), ("gate", "run"), ("worker", "run"), ("worker", "start")),
)
# Shorter than the time of a test.
_TIMEOUT_S = 150

CODE = "import sys; from holdfast.cli import main; sys.argv[0] = {name!r}; main()"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out)


Cli = Callable[..., Ran]


def command(*line: str, name: str = "holdfast") -> list[str]:
    return [sys.executable, "-c", CODE.format(name=name), *line]


def environment(**more: str) -> dict[str, str]:
    """The environment without the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**kept, **more}


def run_program(
    folder: Path, *line: str, name: str = "holdfast", given: bytes = b"", **variables: str
) -> Ran:
    """Run a command to its end. A short one runs in a fork of the prepared process; where a test is
    about its start, use `run_process`."""
    if any(line[: len(words)] == words for words in _LONG_RUNNING):
        return run_process(folder, *line, name=name, given=given, **variables)
    ran = template.run(
        [template.HOLDFAST, *line],
        folder,
        environment(**variables),
        name=name,
        given=given,
        strict=False,
        timeout_s=_TIMEOUT_S,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def run_process(
    folder: Path, *line: str, name: str = "holdfast", given: bytes = b"", **variables: str
) -> Ran:
    """Run a command to its end, as a fresh Python process."""
    ran = subprocess.run(
        command(*line, name=name),
        input=given,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
