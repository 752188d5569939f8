"""What the docs show runs, what they link to exists, and the engine table is the traits'."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.tables import README, with_table

ROOT = README.parent
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_LONG_RUNNING = ("up", "test", "check", "bench", "torture", "lock")


def blocks(language: str) -> list[object]:
    found: list[object] = []
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text())):
            if match[1] == language:
                name = f"{page.relative_to(ROOT)}-{number}"
                found.append(pytest.param(match[2], id=name))
    return found


@pytest.mark.parametrize("source", blocks("python"))
def test_python_shown_runs(source: str, tmp_path: Path) -> None:
    script = tmp_path / "shown.py"
    script.write_text(source)
    run = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("source", blocks("console"))
def test_commands_shown_run(source: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_URL": "sqlite:///holdfast.db"}
    for line in source.splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[1] in _LONG_RUNNING:
            continue
        assert words[0] == "./hf", f"only ./hf commands are shown: {line}"
        run = subprocess.run(
            [str(Path(sys.executable).with_name("holdfast")), *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        target
        for target in _LINK.findall(page.read_text())
        if not (page.parent / target.strip()).exists()
    ]
    assert missing == []


def test_the_engine_table_is_printed_from_the_traits() -> None:
    text = README.read_text()
    assert text == with_table(text), "run: .venv/bin/python -m tests.docs.tables"
