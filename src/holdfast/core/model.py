"""The data model: Queue, NewJob, Job, Lease, Failure, Event, and the values that calls exchange.

All are frozen. Instants (`…_at`) and durations (`…_ms`) are integer milliseconds. Structs that are
created by the thousand are excluded from garbage collection (`gc=False`): they cannot be part of a
cycle, and traversing them would cost more than creating them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.fairness import (
    Fairness,
    TenantView,
)
from holdfast.core.limits import Limit, Slot

RECEIPT = "sqs."
"""Headers with this prefix are made by an engine when it leases a job, and never stored."""


class State(StrEnum):
    """The stored state. Ready, delayed, overdue and expired follow from the job and the clock."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Whether the job is done, dead or cancelled."""
        return self not in (State.WAITING, State.LEASED)


STATES = tuple(State)
"""A state's position here is its code in every SQL store; never reorder."""

STORED_STATES = (*STATES, State.LEASED)
"""The state of each code in a SQL store. The last is that of a dead letter under lease: a job with
it is leased, but in no index of jobs that are at work."""


class WaitingKind(StrEnum):
    """Which of the waiting jobs: not attempted yet, those of them that are due later, or those
    with an attempt behind them, which failed."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a job died."""

    ATTEMPTS = "attempts"
    EXPIRED = "expired"
    CRASHED = "crashed"
    REJECTED = "rejected"
    EXPLICIT = "explicit"
    DEPENDENCY = "dependency"


class FailureKind(StrEnum):
    """How an attempt failed."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OVERDUE = "overdue"
    EXPIRED = "expired"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure of one attempt. `message` and `trace` are hostile text, cleaned on entry."""

    kind: FailureKind = FailureKind.ERROR
    type: str = ""
    message: str = ""
    trace: str = ""
    exit_code: int | None = None
    signal: int | None = None


class EventKind(StrEnum):
    """The kinds of timeline events. The first three are derived from the job's own columns; the
    others are stored."""

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
    """One event in a job's timeline. `by` is the worker or person that caused it. An event that
    ends an attempt has the instant at which that was leased; older versions did not store it."""

    at: int
    kind: EventKind
    attempt: int = 0
    by: str = ""
    text: str = ""
    failure: Failure | None = None
    started_at: int | None = None


class Reroute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reroute policy of an addressed job that its worker did not take in time: it moves to another
    worker with these labels, at most `most` times; `done` counts them. `ttl_ms` is its TTL there;
    None means the original one.
    """

    labels: dict[str, str] = {}
    most: int = 3
    done: int = 0
    ttl_ms: int | None = None


class Overrides(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's own settings; None means the queue's. With `reroute`, an addressed job moves to
    another worker when it expires, instead of dying."""

    lease_ms: int | None = None
    timeout_ms: int | None = None
    max_attempts: int | None = None
    max_crashes: int | None = None
    backoff: Backoff | None = None
    reroute: Reroute | None = None


NO_OVERRIDES = Overrides()

KeyPolicy = Literal["keep", "replace", "merge"]
KeyHold = Literal["job", "window"]
Order = Literal["tail", "keep"]
AfterOn = Literal["success", "death", "either"]
ParentDeath = Literal["cancel", "run", "hold"]


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's name and settings; every setting can change at any time.

    A job's priority grows by one for each `aging_ms` it has waited. At most `group_batch` jobs of a
    strict group are leased at a time, by one call. `weights` maps tenants to their weights. A job
    without an expiry of its own expires `expires_ms` after it is due.
    """

    name: str
    lease_ms: int = 30 * bounds.SECOND_MS
    timeout_ms: int | None = None
    max_attempts: int = 4
    max_crashes: int = 3
    backoff: Backoff = Backoff()
    order: Order = "tail"
    retention_ms: int = 7 * bounds.DAY_MS
    dead_retention_ms: int = 14 * bounds.DAY_MS
    dead_queue: str | None = None
    max_depth: int | None = None
    payload_max: int = bounds.QUEUE_PAYLOAD_MAX
    accepting: bool = True
    paused: bool = False
    limits: tuple[Limit, ...] = ()
    fairness: Fairness = "off"
    weights: dict[str, int] = {}
    aging_ms: int | None = None
    group_batch: int = 1
    expires_ms: int | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to enqueue. The producer chooses the id, so that a repeated enqueue adds nothing.

    An earlier job holds the key against this one while it is unfinished and until the window it was
    given ends; with `key_hold = "window"` until its window ends, even if it is unfinished.

    The job waits until every job in `after` has ended as `after_on` requires. `parent_death`
    decides what happens to it if one of them dies, or is cancelled or deleted, instead; if one
    succeeds that was required to die, the job is cancelled.
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
    key_window_ms: int = bounds.KEY_WINDOW_MS
    key_policy: KeyPolicy = "keep"
    tenant: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    overrides: Overrides = NO_OVERRIDES
    after: tuple[str, ...] = ()
    after_on: AfterOn = "success"
    parent_death: ParentDeath = "cancel"
    key_hold: KeyHold = "job"


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored job.

    Only `get` fills `events`, `output` and `result`; `get` and `lease` fill `checkpoint`,
    `progress` and `after`. `seq` is the engine's arrival number; `version` grows with every change
    except a renewal. `alone` means that an attempt shared a process that died. `fingerprint`
    identifies the failure that killed the job, `reason` why it is dead. `origin` is the queue it
    was moved from; that of a dead letter is where it died, if a dead queue holds it. `queue_expiry`
    means that `expires_at` follows from its due time and its queue's `expires_ms`.
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
    queue_expiry: bool = False

    @property
    def failures(self) -> tuple[Event, ...]:
        """The events of failed attempts, oldest first."""
        return tuple(event for event in self.events if event.failure is not None)

    @property
    def is_dead_letter(self) -> bool:
        """Whether the job is dead, or leased as a dead letter: only those have a reason."""
        leased = self.state is State.LEASED and self.reason is not None
        return leased or self.state is State.DEAD

    @property
    def state_code(self) -> int:
        """The position of its state in STORED_STATES."""
        if self.state is State.LEASED and self.reason is not None:
            return len(STORED_STATES) - 1
        return STATES.index(self.state)

    @property
    def has_ended(self) -> bool:
        """Whether the job no longer counts for its key, group, limits and children. A dead letter
        under lease has ended."""
        return self.state.finished or self.is_dead_letter

    @property
    def has_receipt(self) -> bool:
        """Whether its headers hold the receipt of a message: then its engine has no other copy, and
        needs the whole job to settle its lease."""
        return bool(self.headers) and any(name.startswith(RECEIPT) for name in self.headers)

    @property
    def runs_alone(self) -> bool:
        """Whether the next attempt gets a process of its own, so that a crash has one culprit."""
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
    """The jobs to lease: from `queues` in that order, or exactly those with `ids`.

    `tasks` None means any task; `lease_ms` None means the job's own or its queue's. With `dead`
    only dead letters are leased, without it only jobs that wait.
    """

    queues: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    limit: int = 1
    worker: str = ""
    wait_ms: int = 0
    lease_ms: int | None = None
    tasks: frozenset[str] | None = None
    dead: bool = False


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Intermediate data of a running attempt; None keeps the stored value."""

    progress: float | None = None
    checkpoint: bytes | None = None
    output: bytes | None = None


class Renewal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request to extend a lease's deadline; `lease_ms` None means its current duration."""

    lease: Lease
    lease_ms: int | None = None
    note: Note | None = None


class Status(StrEnum):
    """The outcome of enqueueing one job."""

    NEW = "new"
    DUPLICATE = "duplicate"
    REFUSED = "refused"


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The answer to one NewJob. For a duplicate by key, `id` is that of the earlier job.

    `seq` is the job's arrival number if the engine knows it without another read: always for a new
    job of a strict group, where it rises in the order of the group.
    """

    id: str
    status: Status
    code: str = ""
    text: str = ""
    seq: int | None = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its counts, exact up to `bounds.COUNT_EXACT_MAX`; `estimated` names those that
    are lower bounds. `oldest_age_ms` is the age of the ready job that has been due longest; None if
    there is none, or if it is unknown. `deleted_after_ms` is the age at which the store deletes a
    job without a dead letter, and `leased_max` the number of leases beyond which it grants none;
    None if it does not."""

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
    deleted_after_ms: int | None = None
    leased_max: int | None = None

    @property
    def is_age_unknown(self) -> bool:
        """True if jobs are ready, and it is not known for how long."""
        return self.ready > 0 and self.oldest_age_ms is None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter over jobs; every field given must match. `search` looks in id, task, key and tenant.
    `parent` is the id of a job, and selects those that were enqueued to run after it.

    `waiting` leaves out waiting jobs of no such kind, and says nothing about jobs in other states.
    `expired` selects waiting jobs past their expiry by the engine's clock; `finished_before_ms`
    those that finished at least that long ago; `version` a job unchanged since it was read.
    """

    ids: tuple[str, ...] | None = None
    queue: str | None = None
    states: tuple[State, ...] | None = None
    waiting: tuple[WaitingKind, ...] | None = None
    task: str | None = None
    tenant: str | None = None
    group: str | None = None
    key: str | None = None
    worker: str | None = None
    reason: Reason | None = None
    fingerprint: str | None = None
    parent: str | None = None
    labels: dict[str, str] | None = None
    search: str | None = None
    created_from: int | None = None
    created_before: int | None = None
    finished_before_ms: int | None = None
    expired: bool | None = None
    version: int | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of jobs, newest first. It may be short or empty: continue until `after` is None."""

    jobs: tuple[Job, ...]
    after: int | None = None


TallyBy = Literal["queue", "state", "task", "tenant", "reason", "worker", "group", "fingerprint"]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs have one value of the field that was counted."""

    value: str | None
    count: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A small versioned value stored with the jobs. Version 0 creates it; value None deletes it.

    `save` succeeds only on the version that was read, and stores version + 1. `load` fills
    `age_ms`: the time since it was saved, by the engine's own clock and never negative.
    """

    kind: str
    key: str
    value: bytes | None
    version: int = 0
    age_ms: int = 0


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a queue's limits, by (limit, key), and tenants, by name; bounded."""

    slots: tuple[Slot, ...] = ()
    tenants: tuple[TenantView, ...] = ()


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Why a due job still waits: parents that have not ended as required (the first of
    `parent_count`), the job that is ahead in its group, its limits and its tenant."""

    parents: tuple[str, ...] = ()
    parent_count: int = 0
    group_head: str | None = None
    slots: tuple[Slot, ...] = ()
    tenant: TenantView | None = None


COMMAND_TASK = "command"
"""The task that runs a command line; its result is the exit code and the output. Every worker has
it, without an application."""

WEBHOOK_TASK = "webhook"
"""The task that sends the request in its payload; every worker has it, too."""
