"""A drain measures everybody who is there and says who is not; how fast it was is not asked."""

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

# Each starts a dozen workers and waits for their graceful ends.
pytestmark = pytest.mark.timeout(600)

TINY = Sizes(jobs=40, repeats=1, delays=5, idle_s=0.1, commands=5, lines=20)
DRAIN_ALONE = Options(engines=("sqlite",), sizes=replace(TINY, delays=0), alone=False)
NAMES = ("holdfast", "holdfast, --processes 0")
ALONE = {"idle worker", "commands beside bare spawns", "enqueue from a pipe of 20 lines"}


@pytest.mark.parametrize(
    ("engine", "names", "alone"), [("sqlite", NAMES, ALONE), ("postgres", NAMES[:1], set())]
)
async def test_everything_is_measured(
    engine: EngineName, names: tuple[str, ...], alone: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs without processes, and what only Holdfast is asked for, is the same on either
    engine: one has to do."""
    takes_part = [who for who in HOLDFAST if who.engine == engine]
    assert tuple(who.name for who in takes_part) == NAMES
    monkeypatch.setattr(drain, "HOLDFAST", tuple(takes_part[: len(names)]))
    options = Options(engines=(engine,), sizes=TINY, peers=False, alone=bool(alone))
    report = await run(options, lambda _: None)
    assert not report.notes
    assert {result.metric for result in report.results} == {
        *names,
        *(f"{name} (commit synced)" for name in names),
        *(f"{name}, p{part}" for name in names for part in (50, 95, 99)),
        *alone,
    }
    assert {result.engine for result in report.results} == {engine}
    assert all(result.value > 0 for result in report.results)


async def test_peers_that_cannot_be_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tell: Callable[[str], None]) -> None:
        raise NotInstalled("no index is reachable")

    monkeypatch.setattr(drain, "install_python", refuse)
    monkeypatch.setattr(drain, "HOLDFAST", HOLDFAST[:1])
    report = await run(DRAIN_ALONE, lambda _: None)
    [note] = report.notes
    assert "no index is reachable" in note
    assert all(who.name in note for who in PEERS if who.engine == "sqlite")
    assert "holdfast" in {result.metric for result in report.results}


async def test_a_contestant_that_fails_is_named_and_the_others_are_measured(
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


def test_goals_are_set_beside_the_peers_and_only_for_the_default() -> None:
    peers = [who for who in PEERS if who.engine == "postgres"]
    ours = [who for who in HOLDFAST if who.engine == "postgres"]
    results = {who.name: _turn(rate=100) for who in (*ours, *peers)}
    results["pg-boss, 4 × 2,000"] = _turn(rate=400)
    report = Report("drain")
    drain.compare(report, "postgres", [*ours, *peers], results)
    goals = {result.metric: result.goal for result in report.results if result.goal is not None}
    assert goals == {
        "holdfast, beside pgqueuer, batch 100": 1.5,
        "holdfast, beside pg-boss, 4 × 2,000": 1.0,
    }
    ratios = {result.metric: result.ratio for result in report.results}
    assert ratios["holdfast, beside pg-boss, 4 × 2,000"] == 0.25
    assert len(ratios) == len(ours) * len(peers)


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
