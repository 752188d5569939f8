"""Simulated runs: random seeds on each engine, repeatability, and seeds that once failed.

More of them: ./hf torture simulate --engine sqlite --seeds 1000
"""

from __future__ import annotations

import os
from random import SystemRandom

import pytest
from msgspec.structs import replace

from holdfast.conformance.history import Entry, HistoryLine
from holdfast.conformance.simulate import FAULTS, FEATURES, draw, simulate
from torture.simulate import WITHOUT, factory

SEEDS = {"memory": 6, "sqlite": 2, "postgres": 1}
# Together they have covered everything that a run can do; others follow if they no longer do.
COVERING_SEEDS = (4, 22, 24, 13)
# Seeds that once failed, with the reason. A change of the scripts changes the run of a seed, so
# each case is also a test in tests/crash/history/test_allowed.py.
REGRESSIONS = [
    ("memory", 28),  # the checker did not know that a replaced job takes the new overrides
    ("memory", 57),  # the checker assumed an order of two concurrent enqueues
    ("sqlite", 5074),  # a deleted job is forgotten, and its enqueue arrived once more
]


@pytest.mark.parametrize("name", SEEDS)
async def test_random_seeds(name: str, request: pytest.FixtureRequest) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    first = SystemRandom().randrange(1_000_000_000) if given is None else int(given)
    print(f"seeds {first} to {first + SEEDS[name] - 1}")
    dsn = request.getfixturevalue("pg_dsn") if name == "postgres" else None
    with factory(name, dsn) as fresh:
        for seed in range(first, first + SEEDS[name]):
            run = await simulate(seed, fresh(), without=WITHOUT[name])
            assert run.findings.clean, run.explain(name)


@pytest.mark.parametrize(("name", "seed"), REGRESSIONS)
async def test_seeds_that_once_failed(name: str, seed: int) -> None:
    with factory(name) as fresh:
        run = await simulate(seed, fresh(), without=WITHOUT[name])
        assert run.findings.clean, run.explain(name)


@pytest.mark.parametrize("name", ["memory", "sqlite"])
async def test_a_seed_repeats_its_run(name: str) -> None:
    with factory(name) as fresh:
        first = await simulate(7, fresh(), steps=200, without=WITHOUT[name])
        again = await simulate(7, fresh(), steps=200, without=WITHOUT[name])
        other = await simulate(8, fresh(), steps=200, without=WITHOUT[name])
    assert [without_tokens(line) for line in first.lines] == [
        without_tokens(line) for line in again.lines
    ]
    assert len(first.lines) > 200
    assert [line.op for line in first.lines] != [line.op for line in other.lines]


async def test_runs_cover_every_fault_and_every_outcome() -> None:
    """Otherwise some faults would never be simulated."""
    calls = ("enqueue", "lease", "renew", "settle", "amend", "overdue")
    wanted = {f"{op} {phase}" for op in calls for phase in ("ok", "fail", "info")}
    wanted |= {"kill note", "freeze note", "jump note", "restart note", "effect note"}
    wanted |= {"new", "duplicate", "refused", "settled", "lost", "renewed"}
    wanted |= {"complete", "retry", "bury", "release", "forward", "cancel", "redrive"}
    wanted |= {"done", "dead", "cancelled"}
    seen: set[str] = set()
    with factory("memory") as fresh:
        for seed in (*COVERING_SEEDS, *range(25)):
            run = await simulate(seed, fresh(), without=WITHOUT["memory"])
            seen |= {f"{line.op} {line.phase}" for line in run.lines}
            seen |= {entry.answer for line in run.lines for entry in line.jobs}
            seen |= {entry.verdict for line in run.lines for entry in line.jobs}
            seen |= {entry.state for line in run.lines for entry in line.jobs}
            if wanted <= seen:
                return
    pytest.fail(f"in no run: {sorted(wanted - seen)}")


def test_seeds_differ_in_their_faults_and_features() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert {name for plan in plans for name in plan.faults} == set(FAULTS)
    assert {name for plan in plans for name in plan.features} == set(FEATURES)
    assert len({(plan.faults, plan.features) for plan in plans}) > 150


def without_tokens(line: HistoryLine) -> HistoryLine:
    return replace(line, jobs=tuple(plain(entry) for entry in line.jobs), facts={})


def plain(entry: Entry) -> Entry:
    return replace(entry, token=None)
