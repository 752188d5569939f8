"""Read jobs, and views of jobs and leases: the full job, its timeline, its output, why it waits.

Nothing is changed here.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core import codec, retry_policy
from holdfast.core.checks import clean_text
from holdfast.core.explain import Cause, has_room
from holdfast.core.lifecycle import timeline
from holdfast.core.limits import Slot
from holdfast.core.model import (
    COMMAND_TASK,
    AfterOn,
    Event,
    EventKind,
    Failure,
    FailureKind,
    Job,
    JobFilter,
    Lease,
    ParentDeath,
    Queue,
    Reason,
    Reroute,
    State,
    Waits,
)
from holdfast.core.text import counted
from holdfast.engines.base import Engine
from holdfast.errors import NotFound, UsageError
from holdfast.notation.durations import show_at
from holdfast.ops.queues import queue_settings
from holdfast.ops.views import at_of, raw_of, skip_json, value_of

_PAGE = 100
_PAGES_MAX = 20
_AT_ONCE = 50


async def require_job(engine: Engine, id: str) -> Job:
    """The job with its output, failures and events. NotFound if there is none."""
    job = await engine.get(id)
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}")
    return job


async def find_jobs(
    engine: Engine, wanted: JobFilter, limit: int, after: int | None = None
) -> tuple[list[Job], int | None]:
    """Up to `limit` jobs, and the cursor to continue from. The walk ends after a bounded number of
    pages, since the next match may be far away."""
    jobs: list[Job] = []
    for _ in range(_PAGES_MAX + limit // _PAGE):
        page = await engine.find(wanted, limit=min(limit - len(jobs), _PAGE), after=after)
        jobs += page.jobs
        after = page.after
        if after is None or len(jobs) >= limit:
            break
    return jobs, after


async def read_views(
    engine: Engine, jobs: Iterable[Job], value: Callable[[bytes, str], Any] = value_of
) -> list[JobView]:
    """The full views of jobs that `find` listed without their output and failures."""
    listed = list(jobs)
    ids = [job.id for job in listed]
    queues = await queue_settings(engine, {job.queue for job in listed})
    views = []
    for start in range(0, len(ids), _AT_ONCE):
        batch = ids[start : start + _AT_ONCE]
        # A job that is missing now was deleted since it was listed.
        found = [job for job in await asyncio.gather(*map(engine.get, batch)) if job is not None]
        views += [job_view(job, queues.get(job.queue), value=value) for job in found]
    return views


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a timeline, with the failure of its attempt, if any. A row that ends an attempt
    has `started_at`, the time at which its `worker` leased the job."""

    at: str
    event: EventKind
    attempt: int
    worker: str
    text: str
    started_at: str | UnsetType = UNSET
    kind: FailureKind | UnsetType = UNSET
    type: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    exit_code: int | UnsetType | None = UNSET
    signal: int | UnsetType | None = UNSET
    trace: str | UnsetType = UNSET


class WaitsView(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons that hold a due job back: unfinished parents (the first of `parent_count`), the
    job at the head of its group, and full limits."""

    parents: tuple[str, ...]
    parent_count: int
    group_head: str | None
    limits: list[Slot]


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one job. `payload` is the value of JSON, or text; for other bytes it is
    their number, and they are in `payload_base64`. `payload_bytes` is its size."""

    id: str
    queue: str
    task: str
    state: State
    attempts: int
    max_attempts: int
    crashes: int
    priority: int
    tenant: str | None
    key: str | None
    group: str | None
    after: tuple[str, ...]
    after_on: AfterOn | None
    parent_death: ParentDeath | None
    waits_for: WaitsView | None
    labels: dict[str, str]
    headers: dict[str, str]
    created_at: str
    due_at: str
    expires_at: str | None
    leased_at: str | None
    deadline_at: str | None
    finished_at: str | None
    worker: str | None
    cancel_requested: bool
    origin: str | None
    reroute: Reroute | None
    progress: float | None
    payload: Any
    payload_base64: str | UnsetType = UNSET
    payload_bytes: int
    content_type: str
    result: Any
    error: str | None
    reason: Reason | None
    fingerprint: str | None
    redrives: int
    exit_code: int | None
    output: str | None
    duration_ms: int | None
    failures: list[EventView]


class JobRowView(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a table: without its payload, result, output, headers and failures."""

    id: str
    queue: str
    task: str
    state: State
    attempts: int
    max_attempts: int
    crashes: int
    priority: int
    tenant: str | None
    key: str | None
    group: str | None
    labels: dict[str, str]
    created_at: str
    due_at: str
    expires_at: str | None
    leased_at: str | None
    deadline_at: str | None
    finished_at: str | None
    worker: str | None
    cancel_requested: bool
    origin: str | None
    reason: Reason | None
    fingerprint: str | None
    redrives: int
    duration_ms: int | None


class CauseView(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a job is not running. `command` is a CLI command that may help."""

    code: str
    text: str
    remedy: str
    command: str
    at: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why a job is not running, the most important reason first."""

    id: str
    state: State
    reasons: list[CauseView]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a job, oldest first."""

    id: str
    state: State
    events: list[EventView]


class OutputView(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a job, or of one attempt of it, as far as it is stored."""

    id: str
    state: State
    attempt: int
    output: str


def job_view(
    job: Job,
    queue: Queue | None,
    waits: Waits | None = None,
    *,
    value: Callable[[bytes, str], Any] = value_of,
) -> JobView:
    """The view of a job that `get` read. `value` converts its payload and its result."""
    # A job that is done in the end shows its earlier failures only in `failures`.
    failures = () if job.state is State.DONE else job.failures
    last = failures[-1].failure if failures else None
    return JobView(
        id=job.id,
        queue=job.queue,
        task=job.task,
        state=job.state,
        attempts=job.attempt,
        max_attempts=retry_policy.attempts_max(queue or Queue(name=job.queue), job),
        crashes=job.crashes,
        priority=job.priority,
        tenant=job.tenant,
        key=job.key,
        group=job.group,
        after=job.after,
        after_on=job.after_on if job.after else None,
        parent_death=job.parent_death if job.after else None,
        waits_for=waits_view(waits),
        labels=job.labels,
        headers=job.headers,
        created_at=show_at(job.created_at),
        due_at=show_at(job.due_at),
        expires_at=at_of(job.expires_at),
        leased_at=at_of(job.leased_at),
        deadline_at=at_of(job.deadline_at),
        finished_at=at_of(job.finished_at),
        worker=job.worker,
        cancel_requested=job.cancel_requested,
        origin=job.origin,
        reroute=job.overrides.reroute,
        progress=job.progress,
        payload=value(job.payload, job.content_type),
        payload_base64=UNSET if _is_text(job.payload) else _base64(job.payload),
        payload_bytes=len(job.payload),
        content_type=job.content_type,
        result=None if job.result is None else value(job.result, codec.JSON),
        error=None if last is None else last.message,
        reason=job.reason,
        fingerprint=job.fingerprint,
        redrives=job.redrives,
        exit_code=_exit_code(job, last),
        output=None if job.output is None else _text(job.output),
        duration_ms=duration_ms(job),
        failures=[event_view(event) for event in job.failures],
    )


async def read_rows(engine: Engine, jobs: Iterable[Job]) -> list[JobRowView]:
    """The rows of jobs that `find` or `find_rows` listed."""
    listed = list(jobs)
    queues = await queue_settings(engine, {job.queue for job in listed})
    return [job_row(job, queues.get(job.queue)) for job in listed]


def job_row(job: Job, queue: Queue | None) -> JobRowView:
    """The row of a listed job."""
    return JobRowView(
        id=job.id,
        queue=job.queue,
        task=job.task,
        state=job.state,
        attempts=job.attempt,
        max_attempts=retry_policy.attempts_max(queue or Queue(name=job.queue), job),
        crashes=job.crashes,
        priority=job.priority,
        tenant=job.tenant,
        key=job.key,
        group=job.group,
        labels=job.labels,
        created_at=show_at(job.created_at),
        due_at=show_at(job.due_at),
        expires_at=at_of(job.expires_at),
        leased_at=at_of(job.leased_at),
        deadline_at=at_of(job.deadline_at),
        finished_at=at_of(job.finished_at),
        worker=job.worker,
        cancel_requested=job.cancel_requested,
        origin=job.origin,
        reason=job.reason,
        fingerprint=job.fingerprint,
        redrives=job.redrives,
        duration_ms=duration_ms(job),
    )


def waits_view(waits: Waits | None) -> WaitsView | None:
    """None if nothing but its due time holds the job back."""
    if waits is None:
        return None
    full = [slot for slot in waits.slots if not has_room(slot)]
    if not (waits.parent_count or waits.group_head or full):
        return None
    return WaitsView(
        parents=waits.parents,
        parent_count=waits.parent_count,
        group_head=waits.group_head,
        limits=full,
    )


def timeline_view(job: Job) -> list[EventView]:
    """The events of a job that `get` read, oldest first."""
    return [event_view(event) for event in timeline(job)]


def event_view(event: Event) -> EventView:
    """One event with the failure of its attempt."""
    failure = event.failure
    return EventView(
        at=show_at(event.at),
        event=event.kind,
        attempt=event.attempt,
        worker=event.by,
        text=event.text,
        started_at=UNSET if event.started_at is None else show_at(event.started_at),
        kind=UNSET if failure is None else failure.kind,
        type=UNSET if failure is None else failure.type,
        error=UNSET if failure is None else failure.message,
        exit_code=UNSET if failure is None else failure.exit_code,
        signal=UNSET if failure is None else failure.signal,
        trace=UNSET if failure is None else failure.trace,
    )


def explanation(job: Job, causes: list[Cause]) -> Explanation:
    """The causes that `explain_job` found, as people read them."""
    reasons = [
        CauseView(
            code=cause.code,
            text=cause.text,
            remedy=cause.remedy,
            command=cause.command,
            at=at_of(cause.at),
        )
        for cause in causes
    ]
    return Explanation(id=job.id, state=job.state, reasons=reasons)


def output_view(job: Job, attempt: int | None = None) -> OutputView:
    """The output of a job that `get` read: of one attempt, or the last that is stored. UsageError
    if there was no such attempt."""
    if attempt is None:
        output = _text(job.output or b"")
    elif not 1 <= attempt <= job.attempt:
        attempts = counted(job.attempt, "attempt")
        raise UsageError(f"job {job.id} has had {attempts}, and no attempt {attempt}")
    else:
        output = _output_of(job, attempt)
    return OutputView(id=job.id, state=job.state, attempt=attempt or job.attempt, output=output)


def _output_of(job: Job, attempt: int) -> str:
    """The output of a failed attempt is in its failure; that of the last one is the job's. Until
    that writes something or is done, the job has the output of an earlier one."""
    own: Failure | None = None
    earlier = ""
    for event in job.events:
        failure = event.failure
        if event.kind is EventKind.REDRIVEN:
            own = None
        elif failure is not None and failure.kind is not FailureKind.EXPIRED:
            own = failure if event.attempt == attempt else own
            earlier = failure.output or earlier
    if own is not None and (own.output or own.kind is not FailureKind.OVERDUE):
        return own.output
    if attempt != job.attempt:
        return ""
    output = _text(job.output or b"")
    return "" if job.state is not State.DONE and clean_text(output) == earlier else output


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _exit_code(job: Job, last: Failure | None) -> int | None:
    """The exit code of the last run; a command that is done stores it in its result."""
    if job.task == COMMAND_TASK and job.result is not None:
        result = value_of(job.result, codec.JSON)
        if isinstance(result, Mapping):
            code = result.get("exit_code")
            return code if isinstance(code, int) else None
    return None if last is None else last.exit_code


def duration_ms(job: Job) -> int | None:
    """How long the last attempt of a finished job took."""
    if job.leased_at is None or job.finished_at is None:
        return None
    return max(job.finished_at - job.leased_at, 0)


class LeasedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job under a lease. `attempts` includes the current one. `payload` is the value of JSON, or
    text; other bytes are in `payload_base64`. `checkpoint` is where an earlier attempt stopped, and
    `timeout_ms` bounds this one. Only a dead letter has a `reason`; its `origin` is the queue in
    which it died, if that has a dead queue.
    """

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
    reason: Reason | None
    origin: str | None


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """The timed right to one job: `lease_ms` counts from the response."""

    token: int
    lease_ms: int
    job: LeasedJob


def lease_view(lease: Lease, queue: Queue | None) -> LeaseView:
    """A lease with all that is needed to run its job."""
    return LeaseView(
        token=lease.token,
        lease_ms=lease.lease_ms,
        job=_leased(lease.job, queue or Queue(name=lease.job.queue)),
    )


def _leased(job: Job, queue: Queue) -> LeasedJob:
    payload, payload_base64 = _leased_payload(job)
    checkpoint = job.checkpoint
    return LeasedJob(
        id=job.id,
        queue=job.queue,
        task=job.task,
        payload=payload,
        payload_base64=payload_base64,
        content_type=job.content_type,
        attempts=job.attempt,
        max_attempts=retry_policy.attempts_max(queue, job),
        crashes=job.crashes,
        redrives=job.redrives,
        timeout_ms=retry_policy.timeout_ms(queue, job),
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
        reason=job.reason,
        origin=job.origin,
    )


def _leased_payload(job: Job) -> tuple[Any, str | UnsetType]:
    """Bytes that are not the JSON or text they claim to be go out in base64, unchanged."""
    try:
        if job.content_type == codec.JSON:
            job.payload.decode()
            return skip_json(job.payload), UNSET
        return job.payload.decode(), UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, _base64(job.payload)
