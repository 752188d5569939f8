"""The retry policy, as examples of each rule and as properties of every job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import lifecycle, retry_policy
from holdfast.core.backoff import Backoff
from holdfast.core.model import (
    Failure,
    FailureKind,
    Job,
    NewJob,
    Overrides,
    Queue,
    Reason,
    State,
)
from holdfast.core.verdict import Bury, Complete, Retry, Verdict
from tests.unit.core.strategies import NOW, failures, leased_jobs, queues

QUEUE = Queue(name="q", max_attempts=3, max_crashes=2, backoff=Backoff(first_ms=100, jitter=0.0))
JOB = Job(id="a", task="t", queue="q", state=State.LEASED, token=7, attempt=1, worker="w")
ERROR = Failure(message="no")
CRASH = Failure(kind=FailureKind.CRASH)


def test_success_completes() -> None:
    then = (NewJob(id="b", task="t"),)
    assert retry_policy.after_success(b"r", then) == Complete(b"r", then)


def test_a_failure_is_retried_with_backoff_until_the_attempts_are_used() -> None:
    verdicts_ = [
        retry_policy.after_failure(QUEUE, replace(JOB, attempt=attempt), ERROR, 0.0)
        for attempt in (1, 2, 3, 4)
    ]
    assert verdicts_ == [
        Retry(100, ERROR),
        Retry(200, ERROR),
        Bury(Reason.ATTEMPTS, ERROR),
        Bury(Reason.ATTEMPTS, ERROR),
    ]


def test_zero_attempts_means_unlimited() -> None:
    queue = replace(QUEUE, max_attempts=0)
    verdict = retry_policy.after_failure(queue, replace(JOB, attempt=10**6), ERROR, 0.0)
    assert isinstance(verdict, Retry)
    own = replace(JOB, attempt=9, overrides=Overrides(max_attempts=0))
    assert isinstance(retry_policy.after_failure(QUEUE, own, ERROR, 0.0), Retry)


def test_a_jobs_own_answers_come_before_its_queues() -> None:
    own = Overrides(max_attempts=1, max_crashes=9, backoff=Backoff(first_ms=5, jitter=0.0))
    job = replace(JOB, overrides=own)
    assert retry_policy.after_failure(QUEUE, job, ERROR, 0.0) == Bury(Reason.ATTEMPTS, ERROR)
    longer = replace(job, overrides=replace(own, max_attempts=5))
    assert retry_policy.after_failure(QUEUE, longer, ERROR, 0.0) == Retry(5, ERROR)
    assert retry_policy.crashes_max(QUEUE, job) == 9


def test_crashes_are_bounded_by_themselves() -> None:
    queue = replace(QUEUE, max_attempts=0)
    assert isinstance(retry_policy.after_failure(queue, JOB, CRASH, 0.0), Retry)
    again = replace(JOB, crashes=1)
    assert retry_policy.after_failure(queue, again, CRASH, 0.0) == Bury(Reason.CRASHED, CRASH)
    assert isinstance(retry_policy.after_failure(queue, again, ERROR, 0.0), Retry)


def test_a_cancelled_job_is_not_buried_for_failing() -> None:
    job = replace(JOB, attempt=99, cancel_requested=True)
    assert retry_policy.after_failure(QUEUE, job, CRASH, 0.0) == Retry(0, CRASH)
    verdict = retry_policy.after_overdue(QUEUE, job)
    assert isinstance(verdict, Retry)
    change = lifecycle.apply(job, verdict, QUEUE, NOW)
    assert change is not None
    assert change.job.state is State.CANCELLED


def test_a_dead_letter_is_offered_again_however_often_it_was_tried() -> None:
    letter = replace(JOB, attempt=99, crashes=99, reason=Reason.ATTEMPTS, cancel_requested=True)
    delays = []
    for releases in range(3):
        verdict = retry_policy.after_failure(QUEUE, replace(letter, releases=releases), CRASH, 0.0)
        assert isinstance(verdict, Retry)
        delays.append(verdict.delay_ms)
    assert delays == [100, 200, 400]
    # A dead job is judged by its last attempt: the request that buried it may be repeated.
    dead = replace(letter, state=State.DEAD, cancel_requested=False)
    assert retry_policy.after_failure(QUEUE, dead, ERROR, 0.0) == Bury(Reason.ATTEMPTS, ERROR)


@pytest.mark.parametrize(
    ("fields", "failure", "delay_ms", "verdict"),
    [
        ({}, ERROR, None, Retry(100, ERROR)),
        ({"attempt": 2}, None, None, Retry(200)),
        ({}, ERROR, 7_000, Retry(7_000, ERROR)),
        ({}, None, 0, Retry(0)),
        ({"attempt": 3}, ERROR, 7_000, Bury(Reason.ATTEMPTS, ERROR)),
        (
            {"attempt": 3},
            None,
            None,
            Bury(Reason.ATTEMPTS, Failure(message="requested a retry after attempt 3 of 3")),
        ),
        ({}, CRASH, 0, Retry(0, CRASH)),
        ({"crashes": 1}, CRASH, 0, Bury(Reason.CRASHED, CRASH)),
        ({"crashes": 1}, CRASH, None, Bury(Reason.CRASHED, CRASH)),
        ({"crashes": 1}, ERROR, 0, Retry(0, ERROR)),
        ({"crashes": 1, "attempt": 3}, CRASH, 0, Bury(Reason.CRASHED, CRASH)),
        ({"attempt": 9, "cancel_requested": True}, None, 7_000, Retry(0)),
        ({"crashes": 9, "cancel_requested": True}, CRASH, None, Retry(0, CRASH)),
    ],
)
def test_a_requested_retry(
    fields: dict[str, int], failure: Failure | None, delay_ms: int | None, verdict: Verdict
) -> None:
    job = replace(JOB, **fields)
    assert retry_policy.after_retry_request(QUEUE, job, failure, delay_ms, 0.0) == verdict


@given(queues, leased_jobs, failures, st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_asking_changes_when_it_runs_again_and_not_whether(
    queue: Queue, job: Job, failure: Failure, delay_ms: int, draw: float
) -> None:
    decided = retry_policy.after_failure(queue, job, failure, draw)
    asked = retry_policy.after_retry_request(queue, job, failure, delay_ms, draw)
    if isinstance(decided, Retry) and not job.cancel_requested:
        assert asked == Retry(delay_ms, failure)
    else:
        assert asked == decided


def test_an_overdue_lease_is_retried_at_once_or_buried() -> None:
    verdict = retry_policy.after_overdue(QUEUE, JOB)
    assert isinstance(verdict, Retry)
    assert verdict.delay_ms == 0
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.OVERDUE
    assert "w" in verdict.failure.message
    last = retry_policy.after_overdue(QUEUE, replace(JOB, attempt=3))
    assert isinstance(last, Bury)
    assert last.reason is Reason.ATTEMPTS


def test_an_expired_job_is_buried_by_the_reaper() -> None:
    act = retry_policy.after_expiry(replace(JOB, attempt=2))
    assert (act.by, act.reason) == ("reaper", Reason.EXPIRED)
    assert act.failure is not None
    assert act.failure.kind is FailureKind.EXPIRED
    assert "2 attempts" in act.failure.message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"expires_at": NOW + 300_000}, "worker ann did not take it within its TTL of 5m"),
        ({"expires_at": NOW + 90_499}, "worker ann did not take it within its TTL of 90s"),
        ({"expires_at": NOW + 250}, "worker ann did not take it within its TTL of 250ms"),
        (
            {"expires_at": NOW + 5_000, "attempt": 2},
            "worker ann did not finish it in 2 attempts within its TTL of 5s",
        ),
        ({"expires_at": NOW - 5}, "worker ann did not take it within its TTL of 0ms"),
    ],
)
def test_expiry_of_an_addressed_job_names_the_worker(fields: dict[str, int], text: str) -> None:
    job = replace(JOB, **{"queue": "worker.ann", "attempt": 0, "created_at": NOW} | fields)
    act = retry_policy.after_expiry(job)
    assert act.failure is not None
    assert act.failure.message == text


def test_jobs_that_expire_alike_can_be_buried_by_one_act() -> None:
    jobs_ = [
        replace(JOB, id=f"j{n}", seq=n, queue="worker.ann", created_at=NOW + n, expires_at=NOW + at)
        for n in range(9)
        for at in (300_000, 300_000 + n)
    ]
    assert len(set(map(retry_policy.after_expiry, jobs_))) == 1


def test_a_queue_without_a_worker_name_has_no_addressee() -> None:
    act = retry_policy.after_expiry(replace(JOB, queue="worker.", expires_at=NOW))
    assert act.failure is not None
    assert act.failure.message.startswith("not started before its expiry")


@given(queues, leased_jobs, failures, st.floats(0, 1, exclude_max=True))
def test_a_failure_is_buried_only_when_a_bound_is_reached(
    queue: Queue, job: Job, failure: Failure, draw: float
) -> None:
    verdict = retry_policy.after_failure(queue, job, failure, draw)
    most, crashes = retry_policy.attempts_max(queue, job), retry_policy.crashes_max(queue, job)
    crashed = failure.kind is FailureKind.CRASH and job.crashes + 1 >= crashes
    used_up = most != 0 and job.attempt >= most
    if job.cancel_requested:
        assert verdict == Retry(0, failure)
    elif crashed or used_up:
        reason = Reason.CRASHED if crashed else Reason.ATTEMPTS
        assert verdict == Bury(reason, failure)
    else:
        assert isinstance(verdict, Retry)
        assert 0 <= verdict.delay_ms <= queue.backoff.cap_ms


def test_a_dead_letter_is_kept_at_least_as_long_as_a_done_job() -> None:
    queue = replace(QUEUE, retention_ms=10, dead_retention_ms=5)
    assert retry_policy.retention_ms(queue, State.DEAD) == 10
    assert retry_policy.retention_ms(replace(queue, dead_retention_ms=99), State.DEAD) == 99
    assert retry_policy.retention_ms(replace(queue, dead_retention_ms=99), State.CANCELLED) == 10


def test_a_jobs_own_timeout_goes_before_its_queues() -> None:
    assert retry_policy.timeout_ms(QUEUE, JOB) is None
    timed = replace(QUEUE, timeout_ms=5_000)
    assert retry_policy.timeout_ms(timed, JOB) == 5_000
    assert retry_policy.timeout_ms(timed, replace(JOB, overrides=Overrides(timeout_ms=70))) == 70
