"""One line of a history, and what each engine call and each answer says in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec

from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, NewJob, Receipt, Renewal
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Outcome,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)

Phase = Literal["inv", "ok", "fail", "info", "note"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a line says of one job: as it was asked for, as it was answered, or as it is stored.

    `answer` is new, duplicate, refused, settled, lost or renewed. `verdict` is the name of a
    verdict or of an amendment. `digest` is of the payload, `tick` a schedule and its firing.
    """

    id: str
    queue: str = ""
    answer: str = ""
    verdict: str = ""
    token: int | None = None
    attempt: int | None = None
    lease_ms: int | None = None
    leased_at: int | None = None
    due_at: int | None = None
    expires_at: int | None = None
    created_at: int | None = None
    delay_ms: int | None = None
    expires_ms: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    digest: str = ""
    key: str | None = None
    key_window_ms: int | None = None
    key_policy: str = ""
    tick: str = ""
    reason: str = ""
    failure: str = ""
    target: str = ""
    state: str = ""
    cancel_requested: bool = False
    task: str = ""
    tenant: str | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    after_on: str = ""
    parent_death: str = ""
    then: tuple[Entry, ...] = ()


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`inv` before a call; afterwards `ok`, `fail` (certainly nothing happened) or `info` (nobody
    knows). A call without a second line is `info` too. `note` says something about the run."""

    process: str
    at_ns: int
    phase: Phase
    op: str
    call: int = 0
    jobs: tuple[Entry, ...] = ()
    queues: tuple[str, ...] = ()
    selective: bool = False
    count: int | None = None
    error: str = ""
    facts: dict[str, Any] = {}


def asked(op: str, argument: Any, amendment: Amendment | None = None) -> dict[str, Any]:
    """The fields of the `inv` line of a call."""
    match op:
        case "enqueue":
            return {"jobs": tuple(_new(job) for job in argument)}
        case "lease":
            request: LeaseRequest = argument
            selective = bool(request.ids) or request.tasks is not None
            return {"queues": request.queues, "selective": selective}
        case "renew":
            return {"jobs": tuple(_renewal(renewal) for renewal in argument)}
        case "settle":
            return {"jobs": tuple(_settlement(settlement) for settlement in argument)}
        case "amend":
            assert amendment is not None
            wanted: JobFilter = argument
            return {
                "jobs": tuple(_amendment(id_, amendment) for id_ in wanted.ids or ()),
                "selective": wanted.ids is None,
            }
        case "declare":
            return {"facts": msgspec.to_builtins(argument)}
        case "drop":
            return {"queues": (argument,)}
        case _:
            return {}


def answered(op: str, argument: Any, answer: Any) -> dict[str, Any]:
    """The fields of the `ok` line of a call."""
    match op:
        case "enqueue":
            receipts: Sequence[Receipt] = answer
            entries = tuple(Entry(id=r.id, answer=r.status, reason=r.code) for r in receipts)
            return {"jobs": entries}
        case "lease":
            return {"jobs": tuple(_granted(lease) for lease in answer)}
        case "renew":
            return {
                "jobs": tuple(
                    Entry(id=renewal.lease.id, answer="lost" if lease is None else "renewed")
                    for renewal, lease in zip(argument, answer, strict=True)
                )
            }
        case "settle":
            outcomes: Sequence[Outcome] = answer
            return {
                "jobs": tuple(
                    Entry(id=settlement.lease.id, answer=outcome)
                    for settlement, outcome in zip(argument, outcomes, strict=True)
                )
            }
        case "overdue":
            return {"jobs": tuple(_granted(lease) for lease in answer.leases)}
        case "expired":
            return {"jobs": tuple(stored(job) for job in answer.jobs)}
        case "amend" | "declare" | "recount":
            return {"count": int(answer)}
        case _:
            return {}


def stored(job: Job) -> Entry:
    """A job as the store shows it."""
    return Entry(
        id=job.id,
        queue=job.queue,
        state=job.state,
        token=job.token,
        attempt=job.attempt,
        leased_at=job.leased_at,
        due_at=job.due_at,
        expires_at=job.expires_at,
        created_at=job.created_at,
        priority=job.priority,
        digest=digest(job.payload),
        key=job.key,
        reason=job.reason or "",
        cancel_requested=job.cancel_requested,
    )


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:16]


def _new(job: NewJob) -> Entry:
    return Entry(
        id=job.id,
        queue=job.queue,
        delay_ms=job.delay_ms,
        expires_ms=job.expires_ms,
        priority=job.priority,
        max_attempts=job.overrides.max_attempts,
        digest=digest(job.payload),
        key=job.key,
        key_window_ms=None if job.key is None else job.key_window_ms,
        key_policy="" if job.key is None else job.key_policy,
        tick=_tick(job),
        tenant=job.tenant,
        group=job.group,
        after=job.after,
        after_on=job.after_on if job.after else "",
        parent_death=job.parent_death if job.after else "",
    )


def _tick(job: NewJob) -> str:
    """Which firing of which schedule the job stands for, by the headers a scheduler gives it."""
    schedule, tick = job.headers.get("schedule"), job.headers.get("tick")
    return "" if schedule is None or tick is None else f"{schedule}/{tick}"


def _granted(lease: Lease) -> Entry:
    job = lease.job
    return Entry(
        id=job.id,
        queue=job.queue,
        token=lease.token,
        attempt=job.attempt,
        lease_ms=lease.lease_ms,
        leased_at=job.leased_at,
        due_at=job.due_at,
        expires_at=job.expires_at,
        priority=job.priority,
        digest=digest(job.payload),
        cancel_requested=job.cancel_requested,
        task=job.task,
        tenant=job.tenant,
        group=job.group,
    )


def _renewal(renewal: Renewal) -> Entry:
    lease = renewal.lease
    lease_ms = lease.lease_ms if renewal.lease_ms is None else renewal.lease_ms
    return Entry(id=lease.id, token=lease.token, attempt=lease.job.attempt, lease_ms=lease_ms)


def _settlement(settlement: Settlement) -> Entry:
    lease, verdict = settlement.lease, settlement.verdict
    said = _verdict(verdict)
    return Entry(
        id=lease.id,
        queue=lease.job.queue,
        token=lease.token,
        attempt=lease.job.attempt,
        cancel_requested=lease.job.cancel_requested,
        **said,
    )


def _verdict(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Complete(then=then):
            return {"verdict": "complete", "then": tuple(_new(job) for job in then)}
        case Retry(delay_ms=delay_ms, failure=failure):
            said = "" if failure is None else failure.kind
            return {"verdict": "retry", "delay_ms": delay_ms, "failure": said}
        case Bury(reason=reason, failure=failure):
            said = "" if failure is None else failure.kind
            return {"verdict": "bury", "reason": reason, "failure": said}
        case Release(delay_ms=delay_ms):
            return {"verdict": "release", "delay_ms": delay_ms}
        case Forward(queue=queue):
            return {"verdict": "forward", "target": queue}
        case never:
            assert_never(never)


def _amendment(id_: str, amendment: Amendment) -> Entry:
    match amendment:
        case Cancel():
            return Entry(id=id_, verdict="cancel")
        case Redrive(delay_ms=delay_ms):
            return Entry(id=id_, verdict="redrive", delay_ms=delay_ms)
        case BuryWaiting(reason=reason):
            return Entry(id=id_, verdict="bury", reason=reason)
        case Edit(payload=payload, expires_ms=expires_ms, priority=priority):
            new = "" if payload is None else digest(payload)
            return Entry(
                id=id_, verdict="edit", digest=new, expires_ms=expires_ms, priority=priority
            )
        case Move(queue=queue):
            return Entry(id=id_, verdict="move", target=queue)
        case Retime(delay_ms=delay_ms):
            return Entry(id=id_, verdict="retime", delay_ms=delay_ms)
        case Expedite():
            return Entry(id=id_, verdict="expedite")
        case Delete():
            return Entry(id=id_, verdict="delete")
        case never:
            assert_never(never)
