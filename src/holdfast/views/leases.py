"""A job in hand, with all that is needed to run it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core import codec, policy
from holdfast.core.model import Job, Lease, Queue
from holdfast.durations import show_at
from holdfast.views.values import at_of, raw_of

_skim = msgspec.json.Decoder(msgspec.Raw).decode


class LeasedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is leased. `attempts` counts this one. `payload` is what its JSON says, or its
    text; where the bytes are neither they are in `payload_base64`. `checkpoint` is where an
    earlier attempt left off, and `timeout_ms` how long this one may take."""

    id: str
    queue: str
    task: str
    payload: Any
    payload_base64: str | UnsetType = UNSET
    content_type: str
    attempts: int
    max_attempts: int
    crashes: int
    redrives: int
    timeout_ms: int | None
    priority: int
    tenant: str | None
    key: str | None
    group: str | None
    after: tuple[str, ...]
    labels: dict[str, str]
    headers: dict[str, str]
    created_at: str
    due_at: str
    expires_at: str | None
    leased_at: str | None
    deadline_at: str | None
    worker: str | None
    cancel_requested: bool
    progress: float | None
    checkpoint: Any


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """The timed right to one job: `lease_ms` counts from when it was answered."""

    token: int
    lease_ms: int
    job: LeasedJob


def lease_view(lease: Lease, queue: Queue | None) -> LeaseView:
    return LeaseView(
        token=lease.token,
        lease_ms=lease.lease_ms,
        job=_leased(lease.job, queue or Queue(name=lease.job.queue)),
    )


def _leased(job: Job, queue: Queue) -> LeasedJob:
    payload, base64_ = _payload(job)
    checkpoint = job.checkpoint
    return LeasedJob(
        id=job.id,
        queue=job.queue,
        task=job.task,
        payload=payload,
        payload_base64=base64_,
        content_type=job.content_type,
        attempts=job.attempt,
        max_attempts=policy.attempts_max(queue, job),
        crashes=job.crashes,
        redrives=job.redrives,
        timeout_ms=policy.timeout_ms(queue, job),
        priority=job.priority,
        tenant=job.tenant,
        key=job.key,
        group=job.group,
        after=job.after,
        labels=job.labels,
        headers=job.headers,
        created_at=show_at(job.created_at),
        due_at=show_at(job.due_at),
        expires_at=at_of(job.expires_at),
        leased_at=at_of(job.leased_at),
        deadline_at=at_of(job.deadline_at),
        worker=job.worker,
        cancel_requested=job.cancel_requested,
        progress=job.progress,
        checkpoint=None if checkpoint is None else raw_of(checkpoint, codec.JSON),
    )


def _payload(job: Job) -> tuple[Any, str | UnsetType]:
    """What is no JSON, though it is called so, goes out as it is: a worker must get every byte."""
    try:
        if job.content_type == codec.JSON:
            job.payload.decode()
            return _skim(job.payload), UNSET
        return job.payload.decode(), UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, base64.b64encode(job.payload).decode()
