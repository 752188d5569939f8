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
    """Kinds of waiting jobs: not attempted yet, those of them that are due later, and those whose
    last attempt failed."""

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
    """The failure of one attempt. Its texts are hostile, and cleaned on entry. `output` is the log
    of the attempt, with the middle of a long one left out; older versions did not store it."""

    kind: FailureKind = FailureKind.ERROR
    type: str = ""
    message: str = ""
    trace: str = ""
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""


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
    """Labels that the other worker must have."""
    most: int = 3
    """How often the job moves, at most."""
    done: int = 0
    """How often it has moved."""
    ttl_ms: int | None = None
    """Its TTL at the other worker; None means the original one."""


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
    """How long a worker keeps a job without renewing its lease."""
    timeout_ms: int | None = None
    """How long an attempt may run; None sets no limit."""
    max_attempts: int = 4
    """Attempts after which a failing job becomes a dead letter; 0 is unlimited."""
    max_crashes: int = 3
    """Crashes of its worker after which a job becomes a dead letter."""
    backoff: Backoff = Backoff()
    """The delay between attempts."""
    order: Order = "tail"
    """Where a retried job waits: behind the jobs that are due, or in its old place."""
    retention_ms: int = 7 * bounds.DAY_MS
    """How long done and cancelled jobs are kept."""
    dead_retention_ms: int = 14 * bounds.DAY_MS
    """How long dead letters are kept."""
    dead_queue: str | None = None
    """The queue that dead letters move to; None leaves them in place."""
    max_depth: int | None = None
    """New jobs are refused while this many wait; None sets no limit."""
    payload_max: int = bounds.QUEUE_PAYLOAD_MAX
    """The largest payload of a job, in bytes."""
    accepting: bool = True
    """False refuses new jobs."""
    paused: bool = False
    """True leases no job."""
    limits: tuple[Limit, ...] = ()
    """Limits on concurrency and rates: see `Holdfast.limit`."""
    fairness: Fairness = "off"
    """Whether tenants are ignored, take turns by weight, or wait behind others if they take too
    much."""
    weights: dict[str, int] = {}
    """Weights of tenants; the others have 1."""
    aging_ms: int | None = None
    """The waiting time after which a job's priority grows by one."""
    group_batch: int = 1
    """How many jobs of a strict group one call leases."""
    expires_ms: int | None = None
    """How long after its due time a job that has not started expires."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to enqueue. The producer chooses the id, so that a repeated enqueue adds nothing.

    An earlier job holds the key against this one while it is unfinished and until the window it was
    given ends; with `key_hold = "window"` until its window ends, even if it is unfinished.

    The job waits until every job in `after` has ended as `after_on` requires. `parent_death`
    decides what happens to it if one of them dies, or is cancelled or deleted, instead; if one
    succeeds that was required to die, the job is cancelled.
    """

    id: str
    """Enqueueing an existing id adds nothing."""
    task: str
    """The name of the task, e.g. mail:send."""
    queue: str = "default"
    payload: bytes = b""
    """The arguments, as bytes."""
    content_type: str = "application/json"
    priority: int = 0
    """From -100 to 100; higher ones run first."""
    delay_ms: int = 0
    """The job is due this long after it was enqueued."""
    expires_ms: int | None = None
    """The job dies if it has not started this long after it was enqueued."""
    key: str | None = None
    """While another job holds this key, the new one is a duplicate."""
    key_window_ms: int = bounds.KEY_WINDOW_MS
    """How long the key is held at least."""
    key_policy: KeyPolicy = "keep"
    """What a duplicate does to the payload of the waiting job that holds the key."""
    tenant: str | None = None
    """The customer or user that the job belongs to, for limits and fairness."""
    group: str | None = None
    """Jobs of a group run one at a time, in order."""
    labels: dict[str, str] = {}
    """Names and values to find the job by."""
    headers: dict[str, str] = {}
    """Names and values that travel with the job, such as a trace."""
    overrides: Overrides = NO_OVERRIDES
    """Settings of the job that replace those of its queue."""
    after: tuple[str, ...] = ()
    """Ids of the jobs that must end first."""
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
    """Arrival number in the store."""
    version: int = 1
    """Grows with every change except a renewal."""
    attempt: int = 0
    """Attempts so far, the running one included."""
    crashes: int = 0
    """How often the job crashed its worker."""
    releases: int = 0
    """How often it was given back without a failure."""
    created_at: int = 0
    due_at: int = 0
    """From when on it may be leased."""
    expires_at: int | None = None
    """When it expires if it has not started."""
    leased_at: int | None = None
    deadline_at: int | None = None
    """When its lease ends."""
    finished_at: int | None = None
    token: int | None = None
    """The token of the current or the last lease."""
    worker: str | None = None
    """The worker that has it, or had it last."""
    cancel_requested: bool = False
    """True if an operator cancelled it while it ran."""
    alone: bool = False
    """True if it next runs in a process of its own, since one that it shared has died."""
    reason: Reason | None = None
    """Why it is dead."""
    fingerprint: str | None = None
    """Identifies the failure that killed it: the same for jobs with the same cause."""
    redrives: int = 0
    """How often it was put back after it died."""
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
    """The queue it was moved from."""
    progress: float | None = None
    """From 0 to 1, as the handler reported it."""
    checkpoint: bytes | None = None
    """The last checkpoint of the handler, as JSON."""
    output: bytes | None = None
    """The output of the last attempt."""
    result: bytes | None = None
    """The result of the handler, as JSON."""
    events: tuple[Event, ...] = ()
    """Its timeline."""
    queue_expiry: bool = False
    """True if its queue, not the job, sets when it expires."""

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
    """The job as it was when it was leased."""
    token: int
    """The fence: it grows with every lease of the job."""
    lease_ms: int
    """How long the lease lasts, from when the engine answered."""

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    @property
    def cancel_requested(self) -> bool:
        """True if an operator asked to cancel the job: stop working on it."""
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
    """How much is done, from 0 to 1."""
    checkpoint: bytes | None = None
    """A value for the next attempt to resume from."""
    output: bytes | None = None
    """All output so far."""


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
    """The id of the job; for a duplicate by its key, that of the earlier job."""
    status: Status
    """New, a duplicate, or refused."""
    code: str = ""
    """The code of the error, if the job was refused."""
    text: str = ""
    """Why it was refused."""
    seq: int | None = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its counts, exact up to `bounds.COUNT_EXACT_MAX`; `estimated` names those that
    are lower bounds. `oldest_age_ms` is the age of the ready job that has been due longest; None if
    there is none, or if it is unknown. `deleted_after_ms` is the age at which the store deletes a
    job without a dead letter, and `leased_max` the number of leases beyond which it grants none;
    None if it does not."""

    queue: Queue
    """Its settings."""
    ready: int = 0
    """Waiting and due."""
    delayed: int = 0
    """Waiting and due later."""
    blocked: int = 0
    """Waiting for other jobs, or for the end of their group's turn."""
    leased: int = 0
    """At work."""
    overdue: int = 0
    """Leases past their deadline, which upkeep ends."""
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    oldest_age_ms: int | None = None
    estimated: frozenset[str] = frozenset()
    """The names of the counts that are lower bounds."""
    deleted_after_ms: int | None = None
    leased_max: int | None = None

    @property
    def is_age_unknown(self) -> bool:
        """True if jobs are ready, and it is not known for how long."""
        return self.ready > 0 and self.oldest_age_ms is None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter over jobs; every field given must match. `search` looks in id, task, key and tenant.
    `parent` is the id of a job, and selects those that were enqueued to run after it.

    `waiting` leaves out waiting jobs of other kinds, and says nothing about jobs in other states.
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
    """Why a dead letter died."""
    fingerprint: str | None = None
    """The cause of the failure that killed it."""
    parent: str | None = None
    """The id of a job: selects those that run after it."""
    labels: dict[str, str] | None = None
    """All of these labels, with these values."""
    search: str | None = None
    """A text in the id, task, key or tenant."""
    created_from: int | None = None
    """Enqueued at or after this instant."""
    created_before: int | None = None
    """Enqueued before this instant."""
    finished_before_ms: int | None = None
    """Finished at least this long ago."""
    expired: bool | None = None
    """True selects waiting jobs past their expiry."""
    version: int | None = None
    """Unchanged since a job with this version was read."""


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
