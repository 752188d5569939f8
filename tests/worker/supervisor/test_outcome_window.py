"""Recent results of a worker: streaks, rates, and a failing task apart from a failing worker."""

import pytest

from holdfast.worker.supervisor import health
from holdfast.worker.supervisor.health import OutcomeWindow


def test_a_new_worker_has_no_failures() -> None:
    fresh = OutcomeWindow()
    assert (fresh.done, fresh.failed) == (0, 0)
    assert (fresh.consecutive_failures, fresh.failure_rate) == (0, 0.0)


def test_a_success_ends_a_streak() -> None:
    mine = OutcomeWindow()
    for task in "abc":
        mine.failed_at(task)
    assert mine.consecutive_failures == 3
    mine.succeeded("a")
    assert (mine.consecutive_failures, mine.done, mine.failed) == (0, 1, 3)
    mine.failed_at("a")
    assert mine.consecutive_failures == 1


def test_one_broken_task_is_not_a_broken_worker() -> None:
    mine = OutcomeWindow()
    for _ in range(40):
        mine.failed_at("a")
    assert mine.consecutive_failures == 9
    assert 0.3 <= mine.failure_rate < 0.7
    mine.failed_at("b")
    assert mine.consecutive_failures == 41
    assert mine.failure_rate == 1.0


def test_the_rate_needs_some_samples() -> None:
    mine = OutcomeWindow()
    for number in range(9):
        mine.failed_at(f"t{number}")
    assert mine.failure_rate == 0.0
    mine.failed_at("t9")
    assert mine.failure_rate == 1.0


def test_a_task_with_many_jobs_does_not_hide_another() -> None:
    mine = OutcomeWindow()
    for _ in range(40):
        mine.succeeded("busy")
    for _ in range(10):
        mine.failed_at("broken")
    assert mine.failure_rate == 0.5


def test_old_results_do_not_count() -> None:
    mine = OutcomeWindow()
    for task in "ab" * 10:
        mine.failed_at(task)
    for task in "ab" * 25:
        mine.succeeded(task)
    assert mine.failure_rate == 0.0


def test_after_a_pause_it_tries_again_with_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(health, "monotonic", lambda: now)
    mine = OutcomeWindow()
    for task in "ab" * 10:
        mine.failed_at(task)
    mine.recover()
    assert (mine.consecutive_failures, mine.failure_rate) == (20, 1.0)
    now += 31
    mine.recover()
    assert (mine.consecutive_failures, mine.failure_rate) == (9, 0.0)
    mine.failed_at("a")
    assert mine.consecutive_failures == 10
    mine.recover()
    assert mine.consecutive_failures == 10
    now += 31
    mine.recover()
    mine.succeeded("a")
    assert mine.consecutive_failures == 0


def test_failing_tasks_that_never_worked_are_not_the_workers_fault() -> None:
    mine = OutcomeWindow()
    mine.succeeded("good")
    for task in ("poison", "venom", "bane") * 20:
        mine.failed_at(task)
    assert mine.consecutive_failures == 9
    assert 0.3 <= mine.failure_rate < 0.7


def test_failing_tasks_that_worked_before_are_the_workers_fault() -> None:
    mine = OutcomeWindow()
    for task in "ab":
        mine.succeeded(task)
    for task in "ab" * 30:
        mine.failed_at(task)
    assert (mine.consecutive_failures, mine.failure_rate) == (60, 1.0)


def test_each_pause_in_vain_makes_the_next_one_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(health, "monotonic", lambda: now)
    mine = OutcomeWindow()
    rests = []
    for _ in range(7):
        for task in "ab" * 10:
            mine.failed_at(task)
        began = now
        while mine.consecutive_failures > 9:
            now += 0.5
            mine.recover()
        rests.append(now - began)
    assert rests == [1.5, 2.5, 4.5, 8.5, 16.5, 30.5, 30.5]
    mine.succeeded("a")
    mine.succeeded("b")
    for task in "ab" * 10:
        mine.failed_at(task)
    now += 1.5
    mine.recover()
    assert mine.consecutive_failures == 9
