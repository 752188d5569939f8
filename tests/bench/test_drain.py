"""The benchmark `drain` measures every contestant and names missing ones; no test checks speed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench import drain
from bench.drain import Options, Sizes, run
from bench.peers.catalogue import HOLDFAST, PEERS
from bench.peers.install import SOURCES, NotInstalled
from bench.peers.run import Costs, Drain
from bench.processes import busy_loops, cpu_ns
from bench.report import Report
from bench.stores import EngineName
from holdfast.worker import processes
from tests.wait import wait_until

# Each test starts a dozen workers and waits until they stop.
pytestmark = pytest.mark.timeout(600)

TINY = Sizes(jobs=10, repeats=1, delays=2, idle_s=0.1, commands=3, lines=20)
DRAIN_ALONE = Options(engines=("sqlite",), sizes=replace(TINY, delays=0), alone=False)
NAMES = ("holdfast", "holdfast, --processes 0", "holdfast, retention 0")
ALONE = {"idle worker", "commands, compared with bare spawns", "enqueue from a pipe of 20 lines"}


async def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the worker of one process on SQLite. Another test drains with the default one, and the
    benchmark `rabbitmq` on PostgreSQL. Nothing else computes meanwhile: another test shows that
    busy loops do."""
    assert [each.name for each in HOLDFAST if each.engine == "sqlite"] == [*NAMES]
    assert [each.name for each in HOLDFAST if each.engine == "postgres"] == [*NAMES]
    name = NAMES[1]
    monkeypatch.setattr(drain, "HOLDFAST", HOLDFAST[1:2])
    monkeypatch.setattr(drain, "BUSY_LOOPS", 0)
    report = await run(Options(engines=("sqlite",), sizes=TINY, peers=False), lambda _: None)
    assert not report.notes
    # Ten jobs may all have run before the first look at the costs.
    assert {result.metric for result in report.results} - {f"{name}, CPU"} == {
        name,
        f"{name} (commit synced)",
        *(f"{name}, p{part}" for part in (50, 95, 99)),
        *(f"{name}, busy, p{part}" for part in (50, 95)),
        *ALONE,
    }
    assert {result.engine for result in report.results} == {"sqlite"}
    assert all(result.value > 0 for result in report.results)


async def test_busy_loops_compute_until_the_end_of_the_block() -> None:
    before = set(processes.descendants(os.getpid()))
    async with busy_loops(2):
        loops = set(processes.descendants(os.getpid())) - before
        assert len(loops) == 2
        used = {pid: cpu_ns(pid) for pid in loops}
        wait_until(lambda: all(cpu_ns(pid) > used[pid] for pid in loops))
    assert not loops & set(processes.descendants(os.getpid()))


async def test_notes_name_missing_peers_and_a_failed_contestant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_log: Callable[[str], None]) -> None:
        raise NotInstalled("no index is reachable")

    broken = replace(HOLDFAST[0], name="broken", program="not_there")
    monkeypatch.setattr(drain, "install_python", refuse)
    monkeypatch.setattr(drain, "HOLDFAST", (broken, HOLDFAST[0]))
    report = await run(DRAIN_ALONE, lambda _: None)
    missing, failed = report.notes
    assert "no index is reachable" in missing
    assert all(contestant.name in missing for contestant in PEERS if contestant.engine == "sqlite")
    assert "broken" in failed
    assert "not_there" in failed
    names = {result.metric for result in report.results}
    assert NAMES[0] in names
    assert "broken" not in names


def test_goals_apply_only_to_the_default_worker() -> None:
    peers = [contestant for contestant in PEERS if contestant.engine == "postgres"]
    ours = [contestant for contestant in HOLDFAST if contestant.engine == "postgres"]
    results = {contestant.name: _turn(rate=100) for contestant in (*ours, *peers)}
    results["pg-boss, 4 × 2,000"] = _turn(rate=400)
    report = Report("drain")
    drain.compare(report, "postgres", [*ours, *peers], results)
    goals = {result.metric: result.goal for result in report.results if result.goal is not None}
    assert goals == {
        "holdfast, compared with pgqueuer, batch 100": 4.0,
        "holdfast, compared with graphile-worker, local queue 4,000": 1.0,
        "holdfast, compared with pg-boss, 4 × 2,000": 1.3,
    }
    ratios = {result.metric: result.ratio for result in report.results}
    assert ratios["holdfast, compared with pg-boss, 4 × 2,000"] == 0.25
    assert len(ratios) == len(ours) * len(peers)


def test_costs_of_a_job_have_bounds_for_the_default_worker_on_postgresql() -> None:
    known = Costs(workers_us=30.0, server_us=20.0, log_bytes=600.0, syncs=0.01)
    turns: list[list[Costs | None]] = [[known, None], [known, known], [None]]
    results = {
        name: drain.Results(
            drains=[Drain(jobs=9, enqueue_s=1, start_up_s=1, drain_s=1, costs=each) for each in of]
        )
        for name, of in zip(NAMES, turns, strict=True)
    }
    bounds: dict[EngineName, dict[str, float]] = {
        "postgres": {"CPU": 0.64, "log": 1.167},
        "sqlite": {},
    }
    for engine, goals in bounds.items():
        ours = [contestant for contestant in HOLDFAST if contestant.engine == engine]
        report = Report("drain")
        report.section("")
        drain.add_costs(report, engine, ours, results)
        found = {each.metric.removeprefix("holdfast, "): each for each in report.results}
        assert {name: each.ratio for name, each in found.items() if each.goal} == goals
        assert found["CPU"].value == 50
        assert found["syncs of the log"].value == 10
        assert found["--processes 0, CPU of the server"].value == 20
        assert not any("retention" in name for name in found)


def test_delays_beside_busy_loops_are_compared_with_the_best_peer() -> None:
    peers = [contestant for contestant in PEERS if contestant.engine == "postgres"][:2]
    peers.append(replace(peers[0], name="memory", syncs=False))
    ours = [contestant for contestant in HOLDFAST if contestant.engine == "postgres"]
    results = {
        contestant.name: drain.Results(busy_delays_ms=[place * 10.0])
        for place, contestant in enumerate((peers[2], *peers[:2], *ours))
    }
    report = Report("drain")
    drain.compare_busy(report, "postgres", [*ours, *peers], results, rate=100)
    found = {result.metric: result for result in report.results}
    p95 = found["holdfast, busy, p95"]
    assert (p95.value, p95.reference, p95.goal) == (30.0, 10.0, drain.BUSY_GOAL)
    assert p95.met is False
    assert found["holdfast, --processes 0, busy, p95"].goal is None
    assert found["holdfast, busy, p50"].reference is None
    assert len(found) == 2 * len(results)


def test_pins_are_exact_and_name_no_host() -> None:
    lines = (SOURCES / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z\[\],]+==[0-9.]+", line) for line in lines), lines
    package = json.loads((SOURCES / "package.json").read_text())
    pins = package["dependencies"].values()
    assert all(re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", pin) for pin in pins)
    assert not list(SOURCES.glob("*lock*"))


def _turn(*, rate: int) -> drain.Results:
    turn = Drain(jobs=rate, enqueue_s=1.0, start_up_s=0.1, drain_s=1.0)
    return drain.Results(drains=[turn])
