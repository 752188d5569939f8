"""The judge of limits, groups and parents under blows: what is sound passes, faults are found."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.chaos.judge import Run
from holdfast.core.model import Event, EventKind, Failure, FailureKind, Job, NewJob
from torture.worker_flow import TOGETHER_MAX, judge_flow

CROWD = [f"j{number}" for number in range(TOGETHER_MAX + 1)]


def test_jobs_in_order_are_sound() -> None:
    told = [made("a", group="g"), made("b", group="g"), made("c", after=("a", "b"))]
    runs = [run("a", 0, 5), run("a", 6, 9, attempt=2), run("b", 10, 20), run("c", 21, 22)]
    assert judged(runs, told) == []
    assert judged([run(id_, 0, 9) for id_ in CROWD[1:]], [made(id_) for id_ in CROWD]) == []


@pytest.mark.parametrize(
    ("runs", "told", "text"),
    [
        ([("a", 0, 9), ("b", 8, 20)], [{"group": "g"}, {"group": "g"}], "which came first"),
        ([("b", 0, 9), ("a", 10, 20)], [{"group": "g"}, {"group": "g"}], "which came first"),
        ([("a", 0, 9), ("b", 8, 20)], [{}, {"after": ("a",)}], "its parent a"),
    ],
)
def test_what_is_out_of_order_is_found(
    runs: list[tuple[str, int, int]], told: list[dict[str, Any]], text: str
) -> None:
    jobs = [made(id_, **said) for id_, said in zip("ab", told, strict=True)]
    [found] = judged([run(*each) for each in runs], jobs)
    assert text in found


def test_a_crowd_is_found() -> None:
    [found] = judged([run(id_, 0, 9) for id_ in CROWD], [made(id_) for id_ in CROWD])
    assert found.startswith(f"{len(CROWD)} jobs of t ran at once")


def test_whoever_lost_its_lease_holds_up_nobody() -> None:
    told = [made("a", group="g"), made("b", group="g", after=("a",))]
    failure = Failure(kind=FailureKind.OVERDUE)
    lapsed = Event(at=1, kind=EventKind.RETRIED, attempt=1, failure=failure)
    runs = [run("a", 0, 50), run("a", 6, 9, attempt=2), run("b", 10, 20)]
    assert judged(runs, told, a=(lapsed,)) == []
    assert len(judged(runs, told)) == 2


def judged(runs: list[Run], told: list[NewJob], **events: tuple[Event, ...]) -> list[str]:
    store = {
        job.id: Job(id=job.id, task="t", queue="q", seq=seq, events=events.get(job.id, ()))
        for seq, job in enumerate(told)
    }
    return judge_flow(runs, {job.id: job for job in told}, store)


def made(id_: str, **said: Any) -> NewJob:
    return NewJob(id=id_, task="t", tenant="t", **said)


def run(id_: str, begin: int, end: int, attempt: int = 1) -> Run:
    return Run(id_, attempt, attempt, "sync", (), begin, end)
