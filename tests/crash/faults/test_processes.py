"""Faults that need several processes: forks, kills and many writers."""

import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.sources import ROOT

WRITERS = 8
"""`./hf torture writers` starts 32."""
COMMITS = 200
"""A race to 40 ends while the scheduler still decides who has run at all: on a busy machine one
process had 3. A race to 200 ends with 104 or more by each."""


def test_a_forked_engine_is_refused_and_the_file_stays_intact(tmp_path: Path) -> None:
    play("tests.crash.faults.forks", "fork_with_an_open_engine", str(tmp_path / "jobs.db"))
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    assert connection.pragma("integrity_check") == "ok"
    assert connection.execute("SELECT count(*) FROM hf_jobs").get == 2
    connection.close()


def test_a_child_of_a_killed_process_blocks_no_other_process(tmp_path: Path) -> None:
    play("tests.crash.faults.forks", "kill_a_parent_in_a_transaction", str(tmp_path / "jobs.db"))


@pytest.mark.torture
def test_a_kill_at_any_point_of_a_migration(tmp_path: Path) -> None:
    print(play("tests.crash.faults.forks", "kill_while_opening", str(tmp_path)))


@pytest.mark.torture
def test_no_writer_starves() -> None:
    """When the first of many has made its commits, each of the others has made a tenth of that."""
    # How long they wait is the machine's business here; `./hf torture writers` bounds it.
    bounds = ["--commits", str(COMMITS), "--wait-ms-max", "inf"]
    # On a disk: in memory the first has made all of its commits before the last has started.
    where = ["--directory", "/var/tmp"]
    print(play("torture.writers", "--processes", str(WRITERS), *bounds, *where))


def play(module: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
