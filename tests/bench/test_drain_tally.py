"""Counters of handlers are added up over all processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import tally
from bench.peers.program import Arguments, batches, steadily
from bench.peers.tally import Tally
from bench.processes import ROOT

RUNS_TWO = "from bench.peers.tally import Tally; t = Tally(); t.ran(); t.ran(); t.started('0' * 20)"


def test_counts_are_zero_before_the_first_job(tmp_path: Path) -> None:
    assert tally.count(tmp_path) == (0, 0)
    assert tally.delays_ms(tmp_path) == []


def test_all_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tally.DIRECTORY, str(tmp_path))
    mine = Tally()
    mine.ran()
    _, first = tally.count(tmp_path)
    mine.started(tally.stamped())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", RUNS_TWO], env=environment, check=True)
    assert tally.count(tmp_path) == (3, first)
    short, long = tally.delays_ms(tmp_path)
    assert 0 <= short < long


def test_payloads_have_the_same_size() -> None:
    assert len(tally.payload()) == len(tally.stamped()) == tally.PAYLOAD_BYTES


@pytest.mark.parametrize("jobs", [0, 1, 999, 1_000, 1_001, 2_500])
def test_batches_add_up(jobs: int) -> None:
    sizes = list(batches(jobs))
    assert sum(sizes) == jobs
    assert all(0 < size <= 1_000 for size in sizes)


def test_steadily_yields_once_per_job() -> None:
    assert len(list(steadily(Arguments(place="", jobs=7, rate=1e6)))) == 7
