"""Endings → verdicts; the policy itself is tested in core."""

import pytest

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.model import Failure, FailureKind, Job, NewJob, Note, Overrides, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Release, Retry, Verdict
from holdfast.worker.supervisor.settle import after_death, after_refusal, note_of, verdict_on
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    Raised,
    Returned,
)

BACKOFF = Backoff(kind="constant", first_ms=7, jitter=0)
QUEUE = Queue(name="default", max_attempts=3, backoff=BACKOFF)
ERROR = Failure(type="ValueError", message="no")
CRASH = Failure(kind=FailureKind.CRASH, message="its process was killed by SIGKILL", signal=9)
NEXT = NewJob(id="next", task="work")


def a_job(**fields: object) -> Job:
    return Job(**{"id": "a", "task": "work", "queue": "default", "attempt": 1} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ending", "verdict"),
    [
        (Returned(), Complete()),
        (Returned(b"1", (NEXT,)), Complete(b"1", (NEXT,))),
        (Returned(None, (NEXT,)), Complete(None, (NEXT,))),
        (Raised(ERROR), Retry(7, ERROR)),
        (Raised(ERROR, fatal=True), Bury(Reason.REJECTED, ERROR)),
        (AskedRetry(ERROR), Retry(7, ERROR)),
        (AskedRetry(ERROR, 0), Retry(0, ERROR)),
        (AskedRetry(ERROR, 2 * bounds.DELAY_MS_MAX), Retry(bounds.DELAY_MS_MAX, ERROR)),
        (AskedBury(ERROR), Bury(Reason.EXPLICIT, ERROR)),
        (AskedRelease("later", 5), Release("later", 5)),
        (AskedRelease("beside", alone=True), Release("beside", alone=True)),
        (AskedRelease("late", 2 * bounds.DELAY_MS_MAX), Release("late", bounds.DELAY_MS_MAX)),
        (AskedCancel("enough"), Release("enough")),
    ],
)
def test_an_ending_and_its_verdict(ending: Ending, verdict: Verdict) -> None:
    assert verdict_on(ending, QUEUE, a_job(), 0.5) == verdict


@pytest.mark.parametrize("ending", [Raised(ERROR), AskedRetry(ERROR), AskedRetry(ERROR, 0)])
def test_the_last_attempt_cannot_be_retried(ending: Ending) -> None:
    assert verdict_on(ending, QUEUE, a_job(attempt=3), 0.5) == Bury(Reason.ATTEMPTS, ERROR)


@pytest.mark.parametrize("ending", [Raised(ERROR), AskedRetry(ERROR), AskedRetry(ERROR, 9_000)])
def test_a_job_that_was_asked_to_stop_does_not_wait(ending: Ending) -> None:
    """The engine ends its retry as cancelled; a delay would be misleading."""
    job = a_job(cancel_requested=True)
    assert verdict_on(ending, QUEUE, job, 0.5) == Retry(0, ERROR)


def test_a_death_alone_is_a_crash() -> None:
    job = a_job(overrides=Overrides(max_crashes=2))
    assert after_death(QUEUE, job, CRASH, 0.5, alone=True) == Retry(7, CRASH)
    job = a_job(crashes=1, attempt=2, overrides=Overrides(max_crashes=2))
    assert after_death(QUEUE, job, CRASH, 0.5, alone=True) == Bury(Reason.CRASHED, CRASH)


def test_a_death_beside_others_charges_no_job() -> None:
    verdict = after_death(QUEUE, a_job(attempt=3, crashes=2), CRASH, 0.5, alone=False)
    assert verdict == Release(
        "its process was killed by SIGKILL; its next attempt runs alone", alone=True
    )


def test_a_refused_verdict_is_a_failure() -> None:
    verdict = after_refusal(QUEUE, a_job(), "not accepted: too large", 0.5)
    assert isinstance(verdict, Retry)
    assert verdict.failure == Failure(type="Refused", message="not accepted: too large")
    assert isinstance(after_refusal(QUEUE, a_job(attempt=3), "no", 0.5), Bury)


def test_the_output_of_an_ending_is_kept_within_bounds() -> None:
    assert note_of(Returned(b"1")) is None
    assert note_of(AskedBury(ERROR, b"words")) == Note(output=b"words")
    note = note_of(Raised(ERROR, output=b"x" + b"y" * bounds.OUTPUT_MAX))
    assert note == Note(output=b"y" * bounds.OUTPUT_MAX)
