"""Runs the command line inside the test process, in a folder and an environment of its own."""

import os
from pathlib import Path

import pytest

from holdfast.cli import run
from tests.cli.program import Cli, Ran


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Ran:
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call
