"""State transitions, as examples and as properties of every job."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.conformance.inputs import verdicts
from holdfast.core import bounds, lifecycle, retry_policy
from holdfast.core.backoff import Backoff
from holdfast.core.model import (
    STORED_STATES,
    Failure,
    FailureKind,
    Job,
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
from tests.unit.core.strategies import NOW, jobs, leased_jobs, queues

QUEUE = Queue(name="q", max_attempts=3, max_crashes=2, backoff=Backoff(first_ms=100, jitter=0.0))
JOB = Job(id="a", task="t", queue="q", state=State.LEASED, token=7, attempt=1, worker="w")
ERROR = Failure(message="no")
CRASH = Failure(kind=FailureKind.CRASH)
OVERDUE = Failure(kind=FailureKind.OVERDUE)


def applied(job: Job, verdict: Verdict, queue: Queue, now: int) -> lifecycle.Change:
    change = lifecycle.apply(job, verdict, queue, now)
    assert change is not None
    return change


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
def test_repeating_a_settlement_changes_nothing_and_another_token_is_lost(
    queue: Queue, job: Job, verdict: Verdict
) -> None:
    leased = replace(job, token=7)
    after = applied(leased, verdict, queue, NOW).job
    judge = partial(lifecycle.judge, lapsed=True)
    again = judge(after, 7, verdict)
    if after.token is None:
        # A new life in another queue: the old lease reaches it no more.
        assert isinstance(verdict, Forward)
        assert again is Outcome.LOST
    else:
        assert again is Outcome.SETTLED
    if after.state.finished:
        others: list[Verdict] = [Complete(), Retry(), Bury(), Release(), Forward("q")]
        assert None not in [judge(after, 7, other) for other in others]


@given(queues, leased_jobs, verdicts)
def test_what_every_settled_job_has_in_common(queue: Queue, job: Job, verdict: Verdict) -> None:
    change = applied(job, verdict, queue, NOW)
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
    if after.state is State.DEAD:
        home = (after.queue, after.origin)
        assert home == ("q", None) if queue.dead_queue is None else home == ("grave", "q")
        assert after.due_at == job.due_at
    if job.cancel_requested and isinstance(verdict, Retry | Release | Forward):
        assert after.state is State.CANCELLED


@given(leased_jobs, st.integers(0, 50), st.sampled_from(("tail", "keep")))
def test_a_retried_job_is_never_due_early_and_keeps_its_place_only_when_told(
    job: Job, delay_ms: int, order: str
) -> None:
    queue = replace(QUEUE, order=order)
    job = replace(job, cancel_requested=False)
    change = applied(job, Retry(delay_ms), queue, NOW)
    if order == "keep" and delay_ms == 0:
        assert (change.job.due_at, change.tail) == (job.due_at, False)
    else:
        assert (change.job.due_at, change.tail) == (NOW + delay_ms, True)
    assert change.job.attempt == job.attempt


@given(leased_jobs)
def test_a_release_gives_the_attempt_back_only_so_often(job: Job) -> None:
    job = replace(job, cancel_requested=False)
    after = applied(job, Release("busy"), QUEUE, NOW).job
    free = job.releases < bounds.RELEASES_MAX and job.attempt > 0
    assert after.attempt == job.attempt - free >= 0
    assert after.releases == job.releases + 1
    assert after.alone == job.alone
    assert applied(job, Release(alone=True), QUEUE, NOW).job.alone


@given(leased_jobs)
def test_what_was_not_started_is_given_back_however_often(job: Job) -> None:
    job = replace(job, cancel_requested=False)
    after = applied(job, Release("its turn is later", unstarted=True), QUEUE, NOW).job
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
    assert applied(JOB, Retry(0, CRASH), QUEUE, NOW).job.crashes == 1
    assert applied(JOB, Retry(0, ERROR), QUEUE, NOW).job.crashes == 0
    assert applied(JOB, Retry(0), QUEUE, NOW).job.crashes == 0


def test_bury_stays_or_moves() -> None:
    stays = applied(JOB, Bury(Reason.REJECTED, ERROR), QUEUE, NOW)
    assert (stays.job.state, stays.job.reason, stays.tail) == (
        State.DEAD,
        Reason.REJECTED,
        False,
    )
    assert stays.job.token == 7
    queue = replace(QUEUE, dead_queue="grave")
    moves = applied(replace(JOB, expires_at=5), Bury(Reason.REJECTED, ERROR), queue, NOW)
    assert (moves.job.queue, moves.job.origin, moves.job.reason) == (
        "grave",
        "q",
        Reason.REJECTED,
    )
    assert (moves.job.state, moves.job.attempt, moves.job.token) == (State.DEAD, 1, 7)
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
    verdict = retry_policy.after_failure(QUEUE, leased, CRASH, 0.5)
    assert applied(leased, verdict, QUEUE, NOW).job.crashes == 2


LETTER = replace(
    JOB,
    queue="grave",
    origin="q",
    reason=Reason.ATTEMPTS,
    fingerprint="f",
    finished_at=5,
    attempt=3,
)


def test_a_dead_letter_is_leased_without_an_attempt() -> None:
    dead = replace(LETTER, state=State.DEAD, token=None, due_at=4)
    leased = lifecycle.lease_dead(dead, token=9, worker="", now=NOW, lease_ms=30)
    assert leased == replace(
        dead, state=State.LEASED, token=9, worker=None, leased_at=NOW, deadline_at=NOW + 30,
        version=dead.version + 1,
    )  # fmt: skip
    assert leased.is_dead_letter
    assert leased.has_ended
    assert STORED_STATES[leased.state_code] is State.LEASED
    with pytest.raises(AssertionError):
        lifecycle.lease_dead(leased, token=9, worker="", now=NOW, lease_ms=30)


@given(queues, leased_jobs, verdicts)
def test_a_leased_dead_letter_is_deleted_forwarded_or_dead_again(
    queue: Queue, job: Job, verdict: Verdict
) -> None:
    letter = replace(job, reason=Reason.ATTEMPTS, fingerprint="f", finished_at=5, origin="o")
    change = lifecycle.apply(letter, verdict, queue, NOW)
    if isinstance(verdict, Complete):
        assert change is None
        return
    assert change is not None
    after = change.job
    assert (after.version, after.token, after.deadline_at) == (job.version + 1, None, None)
    if isinstance(verdict, Forward):
        assert (after.state, after.reason, after.finished_at) == (State.WAITING, None, None)
        return
    assert (after.state, after.reason, after.finished_at) == (State.DEAD, Reason.ATTEMPTS, 5)
    assert (after.queue, after.origin, after.attempt) == ("q", "o", job.attempt)
    assert not after.cancel_requested
    assert after.due_at == NOW + getattr(verdict, "delay_ms", 0)
    assert (change.event is None) == (job.releases >= bounds.RELEASES_MAX)


def test_every_code_of_a_state() -> None:
    for state in State:
        assert STORED_STATES[replace(JOB, state=state).state_code] is state
    codes = [replace(LETTER, state=state).state_code for state in State]
    assert codes == [0, 5, 2, 3, 4]
