"""What a call came to → the verdict on each of its leases; `core.policy` decides."""

from __future__ import annotations

from typing import assert_never

from holdfast.core import limits, policy
from holdfast.core.model import Failure, FailureKind, Job, Note, Queue, Reason
from holdfast.core.verdict import Bury, Complete, Release, Verdict
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    Raised,
    Returned,
)

_DONE = Complete()


def verdict_on(ending: Ending, queue: Queue, job: Job, draw: float) -> Verdict:
    """`draw` is a random number in [0, 1) for the jitter."""
    match ending:
        case Returned(result=None, then=()):
            return _DONE
        case Returned(result=result, then=then):
            return policy.after_success(result, then)
        case Raised(failure=failure, fatal=True):
            return Bury(Reason.REJECTED, failure)
        case Raised(failure=failure):
            return policy.after_failure(queue, job, failure, draw)
        case AskedRetry(failure=failure, delay_ms=delay_ms):
            bounded_ms = None if delay_ms is None else min(delay_ms, limits.DELAY_MS_MAX)
            return policy.after_asking(queue, job, failure, bounded_ms, draw)
        case AskedBury(failure=failure):
            return Bury(Reason.EXPLICIT, failure)
        case AskedRelease(text=text, delay_ms=delay_ms, alone=alone):
            return Release(text, min(delay_ms, limits.DELAY_MS_MAX), alone)
        case AskedCancel(text=text):
            # The settler asks for the cancel first, so that this release ends as cancelled.
            return Release(text)
        case never:
            assert_never(never)


def after_death(queue: Queue, job: Job, failure: Failure, draw: float, *, alone: bool) -> Verdict:
    """A child died under the job. Whoever was alone in it did it; of several, nobody knows."""
    if alone:
        return policy.after_failure(queue, job, failure, draw)
    return Release(f"{failure.message}; its next attempt runs alone", alone=True)


def after_refusal(queue: Queue, job: Job, text: str, draw: float) -> Verdict:
    """The engine refused the verdict itself, such as a follow-up for a queue that is not there."""
    failure = Failure(kind=FailureKind.ERROR, type="Refused", message=text)
    return policy.after_failure(queue, job, failure, draw)


def note_of(ending: Ending) -> Note | None:
    output = ending.output
    return None if output is None else Note(output=output[-limits.OUTPUT_MAX :])
