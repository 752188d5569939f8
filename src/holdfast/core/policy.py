"""All policy: facts → Verdict. What `lifecycle` makes of a job by that verdict is not its concern.

A worker, a client over HTTP, a program with a lease and the reaper all ask here. Nowhere else is
an attempt number compared with its bound.
"""

from __future__ import annotations

from holdfast.core import limits
from holdfast.core.model import Failure, FailureKind, Job, NewJob, Queue, Reason, State
from holdfast.core.text import counted
from holdfast.core.verdict import Bury, BuryWaiting, Complete, Retry, Verdict
from holdfast.core.workers import DISTRIBUTOR, addressee
from holdfast.durations import show_ms


def after_success(result: bytes | None, then: tuple[NewJob, ...] = ()) -> Verdict:
    return Complete(result, then)


def after_failure(queue: Queue, job: Job, failure: Failure, draw: float) -> Verdict:
    """An attempt failed. `draw` is a random number in [0, 1) for the jitter."""
    return after_asking(queue, job, failure, None, draw)


def after_asking(
    queue: Queue, job: Job, failure: Failure | None, delay_ms: int | None, draw: float
) -> Verdict:
    """Whoever ran it asks for another attempt: after the delay, or without one when the backoff
    says. It gets no more than there are, and a crash counts as one whatever is asked for."""
    if job.cancel_requested:
        return Retry(0, failure)
    if is_crash(failure) and job.crashes + 1 >= crashes_max(queue, job):
        return Bury(Reason.CRASHED, failure)
    if exhausted(queue, job):
        most = attempts_max(queue, job)
        unsaid = Failure(message=f"it asked to be retried after attempt {job.attempt} of {most}")
        return Bury(Reason.ATTEMPTS, failure or unsaid)
    if delay_ms is None:
        backoff = job.overrides.backoff or queue.backoff
        delay_ms = backoff.delay_ms(max(job.attempt, 1), draw)
    return Retry(delay_ms, failure)


def after_overdue(queue: Queue, job: Job) -> Verdict:
    """A lease lapsed: its worker is gone or frozen. The wait was the lease; no delay is added. What
    a distributor let lapse was not run, and so was no attempt that could be the last."""
    failure = Failure(
        kind=FailureKind.OVERDUE,
        message=f"worker {job.worker or 'unnamed'} let its lease lapse in attempt {job.attempt}",
    )
    ran = job.worker != DISTRIBUTOR
    if ran and exhausted(queue, job) and not job.cancel_requested:
        return Bury(Reason.ATTEMPTS, failure)
    return Retry(0, failure)


def after_expiry(job: Job, why: str = "") -> BuryWaiting:
    """A job waited past its expiry. Jobs alike get equal acts, so that one call buries them all.
    `why` is told of one that could go nowhere else."""
    worker = addressee(job.queue)
    if worker:
        did = f"finish it in {counted(job.attempt, 'attempt')}" if job.attempt else "take it"
        message = f"worker {worker} did not {did} within its TTL of {show_ttl(job)}"
    else:
        message = f"not started before its expiry, after {counted(job.attempt, 'attempt')}"
    message += f"; {why}" if why else ""
    failure = Failure(kind=FailureKind.EXPIRED, message=message)
    return BuryWaiting(by="reaper", reason=Reason.EXPIRED, failure=failure)


def ttl_ms(job: Job) -> int:
    """How long it may wait for one worker; a job that was rerouted knows it."""
    reroute = job.overrides.reroute
    if reroute is not None and reroute.ttl_ms is not None:
        return reroute.ttl_ms
    return max(0, (job.expires_at or 0) - job.created_at)


def show_ttl(job: Job) -> str:
    """In whole seconds, or no two jobs whose expiry was edited would be alike."""
    ms = ttl_ms(job)
    return show_ms(ms if ms < limits.SECOND_MS else round(ms, -3))


def attempts_max(queue: Queue, job: Job) -> int:
    """Total runs; 0 is unlimited."""
    own = job.overrides.max_attempts
    return queue.max_attempts if own is None else own


def timeout_ms(queue: Queue, job: Job) -> int | None:
    """How long one attempt may run; None is as long as it likes."""
    return job.overrides.timeout_ms or queue.timeout_ms


def crashes_max(queue: Queue, job: Job) -> int:
    return job.overrides.max_crashes or queue.max_crashes


def exhausted(queue: Queue, job: Job) -> bool:
    most = attempts_max(queue, job)
    return most > 0 and job.attempt >= most


def is_crash(failure: Failure | None) -> bool:
    return failure is not None and failure.kind is FailureKind.CRASH


def retention_ms(queue: Queue, state: State) -> int:
    """How long a finished job is kept; a dead letter never less than a done one."""
    if state is State.DEAD:
        return max(queue.dead_retention_ms, queue.retention_ms)
    return queue.retention_ms
