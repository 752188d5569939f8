"""Runs the command line, inside this process or as a program."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
    ran = subprocess.run(
        command(*line, name=name),
        input=given,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())
