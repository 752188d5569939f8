"""The commands of docs/engines/sqs.md start a worker: on our own endpoint and on the emulators."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast.testing.sqs import KEY, REGION
from tests.cli.program import command, environment, run_program
from tests.sources import ROOT
from tests.wait import wait_until

PAGE = (ROOT / "docs" / "engines" / "sqs.md").read_text()
APP = """
import os
from pathlib import Path
from holdfast import Holdfast

app = Holdfast(os.environ["HOLDFAST_URL"])

@app.task
def note(word: str) -> None:
    Path("said").write_text(word)

@app.task(max_attempts=1)
def fail() -> None:
    raise ValueError("no")
"""
# The emulators have no metrics of CloudWatch: the age of the oldest job stays unknown there.
SERVERS = ("endpoint", "moto", "ministack")


def of_the_guide() -> tuple[str, list[str]]:
    """The URL and the command of its first lines."""
    found = re.search(r"export HOLDFAST_URL='(.*)'\nholdfast (.*)\n", PAGE)
    assert found is not None
    return found[1], found[2].split()


@pytest.mark.parametrize("server", SERVERS)
def test_the_worker_of_the_guide_runs(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    endpoint: str = request.getfixturevalue(server)
    shown, line = of_the_guide()
    url, _, _ = shown.partition("&control=")
    url = url.replace("eu-west-1/shop-", f"{REGION}/t{uuid4().hex[:8]}-")
    url += f"&endpoint={endpoint}&control=sqlite:///{tmp_path}/control.db"
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
    variables = {**keys, "HOLDFAST_URL": url}
    (tmp_path / "app.py").write_text(APP)
    subprocess.run(
        [sys.executable, "-c", "import app; app.note.enqueue('hello'); app.fail.enqueue()"],
        cwd=tmp_path,
        env=environment(**variables),
        check=True,
    )
    log = tmp_path / "log"
    with log.open("wb") as file:
        worker = subprocess.Popen(
            command(*line), cwd=tmp_path, env=environment(**variables), stdout=file, stderr=file
        )
    try:
        wait_until(lambda: (tmp_path / "said").exists() and "died" in log.read_text())
        worker.terminate()
        assert worker.wait(60) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    assert (tmp_path / "said").read_text() == "hello"
    letters = run_program(
        tmp_path, "dlq", "list", "--json",
        HOLDFAST_URL=url, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=KEY,
    )  # fmt: skip
    assert "ValueError: no" in letters.out, letters
