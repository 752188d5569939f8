"""Poison jobs beside good ones on real workers; any size: ./hf torture poison --help"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from holdfast.core.model import Event, EventKind, Failure, FailureKind, Job, Reason, State
from tests.crash.torture.test_engines import run
from torture.poison_app import POISON
from torture.poison_trial import QUEUE, judge_good, judge_memory, judge_poison, judge_promptness


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_poison_harms_no_other_job(tmp_path: Path) -> None:
    given = os.environ.get("HOLDFAST_SEED")
    seed = SystemRandom().randrange(1_000_000) if given is None else int(given)
    jobs = 60
    figures = tmp_path / "figures.json"
    options = ["--jobs", str(jobs), "--calm", "2", "--seed", str(seed), "--json", str(figures)]
    result = run("torture", "poison", *options)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    [outcome] = json.loads(figures.read_text())
    assert (outcome["poison"], outcome["violations"]) == (jobs, 0)
    assert set(outcome["reasons"]) == {"attempts", "crashed", "rejected", "explicit"}


def test_a_good_job_must_be_done_and_not_charged_for_others() -> None:
    assert judge_good(["a"], {"a": job(State.DONE, attempt=1)}) == []
    assert "is lost" in judge_good(["a"], {})[0]
    assert "is waiting" in judge_good(["a"], {"a": job(State.WAITING)})[0]
    assert "charged 2" in judge_good(["a"], {"a": job(State.DONE, attempt=2)})[0]


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        (State.DONE, None, FailureKind.CRASH),
        (State.DEAD, Reason.ATTEMPTS, FailureKind.CRASH),
        (State.DEAD, Reason.CRASHED, FailureKind.ERROR),
        (State.DEAD, Reason.CRASHED, None),
    ],
)
def test_poison_with_an_unexpected_end_is_found(
    state: State, reason: Reason | None, kind: FailureKind | None
) -> None:
    [poison] = [each for each in POISON if each.task == "faulting"]
    right = job(State.DEAD, kind=FailureKind.CRASH, reason=Reason.CRASHED)
    assert judge_poison({"a": poison}, {"a": right}, QUEUE) == []
    assert judge_poison({"a": poison}, {"a": job(state, kind=kind, reason=reason)}, QUEUE)
    assert "is lost" in judge_poison({"a": poison}, {}, QUEUE)[0]


def test_memory_that_grows_is_found() -> None:
    assert judge_memory([30_000, 60_000, 60_000, 60_500] * 1) == []
    assert judge_memory([60_000 + 100 * at for at in range(1_000)])
    assert judge_memory([]) == []


def test_slow_good_jobs_are_found() -> None:
    assert judge_promptness([10.0] * 100, [400.0] * 100) == []
    assert "50%" in judge_promptness([10.0] * 100, [600.0] * 100)[0]
    assert "99%" in judge_promptness([10.0] * 100, [*[10.0] * 98, 5_000.0, 5_000.0])[0]


def job(state: State, kind: FailureKind | None = None, **facts: Any) -> Job:
    failure = Event(at=1, kind=EventKind.BURIED, failure=Failure(kind=kind)) if kind else None
    events = (failure,) if failure else ()
    return Job(id="a", task="t", queue="default", state=state, events=events, **facts)
