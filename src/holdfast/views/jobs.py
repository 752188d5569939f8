"""A job, its timeline, and why it waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core import codec, policy
from holdfast.core.causes import Cause, has_room
from holdfast.core.flow import Slot, Waits
from holdfast.core.model import (
    AfterOn,
    Event,
    EventKind,
    Failure,
    FailureKind,
    Job,
    ParentDeath,
    Queue,
    Reason,
    Reroute,
    State,
)
from holdfast.core.timeline import timeline
from holdfast.durations import show_at
from holdfast.views.values import COMMAND, at_of, value_of


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a timeline; what went wrong in it stands beside."""

    at: str
    event: EventKind
    attempt: int
    worker: str
    text: str
    kind: FailureKind | UnsetType = UNSET
    type: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    exit_code: int | UnsetType | None = UNSET
    signal: int | UnsetType | None = UNSET
    trace: str | UnsetType = UNSET


class WaitsView(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a waiting job beside its time: open parents (the first of `parent_count`), the
    job of its group that goes first, and limits without room."""

    parents: tuple[str, ...]
    parent_count: int
    group_head: str | None
    limits: list[Slot]


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one job."""

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
    result: Any
    error: str | None
    reason: Reason | None
    fingerprint: str | None
    redrives: int
    exit_code: int | None
    output: str | None
    duration_ms: int | None
    failures: list[EventView]


class CauseView(msgspec.Struct, frozen=True, kw_only=True):
    """One of the reasons why a job is not running. `command` is what could be typed about it."""

    code: str
    text: str
    remedy: str
    command: str
    at: str | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running, the weightiest reason first."""

    id: str
    state: State
    reasons: list[CauseView]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a job, oldest first."""

    id: str
    state: State
    events: list[EventView]


class OutputView(msgspec.Struct, frozen=True, kw_only=True):
    """What a job printed, as far as it is kept."""

    id: str
    state: State
    output: str


def job_view(
    job: Job,
    queue: Queue | None,
    waits: Waits | None = None,
    *,
    value: Callable[[bytes, str], Any] = value_of,
) -> JobView:
    """Of a job that was read by `get`. `value` says what its payload and its result are."""
    # What went wrong before a job was done after all is in its failures.
    wrong = () if job.state is State.DONE else job.failures
    last = wrong[-1].failure if wrong else None
    return JobView(
        id=job.id,
        queue=job.queue,
        task=job.task,
        state=job.state,
        attempts=job.attempt,
        max_attempts=policy.attempts_max(queue or Queue(name=job.queue), job),
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
        result=None if job.result is None else value(job.result, codec.JSON),
        error=None if last is None else last.message,
        reason=job.reason,
        fingerprint=job.fingerprint,
        redrives=job.redrives,
        exit_code=_exit_code(job, last),
        output=None if job.output is None else _text(job.output),
        duration_ms=_duration_ms(job),
        failures=[event_view(event) for event in job.failures],
    )


def waits_view(waits: Waits | None) -> WaitsView | None:
    """None when nothing keeps the job but its time."""
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
    """What happened to a job that was read by `get`, oldest first."""
    return [event_view(event) for event in timeline(job)]


def event_view(event: Event) -> EventView:
    failure = event.failure
    return EventView(
        at=show_at(event.at),
        event=event.kind,
        attempt=event.attempt,
        worker=event.by,
        text=event.text,
        kind=UNSET if failure is None else failure.kind,
        type=UNSET if failure is None else failure.type,
        error=UNSET if failure is None else failure.message,
        exit_code=UNSET if failure is None else failure.exit_code,
        signal=UNSET if failure is None else failure.signal,
        trace=UNSET if failure is None else failure.trace,
    )


def explanation(job: Job, causes: list[Cause]) -> Explanation:
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


def output_view(job: Job) -> OutputView:
    return OutputView(id=job.id, state=job.state, output=_text(job.output or b""))


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def _exit_code(job: Job, last: Failure | None) -> int | None:
    """Of its last run: a command that is done has its own in its result."""
    if job.task == COMMAND and job.result is not None:
        result = value_of(job.result, codec.JSON)
        if isinstance(result, Mapping):
            code = result.get("exit_code")
            return code if isinstance(code, int) else None
    return None if last is None else last.exit_code


def _duration_ms(job: Job) -> int | None:
    if job.leased_at is None or job.finished_at is None:
        return None
    return max(job.finished_at - job.leased_at, 0)
