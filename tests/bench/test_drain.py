"""The benchmark `drain` measures every contestant and names missing ones; no test checks speed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench import drain
from bench.drain import Options, Sizes, run
from bench.peers.catalogue import HOLDFAST, PEERS
from bench.peers.install import SOURCES, NotInstalled
from bench.peers.run import Drain
from bench.report import Report
from bench.stores import EngineName

# Each test starts a dozen workers and waits until they stop.
pytestmark = pytest.mark.timeout(600)

TINY = Sizes(jobs=40, repeats=1, delays=5, idle_s=0.1, commands=5, lines=20)
DRAIN_ALONE = Options(engines=("sqlite",), sizes=replace(TINY, delays=0), alone=False)
NAMES = ("holdfast", "holdfast, --processes 0")
ALONE = {"idle worker", "commands, compared with bare spawns", "enqueue from a pipe of 20 lines"}


@pytest.mark.parametrize(
    ("engine", "names", "alone"), [("sqlite", NAMES, ALONE), ("postgres", NAMES[:1], set())]
)
async def test_everything_is_measured(
    engine: EngineName, names: tuple[str, ...], alone: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--processes 0` and the measurements without peers are the same on both engines, so they are
    tested on one."""
    contestants = [contestant for contestant in HOLDFAST if contestant.engine == engine]
    assert tuple(contestant.name for contestant in contestants) == NAMES
    monkeypatch.setattr(drain, "HOLDFAST", tuple(contestants[: len(names)]))
    monkeypatch.setattr(drain, "BUSY_LOOPS", 1)
    options = Options(engines=(engine,), sizes=TINY, peers=False, alone=bool(alone))
    report = await run(options, lambda _: None)
    assert not report.notes
    assert {result.metric for result in report.results} == {
        *names,
        *(f"{name} (commit synced)" for name in names),
        *(f"{name}, p{part}" for name in names for part in (50, 95, 99)),
        *(f"{name}, busy, p{part}" for name in names for part in (50, 95)),
        *alone,
    }
    assert {result.engine for result in report.results} == {engine}
    assert all(result.value > 0 for result in report.results)


async def test_note_names_peers_that_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_log: Callable[[str], None]) -> None:
        raise NotInstalled("no index is reachable")

    monkeypatch.setattr(drain, "install_python", refuse)
    monkeypatch.setattr(drain, "HOLDFAST", HOLDFAST[:1])
    report = await run(DRAIN_ALONE, lambda _: None)
    [note] = report.notes
    assert "no index is reachable" in note
    assert all(contestant.name in note for contestant in PEERS if contestant.engine == "sqlite")
    assert "holdfast" in {result.metric for result in report.results}


async def test_note_names_a_failed_contestant_and_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = replace(HOLDFAST[0], name="broken", program="not_there")
    monkeypatch.setattr(drain, "HOLDFAST", (broken, HOLDFAST[0]))
    report = await run(replace(DRAIN_ALONE, peers=False), lambda _: None)
    [note] = report.notes
    assert "broken" in note
    assert "not_there" in note
    names = {result.metric for result in report.results}
    assert "holdfast" in names
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
        "holdfast, compared with pgqueuer, batch 100": 1.5,
        "holdfast, compared with pg-boss, 4 × 2,000": 1.0,
    }
    ratios = {result.metric: result.ratio for result in report.results}
    assert ratios["holdfast, compared with pg-boss, 4 × 2,000"] == 0.25
    assert len(ratios) == len(ours) * len(peers)


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
