"""All policy, as examples of each rule and as properties that hold for every job."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import lifecycle, limits
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
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Verdict,
)
from holdfast.testing.histories import verdicts
from tests.core.made import NOW, failures, jobs, leased_jobs, queues

QUEUE = Queue(name="q", max_attempts=3, max_crashes=2, backoff=Backoff(first_ms=100, jitter=0.0))
JOB = Job(id="a", task="t", queue="q", state=State.LEASED, token=7, attempt=1, worker="w")
ERROR = Failure(message="no")
CRASH = Failure(kind=FailureKind.CRASH)
OVERDUE = Failure(kind=FailureKind.OVERDUE)


def test_success_completes() -> None:
    then = (NewJob(id="b", task="t"),)
    assert lifecycle.after_success(b"r", then) == Complete(b"r", then)


def test_a_failure_is_retried_with_backoff_until_the_attempts_are_used() -> None:
    verdicts_ = [
        lifecycle.after_failure(QUEUE, replace(JOB, attempt=attempt), ERROR, 0.0)
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
    verdict = lifecycle.after_failure(queue, replace(JOB, attempt=10**6), ERROR, 0.0)
    assert isinstance(verdict, Retry)
    own = replace(JOB, attempt=9, overrides=Overrides(max_attempts=0))
    assert isinstance(lifecycle.after_failure(QUEUE, own, ERROR, 0.0), Retry)


def test_a_jobs_own_answers_come_before_its_queues() -> None:
    own = Overrides(max_attempts=1, max_crashes=9, backoff=Backoff(first_ms=5, jitter=0.0))
    job = replace(JOB, overrides=own)
    assert lifecycle.after_failure(QUEUE, job, ERROR, 0.0) == Bury(Reason.ATTEMPTS, ERROR)
    longer = replace(job, overrides=replace(own, max_attempts=5))
    assert lifecycle.after_failure(QUEUE, longer, ERROR, 0.0) == Retry(5, ERROR)
    assert lifecycle.crashes_max(QUEUE, job) == 9


def test_crashes_are_bounded_by_themselves() -> None:
    queue = replace(QUEUE, max_attempts=0)
    assert isinstance(lifecycle.after_failure(queue, JOB, CRASH, 0.0), Retry)
    again = replace(JOB, crashes=1)
    assert lifecycle.after_failure(queue, again, CRASH, 0.0) == Bury(Reason.CRASHED, CRASH)
    assert isinstance(lifecycle.after_failure(queue, again, ERROR, 0.0), Retry)


def test_a_cancelled_job_is_not_buried_for_failing() -> None:
    job = replace(JOB, attempt=99, cancel_requested=True)
    assert lifecycle.after_failure(QUEUE, job, CRASH, 0.0) == Retry(0, CRASH)
    verdict = lifecycle.after_overdue(QUEUE, job)
    assert isinstance(verdict, Retry)
    assert lifecycle.apply(job, verdict, QUEUE, NOW).job.state is State.CANCELLED


def test_an_overdue_lease_is_retried_at_once_or_buried() -> None:
    verdict = lifecycle.after_overdue(QUEUE, JOB)
    assert isinstance(verdict, Retry)
    assert verdict.delay_ms == 0
    assert verdict.failure is not None
    assert verdict.failure.kind is FailureKind.OVERDUE
    assert "w" in verdict.failure.message
    last = lifecycle.after_overdue(QUEUE, replace(JOB, attempt=3))
    assert isinstance(last, Bury)
    assert last.reason is Reason.ATTEMPTS


def test_an_expired_job_is_buried_by_the_reaper() -> None:
    act = lifecycle.after_expiry(replace(JOB, attempt=2))
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
    act = lifecycle.after_expiry(job)
    assert act.failure is not None
    assert act.failure.message == text


def test_jobs_that_expire_alike_can_be_buried_by_one_act() -> None:
    jobs_ = [
        replace(JOB, id=f"j{n}", seq=n, queue="worker.ann", created_at=NOW + n, expires_at=NOW + at)
        for n in range(9)
        for at in (300_000, 300_000 + n)
    ]
    assert len(set(map(lifecycle.after_expiry, jobs_))) == 1


def test_a_queue_that_names_no_worker_addresses_nobody() -> None:
    act = lifecycle.after_expiry(replace(JOB, queue="worker.", expires_at=NOW))
    assert act.failure is not None
    assert act.failure.message.startswith("not started before its expiry")


def test_on_delivery_what_is_used_up_or_expired_does_not_run() -> None:
    fresh = replace(JOB, attempt=3, leased_at=NOW, expires_at=NOW + 1)
    assert lifecycle.on_delivery(QUEUE, fresh, NOW + 5) is None
    used_up = lifecycle.on_delivery(QUEUE, replace(fresh, attempt=4), NOW)
    assert isinstance(used_up, Bury)
    assert used_up.reason is Reason.ATTEMPTS
    expired = lifecycle.on_delivery(QUEUE, replace(fresh, expires_at=NOW), NOW)
    assert isinstance(expired, Bury)
    assert expired.reason is Reason.EXPIRED
    assert lifecycle.on_delivery(replace(QUEUE, max_attempts=0), replace(JOB, attempt=9), 0) is None


@given(queues, leased_jobs, failures, st.floats(0, 1, exclude_max=True))
def test_a_failure_is_buried_only_when_a_bound_is_reached(
    queue: Queue, job: Job, failure: Failure, draw: float
) -> None:
    verdict = lifecycle.after_failure(queue, job, failure, draw)
    most, crashes = lifecycle.attempts_max(queue, job), lifecycle.crashes_max(queue, job)
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


def test_expiry_and_readiness_at_their_very_instants() -> None:
    waiting = replace(JOB, state=State.WAITING, due_at=10, expires_at=20)
    assert [lifecycle.is_ready(waiting, now) for now in (9, 10, 19, 20)] == [
        False,
        True,
        True,
        False,
    ]
    assert not lifecycle.is_ready(replace(waiting, state=State.DONE), 15)
    assert not lifecycle.is_expired(replace(waiting, expires_at=None), 10**15)


def test_a_dead_letter_is_kept_at_least_as_long_as_a_done_job() -> None:
    queue = replace(QUEUE, retention_ms=10, dead_retention_ms=5)
    assert lifecycle.retention_ms(queue, State.DEAD) == 10
    assert lifecycle.retention_ms(replace(queue, dead_retention_ms=99), State.DEAD) == 99
    assert lifecycle.retention_ms(replace(queue, dead_retention_ms=99), State.CANCELLED) == 10


_L, _S = Outcome.LOST, Outcome.SETTLED
# None: the verdict is applied.
TABLE: dict[State, dict[type, Outcome | None]] = {
    State.LEASED: dict.fromkeys((Complete, Retry, Bury, Release, Forward)),
    State.WAITING: {Complete: None, Retry: _S, Bury: None, Release: _S, Forward: None},
    State.DONE: {Complete: _S, Retry: _L, Bury: _L, Release: _L, Forward: _L},
    State.DEAD: {Complete: _L, Retry: _L, Bury: _S, Release: _L, Forward: _L},
    State.CANCELLED: {Complete: _L, Retry: _S, Bury: _L, Release: _S, Forward: _S},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verdict", [Complete(), Retry(), Bury(), Release(), Forward("q")], ids=str)
def test_who_may_end_a_lease(state: State, verdict: Verdict) -> None:
    job = replace(JOB, state=state)
    for lapsed in (False, True):
        judge = partial(lifecycle.judge, lapsed=lapsed)
        assert judge(job, 7, verdict) is TABLE[state][type(verdict)]
        assert judge(job, 8, verdict) is Outcome.LOST
        assert judge(replace(job, token=None), 7, verdict) is Outcome.LOST
        assert judge(None, 7, verdict) is Outcome.LOST


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("lapsed", [False, True])
@pytest.mark.parametrize("verdict", [Retry(0, OVERDUE), Bury(Reason.ATTEMPTS, OVERDUE)], ids=str)
def test_the_reaper_ends_only_what_is_still_lapsed(
    state: State, lapsed: bool, verdict: Retry | Bury
) -> None:
    expected = TABLE[state][type(verdict)]
    if expected is None and not (state is State.LEASED and lapsed):
        expected = Outcome.LOST
    assert lifecycle.judge(replace(JOB, state=state), 7, verdict, lapsed=lapsed) is expected


@given(queues, leased_jobs, verdicts)
def test_settled_once_a_repeat_changes_nothing_and_nobody_else_wins(
    queue: Queue, job: Job, verdict: Verdict
) -> None:
    leased = replace(job, token=7)
    after = lifecycle.apply(leased, verdict, queue, NOW).job
    judge = partial(lifecycle.judge, lapsed=True)
    again = judge(after, 7, verdict)
    if after.token is None:
        # A new life in another queue: the old lease reaches it no more.
        assert after.queue != "q" or isinstance(verdict, Forward)
        assert again is Outcome.LOST
    else:
        assert again is Outcome.SETTLED
    if after.state.finished:
        others: list[Verdict] = [Complete(), Retry(), Bury(), Release(), Forward("q")]
        assert None not in [judge(after, 7, other) for other in others]


@given(queues, leased_jobs, verdicts)
def test_what_every_settled_job_has_in_common(queue: Queue, job: Job, verdict: Verdict) -> None:
    change = lifecycle.apply(job, verdict, queue, NOW)
    after = change.job
    assert after.version == job.version + 1
    assert after.deadline_at is None
    assert after.state is not State.LEASED
    assert (after.finished_at == NOW) == after.state.finished
    assert (after.id, after.payload, after.key) == (job.id, job.payload, job.key)
    assert (change.event is None) == isinstance(verdict, Complete)
    if change.event is not None:
        assert (change.event.at, change.event.attempt) == (NOW, job.attempt)
    if after.state is State.WAITING and not isinstance(verdict, Retry | Release):
        assert (after.attempt, after.crashes, after.releases, after.token) == (0, 0, 0, None)
        assert (after.due_at, after.origin, change.tail) == (NOW, "q", True)
    if job.cancel_requested and isinstance(verdict, Retry | Release | Forward):
        assert after.state is State.CANCELLED


@given(leased_jobs, st.integers(0, 50), st.sampled_from(("tail", "keep")))
def test_a_retried_job_is_never_due_early_and_keeps_its_place_only_when_told(
    job: Job, delay_ms: int, order: str
) -> None:
    queue = replace(QUEUE, order=order)
    job = replace(job, cancel_requested=False)
    change = lifecycle.apply(job, Retry(delay_ms), queue, NOW)
    if order == "keep" and delay_ms == 0:
        assert (change.job.due_at, change.tail) == (job.due_at, False)
    else:
        assert (change.job.due_at, change.tail) == (NOW + delay_ms, True)
    assert change.job.attempt == job.attempt


@given(leased_jobs)
def test_a_release_gives_the_attempt_back_only_so_often(job: Job) -> None:
    job = replace(job, cancel_requested=False)
    after = lifecycle.apply(job, Release("busy"), QUEUE, NOW).job
    free = job.releases < limits.RELEASES_MAX and job.attempt > 0
    assert after.attempt == job.attempt - free >= 0
    assert after.releases == job.releases + 1
    assert after.alone == job.alone
    assert lifecycle.apply(job, Release(alone=True), QUEUE, NOW).job.alone


@given(leased_jobs)
def test_what_was_not_started_is_given_back_however_often(job: Job) -> None:
    job = replace(job, cancel_requested=False)
    after = lifecycle.apply(job, Release("its turn is later", unstarted=True), QUEUE, NOW).job
    assert after.state is State.WAITING
    assert after.attempt == max(job.attempt - 1, 0)
    assert after.releases == job.releases


@pytest.mark.parametrize(
    ("alone", "crashes", "runs_alone"),
    [(False, 0, False), (True, 0, True), (False, 1, True)],
)
def test_who_runs_alone(alone: bool, crashes: int, runs_alone: bool) -> None:
    assert replace(JOB, alone=alone, crashes=crashes).runs_alone is runs_alone


def test_only_a_crash_counts_as_one() -> None:
    assert lifecycle.apply(JOB, Retry(0, CRASH), QUEUE, NOW).job.crashes == 1
    assert lifecycle.apply(JOB, Retry(0, ERROR), QUEUE, NOW).job.crashes == 0
    assert lifecycle.apply(JOB, Retry(0), QUEUE, NOW).job.crashes == 0


def test_bury_stays_or_moves() -> None:
    stays = lifecycle.apply(JOB, Bury(Reason.REJECTED, ERROR), QUEUE, NOW)
    assert (stays.job.state, stays.job.reason, stays.tail) == (
        State.DEAD,
        Reason.REJECTED,
        False,
    )
    assert stays.job.token == 7
    queue = replace(QUEUE, dead_queue="grave")
    moves = lifecycle.apply(replace(JOB, expires_at=5), Bury(Reason.REJECTED, ERROR), queue, NOW)
    assert (moves.job.queue, moves.job.origin, moves.job.reason) == (
        "grave",
        "q",
        Reason.REJECTED,
    )
    assert (moves.job.expires_at, moves.job.token) == (None, None)
    assert moves.event is not None
    assert moves.event.text == "rejected: moved from q to grave"


@given(jobs(State.WAITING))
def test_leasing_counts_the_attempt_and_sets_the_deadline(job: Job) -> None:
    leased = lifecycle.lease(job, token=9, worker="", now=NOW, lease_ms=30)
    assert leased == replace(
        job,
        state=State.LEASED,
        attempt=job.attempt + 1,
        token=9,
        worker=None,
        leased_at=NOW,
        deadline_at=NOW + 30,
        version=job.version + 1,
    )


@pytest.mark.parametrize(
    "job", [replace(JOB, state=State.DONE), replace(JOB, state=State.WAITING, due_at=NOW + 1)]
)
def test_what_is_not_waiting_or_not_due_cannot_be_leased(job: Job) -> None:
    with pytest.raises(AssertionError):
        lifecycle.lease(job, token=9, worker="w", now=NOW, lease_ms=30)


def test_the_crash_that_buries_is_counted_too() -> None:
    leased = replace(JOB, crashes=1, attempt=2)
    verdict = lifecycle.after_failure(QUEUE, leased, CRASH, 0.5)
    assert lifecycle.apply(leased, verdict, QUEUE, NOW).job.crashes == 2


def test_a_jobs_own_timeout_goes_before_its_queues() -> None:
    assert lifecycle.timeout_ms(QUEUE, JOB) is None
    timed = replace(QUEUE, timeout_ms=5_000)
    assert lifecycle.timeout_ms(timed, JOB) == 5_000
    assert lifecycle.timeout_ms(timed, replace(JOB, overrides=Overrides(timeout_ms=70))) == 70
