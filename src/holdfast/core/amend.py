"""Applies an operator's amendment to a job, and matches jobs against a filter: the pure half of
`Engine.amend` and `Engine.find`, which SQL engines mirror.

Amending a waiting job clears its token, so that a late worker cannot settle a job that an operator
has changed. A leased job only ever gets a cancel request.
"""

from __future__ import annotations

from collections.abc import Container
from typing import assert_never

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.lifecycle import Change, bury, is_expired
from holdfast.core.model import Event, EventKind, Job, JobFilter, Queue, Reason, State, WaitingKind
from holdfast.core.verdict import (
    Amendment,
    BuryWaiting,
    Cancel,
    Delete,
    Edit,
    Expedite,
    Move,
    Redrive,
    Retime,
)

_EXACT = (
    "queue", "task", "tenant", "group", "key", "worker", "reason", "fingerprint", "version",
)  # fmt: skip
_FINISHED = (State.DONE, State.DEAD, State.CANCELLED)


def amendable(amendment: Amendment, wanted: JobFilter) -> tuple[State, ...]:
    """The states to which this amendment applies, within those of the filter.

    A redrive without a state means dead letters, so that finished jobs are not re-run by accident.
    """
    allowed: tuple[State, ...]
    match amendment:
        case Cancel():
            allowed = (State.WAITING, State.LEASED)
        case Redrive():
            allowed = _FINISHED if wanted.states is not None else (State.DEAD,)
        case BuryWaiting() | Retime() | Expedite():
            allowed = (State.WAITING,)
        case Edit() | Move():
            allowed = (State.WAITING, State.DEAD)
        case Delete(force=force):
            allowed = (State.WAITING, *_FINISHED, *((State.LEASED,) if force else ()))
        case never:
            assert_never(never)
    if wanted.states is None:
        return allowed
    return tuple(state for state in allowed if state in wanted.states)


def amend(
    job: Job, amendment: Amendment, queue: Queue, now: int, queues: Container[str] = ()
) -> Change | None:
    """The job after the amendment; None deletes it. The caller has checked `amendable`. `queues`
    are those that exist, as far as the amendment concerns them: see `target_of`."""
    if job.state is State.LEASED and isinstance(amendment, Cancel):
        requested = replace(job, cancel_requested=True, version=job.version + 1)
        event = Event(
            at=now,
            kind=EventKind.CANCEL_REQUESTED,
            attempt=job.attempt,
            by=amendment.by,
            text=amendment.text,
        )
        return Change(requested, event)
    changed = replace(job, token=None, version=job.version + 1)
    match amendment:
        case Delete():
            return None
        case Cancel(by=by, text=text):
            cancelled = replace(changed, state=State.CANCELLED, finished_at=now)
            return Change(cancelled, _event(job, EventKind.CANCELLED, now, by, text))
        case Redrive(by=by, text=text, delay_ms=delay_ms):
            redriven = redrive(changed, now + delay_ms)
            home = target_of(job, amendment)
            if home is not None and home in queues:
                redriven = replace(redriven, queue=home, origin=None)
            return Change(redriven, _event(job, EventKind.REDRIVEN, now, by, text), tail=True)
        case BuryWaiting(by=by, reason=reason, failure=failure):
            return bury(changed, queue, reason=reason, failure=failure, by=by, now=now)
        case Edit(by=by, text=text):
            fields = _edits(amendment, now)
            edited = replace(changed, **fields)
            names = sorted(fields.keys() - {"queue_expiry"})
            description = ": ".join(filter(None, (", ".join(names), text)))
            event = _event(job, EventKind.EDITED, now, by, description)
            if amendment.payload is None:
                return Change(edited, event)
            return Change(replace(edited, progress=None, checkpoint=None), event, forgets=True)
        case Move(queue=target, by=by, text=why):
            # A dead letter is redriven where an operator has put it.
            origin = None if job.state is State.DEAD else job.queue
            moved = replace(changed, queue=target, origin=origin, **_moves(amendment, job, now))
            text = f"from {job.queue} to {target}" + (f": {why}" if why else "")
            return Change(moved, _event(job, EventKind.MOVED, now, by, text), tail=True)
        case Retime(delay_ms=delay_ms, by=by, text=text):
            retimed = replace(changed, due_at=now + delay_ms)
            return Change(retimed, _event(job, EventKind.RETIMED, now, by, text), tail=True)
        case Expedite(by=by, text=text):
            sooner = replace(changed, due_at=min(job.due_at, now), priority=bounds.PRIORITY_MAX)
            return Change(sooner, _event(job, EventKind.EXPEDITED, now, by, text))
        case never:
            assert_never(never)


def target_of(job: Job, amendment: Amendment) -> str | None:
    """The other queue that the amendment moves the job to; None if it stays."""
    match amendment:
        case Move(queue=queue):
            return queue
        case Redrive() if job.state is State.DEAD:
            return job.origin
        case _:
            return None


def redrive(job: Job, due_at: int) -> Job:
    """A finished job, waiting again with its counters at zero; its history stays. A job that died
    by crashing its worker runs alone, so that it cannot take others down."""
    return replace(
        job,
        state=State.WAITING,
        attempt=0,
        crashes=0,
        releases=0,
        due_at=due_at,
        expires_at=None,
        queue_expiry=False,
        finished_at=None,
        reason=None,
        fingerprint=None,
        redrives=job.redrives + 1,
        result=None,
        cancel_requested=False,
        alone=job.reason is Reason.CRASHED,
    )


def matches(wanted: JobFilter, job: Job, now: int) -> bool:
    """Whether the job meets every condition of the filter."""
    for name in _EXACT:
        value = getattr(wanted, name)
        if value is not None and getattr(job, name) != value:
            return False
    if wanted.ids is not None and job.id not in wanted.ids:
        return False
    if wanted.parent is not None and wanted.parent not in job.after:
        return False
    if wanted.states is not None and job.state not in wanted.states:
        return False
    if wanted.waiting is not None and job.state is State.WAITING:
        kinds = waiting_kinds(job, now)
        if not any(kind in kinds for kind in wanted.waiting):
            return False
    if wanted.labels and not wanted.labels.items() <= job.labels.items():
        return False
    if wanted.search and not _found(wanted.search, job):
        return False
    return _in_time(wanted, job, now)


def waiting_kinds(job: Job, now: int) -> tuple[WaitingKind, ...]:
    """The kinds of a waiting job."""
    if job.attempt:
        return (WaitingKind.FAILED,)
    if job.due_at > now:
        return (WaitingKind.PENDING, WaitingKind.SCHEDULED)
    return (WaitingKind.PENDING,)


def _in_time(wanted: JobFilter, job: Job, now: int) -> bool:
    if wanted.created_from is not None and job.created_at < wanted.created_from:
        return False
    if wanted.created_before is not None and job.created_at >= wanted.created_before:
        return False
    if wanted.finished_before_ms is not None and (
        job.finished_at is None or job.finished_at > now - wanted.finished_before_ms
    ):
        return False
    if wanted.expired is not None:
        expired = job.state is State.WAITING and is_expired(job, now)
        return expired is wanted.expired
    return True


def _found(text: str, job: Job) -> bool:
    return any(text in field for field in (job.id, job.task, job.key or "", job.tenant or ""))


def _edits(edit: Edit, now: int) -> dict[str, object]:
    fields: dict[str, object] = {
        name: value
        for name in ("payload", "content_type", "priority", "labels", "headers")
        if (value := getattr(edit, name)) is not None
    }
    if edit.expires_ms is not None:
        fields |= {"expires_at": now + edit.expires_ms, "queue_expiry": False}
    return fields


def _moves(move: Move, job: Job, now: int) -> dict[str, object]:
    fields: dict[str, object] = {}
    if move.expires_ms is not None:
        fields |= {"expires_at": now + move.expires_ms, "queue_expiry": False}
    if move.reroute is not None:
        fields["overrides"] = replace(job.overrides, reroute=move.reroute)
    return fields


def _event(job: Job, kind: EventKind, now: int, by: str, text: str = "") -> Event:
    return Event(at=now, kind=kind, attempt=job.attempt, by=by, text=text)
