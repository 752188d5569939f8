"""The retry policy: facts about an attempt → Verdict. `lifecycle` applies the verdict.

Workers, HTTP clients, programs that lease jobs and the reaper all use these functions. Nowhere else
is an attempt number compared with its limit.
"""

from __future__ import annotations

from holdfast.core import bounds
from holdfast.core.model import Failure, FailureKind, Job, NewJob, Queue, Reason, State
from holdfast.core.text import counted, show_ms
from holdfast.core.verdict import Bury, BuryWaiting, Complete, Retry, Verdict
from holdfast.core.workers import DISTRIBUTOR, addressee


def after_success(result: bytes | None, then: tuple[NewJob, ...] = ()) -> Verdict:
    """The verdict on a handler that returned."""
    return Complete(result, then)


def after_failure(queue: Queue, job: Job, failure: Failure, draw: float) -> Verdict:
    """The verdict on a failed attempt. `draw` is a random number in [0, 1) for the jitter."""
    return after_retry_request(queue, job, failure, None, draw)


def after_retry_request(
    queue: Queue, job: Job, failure: Failure | None, delay_ms: int | None, draw: float
) -> Verdict:
    """The verdict when another attempt is requested, after `delay_ms` or by the backoff if that is
    None. The limits on attempts and crashes apply to a requested retry as well, but not to a dead
    letter: it is offered again, ever less often, until its retention is over."""
    backoff = job.overrides.backoff or queue.backoff
    if job.is_dead_letter and job.state is State.LEASED:
        again_ms = backoff.delay_ms(job.releases + 1, draw) if delay_ms is None else delay_ms
        return Retry(again_ms, failure)
    if job.cancel_requested:
        return Retry(0, failure)
    if is_crash(failure) and job.crashes + 1 >= crashes_max(queue, job):
        return Bury(Reason.CRASHED, failure)
    if exhausted(queue, job):
        most = attempts_max(queue, job)
        requested = Failure(message=f"requested a retry after attempt {job.attempt} of {most}")
        return Bury(Reason.ATTEMPTS, failure or requested)
    if delay_ms is None:
        delay_ms = backoff.delay_ms(max(job.attempt, 1), draw)
    return Retry(delay_ms, failure)


def after_overdue(queue: Queue, job: Job) -> Verdict:
    """The verdict on an overdue lease, whose worker is dead or frozen. It retries without a delay,
    since the job has already waited for the lease to expire. A distributor never runs a job, so its
    overdue lease never counts as the last attempt.
    """
    failure = Failure(
        kind=FailureKind.OVERDUE,
        message=f"worker {job.worker or 'unnamed'} did not renew its lease"
        f" in attempt {job.attempt}",
    )
    ran = job.worker != DISTRIBUTOR
    if ran and exhausted(queue, job) and not job.cancel_requested:
        return Bury(Reason.ATTEMPTS, failure)
    return Retry(0, failure)


def after_expiry(job: Job, why: str = "", *, by: str = "reaper", history: str = "") -> BuryWaiting:
    """The amendment for a job that waited past its expiry. Similar jobs get equal amendments, so
    that one call buries them all. `why` explains why it could not be rerouted; `history` is what
    the broker recorded about its message."""
    worker = addressee(job.queue)
    if worker:
        did = f"finish it in {counted(job.attempt, 'attempt')}" if job.attempt else "take it"
        message = f"worker {worker} did not {did} within its TTL of {show_ttl(job)}"
    else:
        message = f"not started before its expiry, after {counted(job.attempt, 'attempt')}"
    message += f"; {why}" if why else ""
    failure = Failure(kind=FailureKind.EXPIRED, message=message, trace=history)
    return BuryWaiting(by=by, reason=Reason.EXPIRED, failure=failure)


def ttl_ms(job: Job) -> int:
    """How long an addressed job may wait for one worker; a rerouted job keeps it."""
    reroute = job.overrides.reroute
    if reroute is not None and reroute.ttl_ms is not None:
        return reroute.ttl_ms
    return max(0, (job.expires_at or 0) - job.created_at)


def show_ttl(job: Job) -> str:
    """The TTL in whole seconds, so that jobs with nearly equal TTLs get the same text."""
    ms = ttl_ms(job)
    return show_ms(ms if ms < bounds.SECOND_MS else round(ms, -3))


def attempts_max(queue: Queue, job: Job) -> int:
    """The maximum number of attempts of this job; 0 means unlimited."""
    own = job.overrides.max_attempts
    return queue.max_attempts if own is None else own


def timeout_ms(queue: Queue, job: Job) -> int | None:
    """How long one attempt may run; None means no limit."""
    return job.overrides.timeout_ms or queue.timeout_ms


def crashes_max(queue: Queue, job: Job) -> int:
    """The number of crashes after which the job is buried."""
    return job.overrides.max_crashes or queue.max_crashes


def exhausted(queue: Queue, job: Job) -> bool:
    """Whether the current attempt is the last one."""
    most = attempts_max(queue, job)
    return most > 0 and job.attempt >= most


def is_crash(failure: Failure | None) -> bool:
    """Whether the attempt ended with the death of its process."""
    return failure is not None and failure.kind is FailureKind.CRASH


def retention_ms(queue: Queue, state: State) -> int:
    """How long a finished job is kept; a dead letter at least as long as a done job."""
    if state is State.DEAD:
        return max(queue.dead_retention_ms, queue.retention_ms)
    return queue.retention_ms
