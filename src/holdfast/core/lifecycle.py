"""State transitions: job + verdict → the next job; `retry_policy` has decided on the verdict. And
the effect of a new job on the waiting job that holds its key; the engine looks up that job.

Engines call these functions or mirror them in SQL; the contract suite verifies the mirror.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from holdfast.core import bounds, checks, codec
from holdfast.core.fingerprint import fingerprint
from holdfast.core.lanes import lane_of
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
from holdfast.core.retry_policy import exhausted, is_crash
from holdfast.core.text import counted
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Verdict,
)


class Change(NamedTuple):
    """The changed job, its timeline event if there is one, and whether it goes to the tail.

    `forgets`: its progress and checkpoint are cleared, because they belong to another payload.
    """

    job: Job
    event: Event | None = None
    tail: bool = False
    forgets: bool = False


def is_expired(job: Job, now: int) -> bool:
    """Whether the job is past its expiry, whatever its state."""
    return job.expires_at is not None and job.expires_at <= now


def is_ready(job: Job, now: int) -> bool:
    """Whether the job waits, is due and has not expired."""
    return job.state is State.WAITING and job.due_at <= now and not is_expired(job, now)


def admit(new: NewJob, seq: int, now: int) -> Job:
    """The stored job for a new one."""
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


def inherits_expiry(new: NewJob, queue: Queue) -> bool:
    """Whether a new job expires by the setting of its queue."""
    return new.expires_ms is None and queue.expires_ms is not None


def with_queue_expiry(job: Job, queue: Queue) -> Job:
    """The job with the expiry that its queue gives it, if it waits and has none of its own. Every
    engine applies it to each job that it writes, so that the expiry counts from the due time."""
    own = job.expires_at is not None and not job.queue_expiry
    if job.state is not State.WAITING or own:
        return job
    at = None if queue.expires_ms is None else job.due_at + queue.expires_ms
    if at == job.expires_at:
        return job
    return replace(job, expires_at=at, queue_expiry=at is not None)


def is_key_held(new: NewJob, *, until: int, now: int, unfinished: bool) -> bool:
    """Whether an earlier job, whose window ends at `until`, holds its key against a new one."""
    return until > now or (unfinished and new.key_hold == "job")


def apply_key_policy(job: Job, new: NewJob, queue: Queue, now: int) -> Change | None:
    """The change to `job`, which holds the key of `new`: replaced or merged; None keeps it. A job
    that was moved to another queue is kept."""
    moved = job.queue != new.queue
    if job.state is not State.WAITING or moved or not updates_held_job(job, new):
        return None
    if new.key_policy == "replace":
        change = replace_waiting(job, new, now)
    else:
        payload = codec.merge_patch(job.payload, new.payload)
        checks.check_job(replace(new, payload=payload), queue.payload_max)
        change = merge_waiting(job, payload, now)
    if change.job is not job:
        lane_of(change.job, queue, strict=True)
    return change


def updates_held_job(job: Job, new: NewJob) -> bool:
    """Whether `new` changes the waiting job that holds its key. A payload is never merged into a
    job of another task: a caller who may enqueue one task may not be allowed the other."""
    same = job.task == new.task
    return new.key_policy == "replace" or (new.key_policy == "merge" and same)


def replace_waiting(job: Job, new: NewJob, now: int) -> Change:
    """Replace a waiting job with a later one under the same key. Its id, counters and output stay;
    progress and checkpoint do not.
    """
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
    """Give a waiting job the merged payload; only its progress and checkpoint are cleared."""
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
    """Lease a due job. The attempt is counted now, so that a job that kills its worker cannot run
    forever.
    """
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


def lease_dead(job: Job, *, token: int, worker: str, now: int, lease_ms: int) -> Job:
    """Lease a dead letter. No attempt is counted: its task does not run."""
    assert job.state is State.DEAD
    return replace(
        job,
        state=State.LEASED,
        token=token,
        worker=worker or None,
        leased_at=now,
        deadline_at=now + lease_ms,
        version=job.version + 1,
    )


def judge(job: Job | None, token: int, verdict: Verdict, *, lapsed: bool) -> Outcome | None:
    """Decide whether `verdict` may end the lease `token`: None to apply it, otherwise the answer to
    return.

    A late settle still wins while the job waits under its token; a repeat is harmless. The reaper's
    verdict counts only while the lease is `lapsed`, that is, past its deadline.
    """
    if job is None or job.token != token:
        return Outcome.LOST
    match job.state:
        case State.LEASED:
            # The lease may have been renewed since the reaper read it.
            return Outcome.LOST if is_reaped(verdict) and not lapsed else None
        case State.WAITING if isinstance(verdict, Retry | Release):
            return Outcome.SETTLED
        case State.WAITING:
            # The worker released the job after the reaper had read it.
            return Outcome.LOST if is_reaped(verdict) else None
        case State.DONE:
            return Outcome.SETTLED if isinstance(verdict, Complete) else Outcome.LOST
        case State.DEAD:
            # One release too many buries the job.
            last = isinstance(verdict, Release) and job.releases > bounds.RELEASES_MAX
            return Outcome.SETTLED if last or isinstance(verdict, Bury) else Outcome.LOST
        case State.CANCELLED:
            repeat = isinstance(verdict, Retry | Release | Forward)
            return Outcome.SETTLED if repeat else Outcome.LOST
        case never:
            assert_never(never)


def is_reaped(verdict: Verdict) -> bool:
    """Whether the verdict was made by the reaper about an overdue lease."""
    failure = verdict.failure if isinstance(verdict, Retry | Bury) else None
    return failure is not None and failure.kind is FailureKind.OVERDUE


def apply(job: Job, verdict: Verdict, queue: Queue, now: int) -> Change | None:
    """The job after `verdict` ended its lease; None deletes it. `queue` is the job's own; if its
    dead_queue does not exist, the engine passes a queue without one.
    """
    ended = replace(job, deadline_at=None, version=job.version + 1)
    if job.is_dead_letter:
        if not isinstance(verdict, Forward):
            return _end_dead_lease(ended, verdict, now)
        job = replace(job, cancel_requested=False)
        # As after a redrive: otherwise one that expired would die again at once.
        ended = replace(ended, expires_at=None, queue_expiry=False)
    match verdict:
        case Complete(result=result):
            return Change(replace(ended, state=State.DONE, finished_at=now, result=result))
        case Bury(reason=reason, failure=failure):
            # From here on, `releases` counts the leases of the dead letter.
            buried = replace(ended, crashes=job.crashes + is_crash(failure), releases=0)
            return _bury_attempt(buried, queue, reason=reason, failure=failure, now=now)
        case Retry() | Release() | Forward() if job.cancel_requested:
            failure = verdict.failure if isinstance(verdict, Retry) else None
            event = _event(job, EventKind.CANCELLED, now, failure=failure)
            return Change(replace(ended, state=State.CANCELLED, finished_at=now), event)
        case Retry(delay_ms=delay_ms, failure=failure):
            again = replace(ended, crashes=job.crashes + is_crash(failure))
            event = _event(job, EventKind.RETRIED, now, failure=failure)
            return _wait(again, queue, delay_ms, now, event)
        case Release(text=text, delay_ms=delay_ms, alone=alone, unstarted=unstarted):
            given_back = job.attempt > 0 and (unstarted or job.releases < bounds.RELEASES_MAX)
            attempt, releases = job.attempt - given_back, job.releases + (not unstarted)
            again = replace(ended, attempt=attempt, releases=releases, alone=job.alone or alone)
            if not given_back and exhausted(queue, job):
                often = counted(again.releases, "time")
                failure = Failure(message=f"released {often}, the last time: {text}")
                reason = Reason.ATTEMPTS
                return _bury_attempt(again, queue, reason=reason, failure=failure, now=now)
            event = _event(job, EventKind.RELEASED, now, text=text)
            return _wait(again, queue, delay_ms, now, event)
        case Forward(queue=target):
            event = _event(job, EventKind.FORWARDED, now, text=f"from {job.queue} to {target}")
            return Change(_restarted(ended, now, queue=target), event, tail=True)
        case never:
            assert_never(never)


def _bury_attempt(
    job: Job, queue: Queue, *, reason: Reason, failure: Failure | None, now: int
) -> Change:
    """Bury a job whose attempt has just ended."""
    change = bury(job, queue, reason=reason, failure=failure, by=job.worker or "", now=now)
    assert change.event is not None
    return change._replace(event=replace(change.event, started_at=job.leased_at))


def bury(
    job: Job, queue: Queue, *, reason: Reason, failure: Failure | None, by: str, now: int
) -> Change:
    """Make the job a dead letter, in its queue or in the queue's dead_queue."""
    target = queue.dead_queue
    text = f"{reason}: moved from {job.queue} to {target}" if target else str(reason)
    event = Event(
        at=now, kind=EventKind.BURIED, attempt=job.attempt, by=by, text=text, failure=failure
    )
    dead = replace(
        job,
        queue=target or job.queue,
        origin=job.queue if target else None,
        state=State.DEAD,
        due_at=min(job.due_at, now),
        finished_at=now,
        reason=reason,
        fingerprint=fingerprint(reason, failure, job.task),
    )
    return Change(dead, event)


def _end_dead_lease(
    ended: Job, verdict: Complete | Bury | Retry | Release, now: int
) -> Change | None:
    """Delete a dead letter that was handled; any other is dead again, with the reason and since the
    time of its death. A cancel request ends only the lease. `releases` counts the leases that
    handled nothing, and the timeline shows the first of them."""
    if isinstance(verdict, Complete):
        return None
    release = verdict if isinstance(verdict, Release) else Release()
    failure = None if isinstance(verdict, Release) else verdict.failure
    delay_ms = 0 if isinstance(verdict, Bury) else verdict.delay_ms
    # Without its token: a dead letter cannot tell a repeat from a lease of its task.
    again = replace(
        ended,
        state=State.DEAD,
        token=None,
        due_at=now + delay_ms,
        crashes=ended.crashes + is_crash(failure),
        releases=ended.releases + (not release.unstarted),
        alone=ended.alone or release.alone,
        cancel_requested=False,
    )
    if ended.releases >= bounds.RELEASES_MAX:
        return Change(again)
    text = ": ".join(filter(None, ("dead letter not handled", release.text)))
    return Change(again, _event(ended, EventKind.RELEASED, now, failure=failure, text=text))


def _restarted(job: Job, now: int, *, queue: str) -> Job:
    # Without its token: a late settle must not affect the job in its new queue.
    return replace(
        job,
        queue=queue,
        origin=job.queue,
        state=State.WAITING,
        finished_at=None,
        reason=None,
        fingerprint=None,
        attempt=0,
        crashes=0,
        releases=0,
        token=None,
        due_at=now,
        cancel_requested=False,
        alone=False,
    )


def _wait(job: Job, queue: Queue, delay_ms: int, now: int, event: Event) -> Change:
    """Put the job back to waiting: at the tail or, with `order = keep` and no delay, at its old
    place. A job of a strict group always keeps its place when there is no delay."""
    keep = (queue.order == "keep" or job.group is not None) and delay_ms == 0
    due_at = job.due_at if keep else now + delay_ms
    return Change(replace(job, state=State.WAITING, due_at=due_at), event, tail=not keep)


class ParentEffect(StrEnum):
    """The effect of a parent's end on a child that waits for it."""

    SATISFIED = "satisfied"
    CANCELLED = "cancelled"
    HELD = "held"


def after_parent(child: Job, ended: State | None) -> ParentEffect:
    """The effect on `child`; `ended` is the parent's last state, None if it was deleted."""
    lived = ended is State.DONE
    match child.after_on:
        case "either":
            return ParentEffect.SATISFIED
        case "death":
            return ParentEffect.CANCELLED if lived else ParentEffect.SATISFIED
        case "success" if lived or child.parent_death == "run":
            return ParentEffect.SATISFIED
        case "success":
            return ParentEffect.HELD if child.parent_death == "hold" else ParentEffect.CANCELLED
        case never:
            assert_never(never)


def orphan(child: Job, parent: str, ended: State | None, now: int) -> Change:
    """Cancel a waiting child whose parent did not end as required."""
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
    """An event that ends an attempt."""
    return Event(
        at=now,
        kind=kind,
        attempt=job.attempt,
        by=job.worker or "",
        text=text,
        failure=failure,
        started_at=job.leased_at,
    )


def timeline(job: Job) -> tuple[Event, ...]:
    """Every event of a job read by `get`, oldest first."""
    events = [Event(at=job.created_at, kind=EventKind.ENQUEUED), *job.events]
    if job.leased_at is not None:
        events.append(
            Event(
                at=job.leased_at,
                kind=EventKind.LEASED,
                attempt=job.attempt,
                by=job.worker or "",
            )
        )
    if job.state is State.DONE and job.finished_at is not None:
        events.append(
            Event(
                at=job.finished_at,
                kind=EventKind.COMPLETED,
                attempt=job.attempt,
                by=job.worker or "",
                started_at=job.leased_at,
            )
        )
    # The sort is stable: events of the same millisecond keep the order in which they were stored.
    return tuple(sorted(events, key=lambda event: event.at))
