"""`Engine`, the interface of every store and broker, its laws, and `Traits`, its abilities.

Its methods are job verbs; SQL never crosses it. Callers pass durations, and only the
engine makes instants, from its own clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, StrEnum
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from holdfast.core import bounds
from holdfast.core.model import (
    Flow,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Page,
    Queue,
    QueueView,
    Receipt,
    Record,
    Renewal,
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement
from holdfast.engines.extras import Examination  # noqa: F401 (public here since 0.1.0)
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull, UsageError

NO_RECORDS: Final = "name an engine that stores them in the URL: control=URL"
"""The remedy of an engine without records."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of an engine, fixed when it is created. A call that needs a missing one raises
    Unsupported before anything is written: see `support`. The traits of a remote engine travel over
    the wire, so a new one has a default that older servers keep.
    """

    name: str
    durable: bool
    """Jobs outlive the process."""
    shared: bool
    """Several processes may open the same store."""
    inspect: bool = True
    """Jobs can be searched, read by id, leased by id and amended."""
    priority: bool = True
    """Priorities, and priorities that grow with waiting (`aging_ms`)."""
    keys: bool = True
    """Once-only keys."""
    renew: bool = True
    """A lease can be renewed."""
    fencing: bool = True
    """Only the holder of the current token can renew or settle (laws 3, 4, 5 and 8)."""
    ordered: bool = True
    """Queues and lists have one order. Without this trait the order holds within each store of a
    composition, but not across stores.
    """
    keep_order: bool = True
    """A job that is put back without a delay can keep its place: `order = "keep"` (law 7)."""
    transactional: bool = False
    """Enqueue and settle inside the caller's own transaction: the extra `Transactional`."""
    groups: bool = False
    """Strict groups, and `group_batch`."""
    dependencies: bool = False
    """Jobs that wait for other jobs (`after`)."""
    rates: bool = False
    """Limits on leases per time."""
    delay_ms_max: int = bounds.DELAY_MS_MAX
    """Longest delay of a new, retimed or redriven job."""
    batch_max: int = bounds.BATCH_MAX
    """Maximum number of items in one call, which the engine checks itself."""
    payload_max: int = bounds.PAYLOAD_MAX
    """Largest payload, in bytes."""
    limits: bool = True
    """Limits on concurrency, and `max_depth`: counts over a whole queue that are never exceeded."""
    fairness: bool = True
    """Fairness between tenants, and their weights."""
    refunds: bool = True
    """Release refunds the attempt. Without this trait a released job keeps its count."""
    results: bool = True
    """The result of a completed job is stored."""
    notes: bool = True
    """Progress, checkpoint and output of a run are stored."""
    follow_ups: bool = True
    """Complete may enqueue follow-up jobs: in the same transaction if `atomic`, otherwise before
    the completion, and then at least once.
    """
    records: bool = True
    """Versioned records stored with the jobs: workers, schedules, settings."""
    combinations: bool = True
    """One job may combine any key, group and parents. Without this trait they must share a
    partition.
    """
    exact_counts: bool = True
    """Counts of a queue are exact up to `bounds.COUNT_EXACT_MAX`; otherwise all are estimates."""
    atomic_max: int = bounds.BATCH_MAX
    """Maximum number of items that one call applies in one transaction. 1: each item separately. 0:
    not even one item with its effects, such as a move to a dead queue.
    """
    lease_ms_max: int = bounds.LEASE_MS_MAX
    """Longest lease."""
    retry_ms_max: int = bounds.DELAY_MS_MAX
    """Longest delay of a Retry or Release."""
    dead_leases: bool = False
    """Dead letters can be leased: `LeaseRequest.dead`."""
    queue_expiry: bool = False
    """Jobs can expire by a setting of their queue: `Queue.expires_ms`."""
    key_hold: bool = False
    """A key can be taken from an unfinished job after its window: `NewJob.key_hold`."""
    parent_filter: bool = False
    """Jobs can be selected by their parent: `JobFilter.parent`."""
    overdue: bool = True
    """Ended leases and expired jobs are listed for the reaper, and the engine has no policy (law
    11). Without this trait the store makes a job due again when its lease ends, and the engine
    buries exhausted and expired jobs when it would lease them.
    """
    exact_times: bool = True
    """Delays and leases are exact to the millisecond; otherwise rounded up to seconds."""
    prompt_settings: bool = True
    """Settings of a queue hold for every process once they are written; otherwise within a
    minute, and the last of several writers wins.
    """
    queue_name_max: int = bounds.QUEUE_NAME_MAX
    """Longest name of a queue."""
    fifo_groups: bool = False
    """Strict groups in queues whose names end in `.fifo`, and only there."""

    @property
    def atomic(self) -> bool:
        """One item and all its effects are one transaction (law 14)."""
        return self.atomic_max > 0


class _Any(Enum):
    ANY = "any"


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """Overdue leases by (deadline, seq), and the time to the next deadline: None if there is none,
    0 if there may be more than the limit."""

    leases: tuple[Lease, ...]
    next_ms: int | None = None


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting jobs past their expiry by (expires_at, seq), and the time to the next."""

    jobs: tuple[Job, ...]
    next_ms: int | None = None


ANY: Final = _Any.ANY
"""Whatever the settings are now."""

Known: TypeAlias = Queue | Literal[_Any.ANY] | None
"""The settings that a change was based on; None if the queue did not exist."""


class Saved(StrEnum):
    """The answer to one saved record; STALE if its version was not the current one."""

    SAVED = "saved"
    STALE = "stale"


class Engine(Protocol):
    """A store of jobs. Batch in, same-length list out, same order.

    The laws, each with a contract test. Brackets name the trait that a law needs; the contract
    leaves out the tests of traits that an engine does not have.

    1. Durable before return. [durable]
    2. Never early: no job is leased before it is due, nor after it expired.
    3. One live token per job. [fencing]
    4. A stale token changes nothing. [fencing]
    5. A late settle still wins while the job is leased or waiting under that token, never once it
       is finished or leased again; a late renew does not. [fencing]
    6. The attempt is counted when the job is leased, and refunded by Release. [the second half:
       refunds]
    7. Retried and reaped jobs go behind those already due at the same priority, unless the queue
       has `order = keep` or the job is in a strict group. [ordered; the exception: keep_order]
    8. Repeating a settle is harmless. [fencing]
    9. Every list has a stated order. [ordered]
    10. Every call is bounded.
    11. No policy, and no clock but its own. [the first half: overdue]
    12. A valid lease is never ended by expiry, by max_attempts, by a reaper that acts too early or
        by an operator, who can only send a cancel request; only `drop` and a forced delete revoke
        it.
    13. An outcome that is not known is reported as OutcomeUnknown, and repeating the call with the
        same id, key or token is safe. [for enqueue: keys]
    14. A move to a dead queue is one transaction. [atomic]
    15. Of a strict group one batch is leased at a time, in the order of arrival. [groups]
    16. No limit is exceeded: slots are taken and freed in the transaction that grants or ends the
        lease, and a rate never gets a start back. [limits, rates]
    17. No job is leased before its parents have ended as it requires. [dependencies]

    A call that needs a missing trait changes nothing and raises Unsupported, with one exception:
    in `enqueue` the job is REFUSED with the code `unsupported`, and the others are enqueued.
    """

    @property
    def traits(self) -> Traits: ...

    async def open(self) -> None:
        """Create or check the store. Idempotent. The queue `default` exists afterwards."""

    async def close(self) -> None:
        """Close the store; waiting leases return empty. Idempotent."""

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        """Create a queue or replace its settings; with `instead_of` only if those are the current
        settings (None: the queue does not exist yet). True if it was written."""

    async def drop(self, name: str) -> None:
        """Remove a queue and its jobs, revoking their leases. An unknown name is not an error."""

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        """Queues sorted by name: all of them, or those of `names` that exist. Without `counts`
        only the settings are read."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Durable on return. An invalid job is REFUSED with a code and does not affect the others.
        A job with a known id, or with a key still held, is a DUPLICATE.
        """

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Due jobs by (queue in the order of the request, priority, due_at, place); empty after
        `wait_ms`. With `dead`, dead letters by (queue, due_at, seq) instead: of any priority, group
        and limit, also past their expiry. No attempt is counted; completing deletes them, and after
        any other end of the lease they are dead again. [dead_leases]"""

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Extend the deadlines and store the notes; None = lost. The renewed lease carries an
        operator's cancel request. [renew]"""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Apply verdicts: the only way a lease ends."""

    async def overdue(self, limit: int) -> Overdue:
        """Leases past their deadline, for the reaper; jobs without payloads."""

    async def expired(self, limit: int) -> Expired:
        """Waiting jobs past their expiry, for the reaper; without payloads."""

    async def finished(self, limit: int) -> list[Job]:
        """Whole jobs past their queue's retention, by (finished_at, seq): the pruner archives them
        and deletes them with `amend`. Also frees once-only keys past their window."""

    async def recount(self, limit: int) -> int:
        """Compare the stored counters with the jobs, and repair differences: slots that
        no lease holds, groups without a head, children whose parents have ended. Returns the
        number of repairs; each call checks at most `limit`, and repeated calls cover everything."""

    async def flow(self, queue: str, *, limit: int) -> Flow:
        """Use of the limits and tenants of a queue: at most `limit` of each."""

    async def waits(self, id: str) -> Waits | None:
        """The parents, group and limits that a waiting job waits for; None if no such job waits.
        [inspect]"""

    async def get(self, id: str) -> Job | None:
        """The complete job, with its timeline rows, output and result. [inspect]"""

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """Matching jobs, newest first, without output, result and checkpoint. [inspect]"""

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        """Counts by value, highest first, then by value; over at most `bounds.SCAN_MAX` jobs.
        [inspect]"""

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        """Amend at most `limit` matching jobs, oldest first, guarded by their state in the same
        write; returns how many were changed. [inspect]
        """

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        """Records of one kind, sorted by key. [records]"""

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        """Write each record only if its version is the current one. [records]"""


@contextmanager
def unknown_if_partial(happened: Callable[[], object]) -> Iterator[None]:
    """For a call of several transactions: if `happened()` is true, turn an error that claims that
    nothing was changed into OutcomeUnknown. Other errors are unchanged.
    """
    try:
        yield
    except (EngineUnavailable, StorageFull, UsageError) as error:
        if not happened():
            raise
        text = re.sub("[;:] nothing was changed", "", str(error))
        raise OutcomeUnknown(
            f"{text}; a part of the call has taken effect: repeat it with the same ids"
        ) from error
