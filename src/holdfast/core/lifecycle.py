"""The ways of a job through its states: job + verdict → the next job.

Engines apply these functions or mirror them in SQL; the contract suite proves the mirror.
Which verdict a job gets, `policy` has decided.
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
from holdfast.core.policy import exhausted, is_crash
from holdfast.core.text import counted
from holdfast.core.verdict import Bury, Complete, Forward, Outcome, Release, Retry, Verdict


class Change(NamedTuple):
    """The next job, its timeline row if it is worth one, and whether it goes to the tail.

    `forgets`: its progress and its checkpoint are gone, being of another payload.
    """

    job: Job
    event: Event | None = None
    tail: bool = False
    forgets: bool = False


def is_expired(job: Job, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def is_ready(job: Job, now: int) -> bool:
    return job.state is State.WAITING and job.due_at <= now and not is_expired(job, now)


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
            buried = replace(ended, crashes=job.crashes + is_crash(failure))
            return bury(buried, queue, reason=reason, failure=failure, by=job.worker or "", now=now)
        case Retry() | Release() | Forward() if job.cancel_requested:
            failure = verdict.failure if isinstance(verdict, Retry) else None
            event = _event(job, EventKind.CANCELLED, now, failure=failure)
            return Change(replace(ended, state=State.CANCELLED, finished_at=now), event)
        case Retry(delay_ms=delay_ms, failure=failure):
            again = replace(ended, crashes=job.crashes + is_crash(failure))
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
