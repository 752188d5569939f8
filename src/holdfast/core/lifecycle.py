"""All policy: facts → Verdict, and job + verdict → the next job.

Engines apply these functions or mirror them in SQL; the contract suite proves the mirror.
Nowhere else is an attempt number compared with its bound.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.fingerprint import fingerprint
from holdfast.core.model import (
    Event,
    EventKind,
    Failure,
    FailureKind,
    Job,
    NewJob,
    Queue,
    Reason,
    State,
)
from holdfast.core.text import counted
from holdfast.core.verdict import (
    Bury,
    BuryWaiting,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Verdict,
)
from holdfast.core.workers import DISTRIBUTOR, addressee
from holdfast.durations import show_ms


class Change(NamedTuple):
    """The next job, its timeline row if it is worth one, and whether it goes to the tail.

    `forgets`: its progress and its checkpoint are gone, being of another payload.
    """

    job: Job
    event: Event | None = None
    tail: bool = False
    forgets: bool = False


def after_success(result: bytes | None, then: tuple[NewJob, ...] = ()) -> Verdict:
    return Complete(result, then)


def after_failure(queue: Queue, job: Job, failure: Failure, draw: float) -> Verdict:
    """An attempt failed. `draw` is a random number in [0, 1) for the jitter."""
    if job.cancel_requested:
        return Retry(0, failure)
    if failure.kind is FailureKind.CRASH and job.crashes + 1 >= crashes_max(queue, job):
        return Bury(Reason.CRASHED, failure)
    if exhausted(queue, job):
        return Bury(Reason.ATTEMPTS, failure)
    backoff = job.overrides.backoff or queue.backoff
    return Retry(backoff.delay_ms(max(job.attempt, 1), draw), failure)


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


def on_delivery(queue: Queue, job: Job, now: int) -> Verdict | None:
    """What must happen to a leased job instead of running it; None lets it run."""
    attempts_max_ = attempts_max(queue, job)
    if attempts_max_ and job.attempt > attempts_max_:
        return Bury(Reason.ATTEMPTS, Failure(message=f"attempt {job.attempt} of {attempts_max_}"))
    if job.leased_at is not None and is_expired(job, min(now, job.leased_at)):
        return Bury(Reason.EXPIRED, Failure(kind=FailureKind.EXPIRED, message="leased too late"))
    return None


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


def is_expired(job: Job, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def is_ready(job: Job, now: int) -> bool:
    return job.state is State.WAITING and job.due_at <= now and not is_expired(job, now)


def retention_ms(queue: Queue, state: State) -> int:
    """How long a finished job is kept; a dead letter never less than a done one."""
    if state is State.DEAD:
        return max(queue.dead_retention_ms, queue.retention_ms)
    return queue.retention_ms


def admit(new: NewJob, seq: int, now: int) -> Job:
    """A new job as it enters its queue."""
    return Job(
        id=new.id,
        task=new.task,
        queue=new.queue,
        payload=new.payload,
        content_type=new.content_type,
        priority=new.priority,
        seq=seq,
        created_at=now,
        due_at=now + new.delay_ms,
        expires_at=None if new.expires_ms is None else now + new.expires_ms,
        key=new.key,
        tenant=new.tenant,
        group=new.group,
        labels=new.labels,
        headers=new.headers,
        overrides=new.overrides,
        after=tuple(dict.fromkeys(new.after)) if new.after else (),
        after_on=new.after_on,
        parent_death=new.parent_death,
    )


def replace_waiting(job: Job, new: NewJob, now: int) -> Change:
    """A waiting job takes over what a later one under the same key says; its id and its counts
    stay, and the output of its runs, but not what they could have gone on from.

    One that was moved on to another queue, such as a dead letter, is left as it is.
    """
    if job.origin is not None:
        return Change(job)
    fresh = admit(new, job.seq, now)
    replaced = replace(
        fresh, id=job.id, created_at=job.created_at, attempt=job.attempt, crashes=job.crashes,
        releases=job.releases, redrives=job.redrives, version=job.version + 1,
        leased_at=job.leased_at, worker=job.worker, alone=job.alone, output=job.output,
        after=job.after, after_on=job.after_on, parent_death=job.parent_death,
    )  # fmt: skip
    event = Event(at=now, kind=EventKind.REPLACED, attempt=job.attempt, text="by its key")
    return Change(replaced, event, tail=True, forgets=True)


def merge_waiting(job: Job, payload: bytes, now: int) -> Change:
    """A waiting job with the payload that merging made; all stays but what a run could have gone
    on from. One that was moved on to another queue, such as a dead letter, is left as it is."""
    if job.origin is not None:
        return Change(job)
    merged = replace(
        job,
        payload=payload,
        progress=None,
        checkpoint=None,
        token=None,
        version=job.version + 1,
    )
    event = Event(at=now, kind=EventKind.REPLACED, attempt=job.attempt, text="merged by its key")
    return Change(merged, event, forgets=True)


def lease(job: Job, *, token: int, worker: str, now: int, lease_ms: int) -> Job:
    """The attempt is counted here, so that a job which kills its worker cannot run for ever."""
    assert job.state is State.WAITING
    assert job.due_at <= now
    return replace(
        job,
        state=State.LEASED,
        attempt=job.attempt + 1,
        token=token,
        worker=worker or None,
        leased_at=now,
        deadline_at=now + lease_ms,
        version=job.version + 1,
    )


def judge(job: Job | None, token: int, verdict: Verdict, *, lapsed: bool) -> Outcome | None:
    """May `verdict` end the lease `token`? None: apply it; else the answer to give.

    A late settle still wins while the job waits under its token; a repeat is harmless. The
    verdict on a lapsed lease must find it lapsed still: `lapsed` is whether its deadline is past.
    """
    if job is None or job.token != token:
        return Outcome.LOST
    match job.state:
        case State.LEASED:
            # A renewal may have been on its way when the reaper looked.
            return Outcome.LOST if is_reaped(verdict) and not lapsed else None
        case State.WAITING if isinstance(verdict, Retry | Release):
            return Outcome.SETTLED
        case State.WAITING:
            # Its worker was faster with a release, which gave back what this was decided on.
            return Outcome.LOST if is_reaped(verdict) else None
        case State.DONE:
            return Outcome.SETTLED if isinstance(verdict, Complete) else Outcome.LOST
        case State.DEAD:
            # A release too many buries the job.
            last = isinstance(verdict, Release) and job.releases > limits.RELEASES_MAX
            return Outcome.SETTLED if last or isinstance(verdict, Bury) else Outcome.LOST
        case State.CANCELLED:
            repeat = isinstance(verdict, Retry | Release | Forward)
            return Outcome.SETTLED if repeat else Outcome.LOST
        case never:
            assert_never(never)


def is_reaped(verdict: Verdict) -> bool:
    """Is it about a lease that lapsed?"""
    failure = verdict.failure if isinstance(verdict, Retry | Bury) else None
    return failure is not None and failure.kind is FailureKind.OVERDUE


def apply(job: Job, verdict: Verdict, queue: Queue, now: int) -> Change:
    """The job after its lease ended by `verdict`. `queue` is the job's own.

    A dead_queue must exist: the engine passes a queue without one otherwise.
    """
    ended = replace(job, deadline_at=None, version=job.version + 1)
    match verdict:
        case Complete(result=result):
            return Change(replace(ended, state=State.DONE, finished_at=now, result=result))
        case Bury(reason=reason, failure=failure):
            buried = replace(ended, crashes=job.crashes + _is_crash(failure))
            return bury(buried, queue, reason=reason, failure=failure, by=job.worker or "", now=now)
        case Retry() | Release() | Forward() if job.cancel_requested:
            failure = verdict.failure if isinstance(verdict, Retry) else None
            event = _event(job, EventKind.CANCELLED, now, failure=failure)
            return Change(replace(ended, state=State.CANCELLED, finished_at=now), event)
        case Retry(delay_ms=delay_ms, failure=failure):
            again = replace(ended, crashes=job.crashes + _is_crash(failure))
            event = _event(job, EventKind.RETRIED, now, failure=failure)
            return _wait(again, queue, delay_ms, now, event)
        case Release(text=text, delay_ms=delay_ms, alone=alone, unstarted=unstarted):
            given_back = job.attempt > 0 and (unstarted or job.releases < limits.RELEASES_MAX)
            attempt, releases = job.attempt - given_back, job.releases + (not unstarted)
            again = replace(ended, attempt=attempt, releases=releases, alone=job.alone or alone)
            if not given_back and exhausted(queue, job):
                often = counted(again.releases, "time")
                failure = Failure(message=f"released {often}, at last: {text}")
                by = job.worker or ""
                return bury(again, queue, reason=Reason.ATTEMPTS, failure=failure, by=by, now=now)
            event = _event(job, EventKind.RELEASED, now, text=text)
            return _wait(again, queue, delay_ms, now, event)
        case Forward(queue=target):
            event = _event(job, EventKind.FORWARDED, now, text=f"from {job.queue} to {target}")
            afresh = replace(_afresh(ended, now, queue=target), reason=None)
            return Change(afresh, event, tail=True)
        case never:
            assert_never(never)


def bury(
    job: Job, queue: Queue, *, reason: Reason, failure: Failure | None, by: str, now: int
) -> Change:
    """A dead letter in its place, or a new start in the queue's dead_queue.

    A job that came as a dead letter already stays: dead queues may lead in a circle.
    """
    target = queue.dead_queue if job.reason is None else None
    text = f"{reason}: moved from {job.queue} to {target}" if target else str(reason)
    event = Event(
        at=now, kind=EventKind.BURIED, attempt=job.attempt, by=by, text=text, failure=failure
    )
    if target is None:
        print_ = fingerprint(reason, failure, job.task)
        dead = replace(job, state=State.DEAD, finished_at=now, reason=reason, fingerprint=print_)
        return Change(dead, event)
    moved = replace(_afresh(job, now, queue=target), expires_at=None, reason=reason)
    return Change(moved, event, tail=True)


def _is_crash(failure: Failure | None) -> bool:
    return failure is not None and failure.kind is FailureKind.CRASH


def _afresh(job: Job, now: int, *, queue: str) -> Job:
    # Without its token: a late settle must not reach the job in its new life.
    return replace(
        job,
        queue=queue,
        origin=job.queue,
        state=State.WAITING,
        attempt=0,
        crashes=0,
        releases=0,
        token=None,
        due_at=now,
        cancel_requested=False,
        alone=False,
    )


def _wait(job: Job, queue: Queue, delay_ms: int, now: int, event: Event) -> Change:
    """Back to waiting: at the tail, or with `order = keep` and no delay at its old place. In a
    strict group nothing passes it, so there it keeps its place too."""
    keep = (queue.order == "keep" or job.group is not None) and delay_ms == 0
    due_at = job.due_at if keep else now + delay_ms
    return Change(replace(job, state=State.WAITING, due_at=due_at), event, tail=not keep)


class Parting(StrEnum):
    """What the end of a parent means for a child that waits for it."""

    SATISFIED = "satisfied"
    CANCELLED = "cancelled"
    HELD = "held"


def after_parent(child: Job, ended: State | None) -> Parting:
    """`ended` is the parent's last state; None when it was deleted before it ended."""
    lived = ended is State.DONE
    match child.after_on:
        case "either":
            return Parting.SATISFIED
        case "death":
            return Parting.CANCELLED if lived else Parting.SATISFIED
        case "success" if lived or child.parent_death == "run":
            return Parting.SATISFIED
        case "success":
            return Parting.HELD if child.parent_death == "hold" else Parting.CANCELLED
        case never:
            assert_never(never)


def orphan(child: Job, parent: str, ended: State | None, now: int) -> Change:
    """A waiting child that will never have what it waited for."""
    fate = "was deleted" if ended is None else f"is {ended}"
    text = f"parent {parent} {fate}"
    event = Event(at=now, kind=EventKind.CANCELLED, attempt=child.attempt, text=text)
    cancelled = replace(
        child, state=State.CANCELLED, finished_at=now, reason=Reason.DEPENDENCY, token=None,
        version=child.version + 1,
    )  # fmt: skip
    return Change(cancelled, event)


def _event(
    job: Job, kind: EventKind, now: int, *, failure: Failure | None = None, text: str = ""
) -> Event:
    return Event(
        at=now, kind=kind, attempt=job.attempt, by=job.worker or "", text=text, failure=failure
    )
