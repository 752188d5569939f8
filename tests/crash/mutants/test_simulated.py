"""The mutants that the simulator and the checker must catch on the real engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from holdfast.conformance.simulate import MakeEngine, SimulationPlan, SimulationRun, run
from holdfast.core import lifecycle
from holdfast.engines.base import Engine
from holdfast.testing.clock import ManualClock
from tests.crash.mutants import mutants

SEEDS_MAX = 25
FIRST_SEEDS = {
    "CopyThenDelete": 1,
    "DeleteThenCopy": 5,
    "ExpiryIgnoredOnRetry": 1,
    "FollowUpsRegardless": 7,
    "settle_without_token": 9,
}
"""Seeds that have caught the mutant, tried before the others."""
DRAIN_MS_MAX = 60_000
# The mutant, the invariants of which it breaks at least one, and what has to strike or be used.
WRAPPERS: list[tuple[type[mutants.Mutant], set[str], set[str], set[str]]] = [
    (mutants.AckBeforeCommit, {"I1"}, {"restart"}, set()),
    (mutants.PopDelete, {"I1"}, {"crash"}, set()),
    (mutants.TokenReset, {"I4", "I5"}, {"freeze"}, set()),
    (mutants.AttemptCountedAtFailure, {"I6"}, {"crash"}, set()),
    (mutants.CopyThenDelete, {"I7"}, {"restart"}, {"dead_queue"}),
    (mutants.DeleteThenCopy, {"I1"}, {"restart"}, {"dead_queue"}),
    (mutants.ClientClock, {"I4"}, set(), {"renewals"}),
    (mutants.FollowUpsRegardless, {"I11"}, {"freeze"}, {"follow_ups"}),
    (mutants.ExpiryIgnoredOnRetry, {"I8"}, {"freeze"}, {"expiry"}),
    (mutants.CountsApart, {"I18"}, set(), {"limits"}),
    (mutants.FixedWindow, {"I12"}, set(), {"rates"}),
    (mutants.GroupsByWorker, {"I19"}, set(), {"groups"}),
    (mutants.FirstParentOnly, {"I20"}, set(), {"families"}),
    (mutants.SlotsOfTheDead, {"I15", "I21"}, {"crash"}, {"limits"}),
]
GUARDS: list[tuple[Callable[[mutants.Judge], mutants.Judge], set[str]]] = [
    (mutants.settle_without_token, {"I5"}),
    (mutants.reaper_without_guard, {"I3"}),
]
Fresh = Callable[[], MakeEngine]


@pytest.mark.parametrize(
    ("mutant", "rules", "faults", "features"), WRAPPERS, ids=[case[0].__name__ for case in WRAPPERS]
)
async def test_a_mutant_is_caught_and_the_real_engine_is_not(
    fresh_sqlite: Fresh,
    mutant: type[mutants.Mutant],
    rules: set[str],
    faults: set[str],
    features: set[str],
) -> None:
    """The mistake is in the wrapper, so one real engine under it is enough."""
    for seed in seeds(mutant.__name__):
        plan = planned(seed, faults, features)
        caught = await run(plan, spoilt(mutant, fresh_sqlite()))
        if caught.findings.rules & rules:
            assert_clean(await run(plan, fresh_sqlite()))
            return
    pytest.fail(f"not caught by {rules} in {SEEDS_MAX} seeds")


@pytest.mark.parametrize(("spoil", "rules"), GUARDS, ids=[case[0].__name__ for case in GUARDS])
async def test_a_missing_guard_is_caught(
    fresh: Fresh, spoil: Callable[[mutants.Judge], mutants.Judge], rules: set[str]
) -> None:
    """Both engines ask `lifecycle.judge` inside their transaction: the mistake is made there."""
    for seed in seeds(spoil.__name__):
        plan = planned(seed, {"freeze", "delay"}, set())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifecycle, "judge", spoil(lifecycle.judge))
            caught = await run(plan, fresh())
        if caught.findings.rules & rules:
            assert_clean(await run(plan, fresh()))
            return
    pytest.fail(f"not caught by {rules} in {SEEDS_MAX} seeds")


@pytest.mark.parametrize("faults", [{"restart"}, {"crash"}, {"freeze", "delay"}])
async def test_the_wrapper_itself_breaks_nothing(fresh_sqlite: Fresh, faults: set[str]) -> None:
    assert_clean(await run(planned(0, faults, set()), spoilt(mutants.Mutant, fresh_sqlite())))


def seeds(mutant: str) -> list[int]:
    first = FIRST_SEEDS.get(mutant, 0)
    return [first, *(seed for seed in range(SEEDS_MAX) if seed != first)]


def planned(seed: int, faults: set[str], features: set[str]) -> SimulationPlan:
    return SimulationPlan(
        seed=seed,
        steps=300,
        producers=2,
        workers=3,
        reapers=2,
        faults=frozenset(faults),
        features=frozenset(features),
        drain_ms_max=DRAIN_MS_MAX,
    )


def spoilt(mutant: type[mutants.Mutant], make: MakeEngine) -> MakeEngine:
    def spoil(clock: ManualClock) -> Engine:
        return cast(Engine, mutant(make(clock), clock))

    return spoil


def assert_clean(sound: SimulationRun) -> None:
    assert sound.findings.clean, sound.explain("the engine itself")
