"""`holdfast chaos` as users run it, at a small size."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from holdfast.cli import run
from holdfast.conformance.chaos.run_log import HOME
from holdfast.worker import processes
from tests.cli.program import Ran, command, environment, run_program
from tests.sources import ROOT
from tests.wait import wait_until

# `./hf torture workers` runs any size, also on PostgreSQL.
SMALLEST = ("--seconds", "1", "--kills", "1", "--workers", "1")


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_nothing_is_lost_while_a_database_restarts(tmp_path: Path) -> None:
    """The next tests run on SQLite, where `torture workers` also kills every role: see
    tests/crash/torture/test_workers.py."""
    found = judged(run_program(tmp_path, "chaos", *SMALLEST, "--postgres", *seed(), "--json"))
    assert (found["lost"], found["lost_ids"], found["violations"]) == (0, [], [])
    assert (found["kills"], found["freezes"], found["restarts"]) == (1, 1, 1)
    assert found["jobs"] == found["done"] + found["dead"] > 0
    assert f"--seed={found['seed']}" in found["again"]
    # Where it was told to run, nothing is made: its store was a private one.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torture
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("rabbitmq_programs")
def test_nothing_is_lost_while_a_broker_restarts(tmp_path: Path) -> None:
    found = judged(run_program(tmp_path, "chaos", *SMALLEST, "--rabbitmq", *seed(), "--json"))
    assert (found["lost"], found["lost_ids"], found["violations"]) == (0, [], [])
    assert (found["kills"], found["freezes"]) == (1, 1)
    assert (found["restarts"], found["broker_restarts"]) == (0, 1)
    assert found["jobs"] == found["done"] + found["dead"] > 0
    assert "--rabbitmq" in found["again"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_in_a_users_own_store(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    own = ("--url", url)
    assert run(["enqueue", "--id", "mine", *own, "--", "true"]) == 0
    before = stands(tmp_path, url)
    assert run(["chaos", *SMALLEST, *own]) == 2
    assert "has other jobs" in capfd.readouterr().err
    assert run(["chaos", *SMALLEST, *own, "--queue", "default"]) == 2
    assert "queue default exists" in capfd.readouterr().err
    ran = run_program(tmp_path, "chaos", *SMALLEST, *own, "--queue", "trial", *seed())
    assert ran.code == 0, ran
    assert re.fullmatch(r"0 lost, \d+ re-runs?, recovery p99 \d+\.\d s\n", ran.out), ran
    # Nothing of it is left, and what was there is as it was.
    assert stands(tmp_path, url) == before


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_a_store_that_loses_jobs_is_reported(tmp_path: Path) -> None:
    spoilt = [
        sys.executable,
        "-m",
        "tests.crash.chaos.losing_store",
        "chaos",
        *SMALLEST,
        *seed(),
        "--json",
    ]
    ran = subprocess.run(
        spoilt, cwd=ROOT, env=environment(TMPDIR=str(tmp_path)), capture_output=True, check=False
    )
    assert ran.returncode == 1, ran
    found = json.loads(ran.stdout)
    assert found["lost"] == len(found["lost_ids"]) > 0
    assert all("is lost" in each for each in found["violations"]), found


@pytest.mark.torture
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    line = command("chaos", "--seconds", "600", "--kills", "0", "--workers", "1", "--url", url)
    chaos = subprocess.Popen(
        line, cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)), stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: bool(list(tmp_path.glob("holdfast-chaos-*/runs.jsonl"))))
        [home] = [path.parent for path in tmp_path.glob("holdfast-chaos-*/runs.jsonl")]
        chaos.send_signal(number)
        _, output = chaos.communicate(timeout=30)
    finally:
        chaos.kill()
        chaos.wait()
    marker = {HOME.encode(): str(home).encode()}
    if number is signal.SIGINT:
        assert (chaos.returncode, list(processes.marked(marker))) == (130, [])
        assert b"nothing was checked" in output
        assert not home.exists()
        assert stands(tmp_path, url) == ({"default": 0}, [])
    # A launcher drains and ends when whoever started it is gone.
    wait_until(lambda: not list(processes.marked(marker)))


def test_a_frozen_process_continues_when_chaos_is_killed(tmp_path: Path) -> None:
    program = """
import os, random, signal, subprocess, sys, time
from holdfast.conformance.chaos.process_tree import ProcessTree
from holdfast.conformance.chaos.faults import FaultInjector
victim = subprocess.Popen(["sleep", "60"], start_new_session=True)
class LaunchedWorkers:
    def tree(self):
        return ProcessTree([], [victim.pid], [victim.pid], [], [])
rng = random.Random(1)
injector = FaultInjector(LaunchedWorkers(), rng, lease_ms=10, scale=0.0, one_writer=False)
assert injector.inject("freeze", early=False)
print(victim.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    # To a file: what it leaves behind would hold a pipe open.
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=False)
    victim = int((tmp_path / "out").read_text())
    try:
        # A stop is heard only when the victim has its turn; then it lasts two seconds.
        wait_until(lambda: state(victim) == "T")
        wait_until(lambda: state(victim) == "S")
    finally:
        os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize(
    "line",
    [("--seconds", "0"), ("--workers", "0"), ("--kills", "-1"), ("--postgres",), ("--rabbitmq",)],
)
def test_invalid_options_are_refused(line: tuple[str, ...], tmp_path: Path) -> None:
    code = run(["chaos", *line, "--url", f"sqlite:///{tmp_path}/work.db"])
    assert (code, list(tmp_path.iterdir())) == (2, [])


def test_a_store_within_one_process_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["chaos", "--url", "memory:"]) == 2
    assert "workers are separate processes" in capfd.readouterr().err


def judged(ran: Ran) -> dict[str, Any]:
    print(ran.out)
    found: dict[str, Any] = ran.json
    return found


def stands(folder: Path, url: str) -> tuple[dict[str, int], list[Any]]:
    """The queues with how many jobs wait in each, and the workers."""
    status = run_program(folder, "status", "--json", "--url", url).json
    return {each["name"]: each["ready"] for each in status["queues"]}, status["workers"]


def state(pid: int) -> str:
    stat = processes.stat(pid)
    return stat.state if stat else ""


def seed() -> tuple[str, str]:
    given = os.environ.get("HOLDFAST_SEED")
    return "--seed", given or str(SystemRandom().randrange(1_000_000))
