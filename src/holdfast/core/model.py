"""The nouns: Queue, NewJob, Job, Lease, Failure, Event, and what calls carry in and out.

All are frozen values. Instants (`…_at`) and durations (`…_ms`) are integer milliseconds. Those
that are made by the thousand are left out of garbage collection (`gc=False`): they cannot be part
of a cycle, and following them would cost more than making them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from holdfast.core import limits
from holdfast.core.backoff import Backoff
from holdfast.core.flow import Fairness, Limit


class State(StrEnum):
    """What is stored. Ready, delayed, overdue and expired are read from the job and the clock."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self not in (State.WAITING, State.LEASED)


STATES = tuple(State)
"""A state's position here is its code in every SQL store; never reorder."""


class Reason(StrEnum):
    """Why a job died."""

    ATTEMPTS = "attempts"
    EXPIRED = "expired"
    CRASHED = "crashed"
    REJECTED = "rejected"
    EXPLICIT = "explicit"
    DEPENDENCY = "dependency"


class FailureKind(StrEnum):
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OVERDUE = "overdue"
    EXPIRED = "expired"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong in one attempt. `message` and `trace` are hostile text, cleaned on entry."""

    kind: FailureKind = FailureKind.ERROR
    type: str = ""
    message: str = ""
    trace: str = ""
    exit_code: int | None = None
    signal: int | None = None


class EventKind(StrEnum):
    """What happens to a job. The first three are read from the job's own columns; the others add
    a row to its timeline, because they went wrong or were done by a person."""

    ENQUEUED = "enqueued"
    LEASED = "leased"
    COMPLETED = "completed"
    RETRIED = "retried"
    RELEASED = "released"
    BURIED = "buried"
    FORWARDED = "forwarded"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REDRIVEN = "redriven"
    EDITED = "edited"
    MOVED = "moved"
    RETIMED = "retimed"
    EXPEDITED = "expedited"
    REPLACED = "replaced"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a job's timeline. `by` is the worker or the person who did it."""

    at: int
    kind: EventKind
    attempt: int = 0
    by: str = ""
    text: str = ""
    failure: Failure | None = None


class Reroute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a job goes that its worker did not take in time: to another one with these labels, at
    most so often; `done` so often already. `ttl_ms` is the time it gets there; None is as long as
    it had at first."""

    labels: dict[str, str] = {}
    most: int = 3
    done: int = 0
    ttl_ms: int | None = None


class Overrides(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's own answer where it differs from its queue's; None asks the queue. With `reroute` a
    job that is addressed to one worker goes on to another instead of dying by its expiry."""

    lease_ms: int | None = None
    timeout_ms: int | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Backoff | None = None
    reroute: Reroute | None = None


NO_OVERRIDES = Overrides()

KeyPolicy = Literal["keep", "replace", "merge"]
Order = Literal["tail", "keep"]
AfterOn = Literal["success", "death", "either"]
ParentDeath = Literal["cancel", "run", "hold"]


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A named line and its settings; every one of them can change at any time.

    Each `aging_ms` that a job has waited counts as one more of priority. Of one strict group at
    most `group_batch` jobs are leased, together by one call. `weights` are of tenants.
    """

    name: str
    lease_ms: int = 30 * limits.SECOND_MS
    timeout_ms: int | None = None
    max_attempts: int = 4
    max_crashes: int = 3
    backoff: Backoff = Backoff()
    order: Order = "tail"
    retention_ms: int = 7 * limits.DAY_MS
    dead_retention_ms: int = 14 * limits.DAY_MS
    dead_queue: str | None = None
    max_depth: int | None = None
    payload_max: int = limits.PAYLOAD_MAX
    accepting: bool = True
    paused: bool = False
    limits: tuple[Limit, ...] = ()
    fairness: Fairness = "off"
    weights: dict[str, int] = {}
    aging_ms: int | None = None
    group_batch: int = 1


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job on its way in. The id is the producer's, so that a repeated enqueue adds nothing.

    It waits until every job of `after` has ended as `after_on` says. `parent_death` is what comes
    of it when one died instead, or was cancelled or deleted; if one is done that had to die, it is
    cancelled.
    """

    id: str
    task: str
    queue: str = "default"
    payload: bytes = b""
    content_type: str = "application/json"
    priority: int = 0
    delay_ms: int = 0
    expires_ms: int | None = None
    key: str | None = None
    key_window_ms: int = limits.KEY_WINDOW_MS
    key_policy: KeyPolicy = "keep"
    tenant: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    after: tuple[str, ...] = ()
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as the engine knows it.

    `events`, `output` and `result` are filled by `get` alone; `checkpoint`, `progress` and `after`
    by `get` and by `lease`. `seq` is the engine's number of arrival, `version` grows at every
    change but a renewal. `alone` says that a run of it shared a process that died. `fingerprint`
    is of what killed it.
    """

    id: str
    task: str
    queue: str
    payload: bytes = b""
    content_type: str = "application/json"
    priority: int = 0
    state: State = State.WAITING
    seq: int = 0
    version: int = 1
    attempt: int = 0
    crashes: int = 0
    releases: int = 0
    created_at: int = 0
    due_at: int = 0
    expires_at: int | None = None
    leased_at: int | None = None
    deadline_at: int | None = None
    finished_at: int | None = None
    token: int | None = None
    worker: str | None = None
    cancel_requested: bool = False
    alone: bool = False
    reason: Reason | None = None
    fingerprint: str | None = None
    redrives: int = 0
    key: str | None = None
    tenant: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    after: tuple[str, ...] = ()
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"
    origin: str | None = None
    progress: float | None = None
    checkpoint: bytes | None = None
    output: bytes | None = None
    result: bytes | None = None
    events: tuple[Event, ...] = ()

    @property
    def failures(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.failure is not None)

    @property
    def runs_alone(self) -> bool:
        """Its next run gets a process of its own, so that a death there has one possible cause."""
        return self.alone or self.crashes > 0


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The timed right to one job. `lease_ms` counts from when the engine answered."""

    job: Job
    token: int
    lease_ms: int

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def cancel_requested(self) -> bool:
        return self.job.cancel_requested


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a worker asks for: from `queues` in that order, or just those with `ids`.

    `tasks` None means any task; `lease_ms` None means each job's own or its queue's.
    """

    queues: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    limit: int = 1
    worker: str = ""
    wait_ms: int = 0
    lease_ms: int | None = None
    tasks: frozenset[str] | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run leaves behind while it goes on; None leaves what is there."""

    progress: float | None = None
    checkpoint: bytes | None = None
    output: bytes | None = None


class Renewal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    lease: Lease
    lease_ms: int | None = None
    note: Note | None = None


class Status(StrEnum):
    NEW = "new"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The answer to one NewJob; `id` is the earlier job's when it is a duplicate by key."""

    id: str
    status: Status
    code: str = ""
    text: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and how it stands. Counts are exact up to `limits.COUNT_EXACT_MAX`; `estimated`
    names those that are at least so many. `oldest_age_ms` is of the longest-due ready job."""

    queue: Queue
    ready: int = 0
    delayed: int = 0
    blocked: int = 0
    leased: int = 0
    overdue: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    oldest_age_ms: int | None = None
    estimated: frozenset[str] = frozenset()


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs; every field given must match. `search` looks into id, task, key and tenant.

    `expired` asks for waiting jobs past their expiry by the engine's clock, `finished_before_ms`
    for those that finished at least so long ago, `version` for a job not changed since it was read.
    """

    ids: tuple[str, ...] | None = None
    queue: str | None = None
    states: tuple[State, ...] | None = None
    task: str | None = None
    tenant: str | None = None
    group: str | None = None
    key: str | None = None
    worker: str | None = None
    reason: Reason | None = None
    fingerprint: str | None = None
    labels: dict[str, str] | None = None
    search: str | None = None
    created_from: int | None = None
    created_before: int | None = None
    finished_before_ms: int | None = None
    expired: bool | None = None
    version: int | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. A page may be short or even empty: go on while `after` is not None."""

    jobs: tuple[Job, ...]
    after: int | None = None


TallyBy = Literal["queue", "state", "task", "tenant", "reason", "worker", "group", "fingerprint"]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    value: str | None
    count: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A small versioned value beside the jobs. Version 0 means "not there yet"; value None deletes.

    `save` succeeds only on the version that was read; what it stores has version + 1. `age_ms` is
    filled by `load`: the time since it was saved, by the engine's own clock and never negative.
    """

    kind: str
    key: str
    value: bytes | None
    version: int = 0
    age_ms: int = 0
