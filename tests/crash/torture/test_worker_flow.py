"""The judge of limits, groups and parents accepts correct runs and finds violations."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.conformance.chaos.verify import JobRun
from holdfast.core.model import Event, EventKind, Failure, FailureKind, Job, NewJob
from torture.worker_flow import CONCURRENCY_MAX, judge_flow

TOO_MANY = [f"j{number}" for number in range(CONCURRENCY_MAX + 1)]


def test_jobs_in_order_pass() -> None:
    enqueued = [made("a", group="g"), made("b", group="g"), made("c", after=("a", "b"))]
    runs = [run("a", 0, 5), run("a", 6, 9, attempt=2), run("b", 10, 20), run("c", 21, 22)]
    assert judged(runs, enqueued) == []
    assert judged([run(id_, 0, 9) for id_ in TOO_MANY[1:]], [made(id_) for id_ in TOO_MANY]) == []


@pytest.mark.parametrize(
    ("runs", "enqueued", "text"),
    [
        ([("a", 0, 9), ("b", 8, 20)], [{"group": "g"}, {"group": "g"}], "which came first"),
        ([("b", 0, 9), ("a", 10, 20)], [{"group": "g"}, {"group": "g"}], "which came first"),
        ([("a", 0, 9), ("b", 8, 20)], [{}, {"after": ("a",)}], "its parent a"),
    ],
)
def test_jobs_out_of_order_are_found(
    runs: list[tuple[str, int, int]], enqueued: list[dict[str, Any]], text: str
) -> None:
    jobs = [made(id_, **fields) for id_, fields in zip("ab", enqueued, strict=True)]
    [found] = judged([run(*each) for each in runs], jobs)
    assert text in found


def test_too_many_concurrent_jobs_are_found() -> None:
    [found] = judged([run(id_, 0, 9) for id_ in TOO_MANY], [made(id_) for id_ in TOO_MANY])
    assert found.startswith(f"{len(TOO_MANY)} jobs of t ran at once")


def test_a_run_that_lost_its_lease_blocks_no_other_job() -> None:
    enqueued = [made("a", group="g"), made("b", group="g", after=("a",))]
    failure = Failure(kind=FailureKind.OVERDUE)
    lapsed = Event(at=1, kind=EventKind.RETRIED, attempt=1, failure=failure)
    runs = [run("a", 0, 50), run("a", 6, 9, attempt=2), run("b", 10, 20)]
    assert judged(runs, enqueued, a=(lapsed,)) == []
    assert len(judged(runs, enqueued)) == 2


def judged(runs: list[JobRun], enqueued: list[NewJob], **events: tuple[Event, ...]) -> list[str]:
    store = {
        job.id: Job(id=job.id, task="t", queue="q", seq=seq, events=events.get(job.id, ()))
        for seq, job in enumerate(enqueued)
    }
    return judge_flow(runs, {job.id: job for job in enqueued}, store)


def made(id_: str, **fields: Any) -> NewJob:
    return NewJob(id=id_, task="t", tenant="t", **fields)


def run(id_: str, begin: int, end: int, attempt: int = 1) -> JobRun:
    return JobRun(id_, attempt, attempt, "sync", (), begin, end)
