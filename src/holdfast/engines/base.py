"""The narrow waist: `Engine`, its laws, and `Traits`, which say what an engine can do.

Every store and every broker stands behind this interface at the level of job verbs. SQL never
crosses it, durations go in, and only the engine makes instants, from its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from holdfast.core import limits
from holdfast.core.flow import Flow, Waits
from holdfast.core.model import (
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
)
from holdfast.core.verdict import Amendment, Outcome, Settlement


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do. A gap raises Unsupported where it would matter, never approximates.

    Not `ordered` means that the order of a queue, and of every list, is kept within each of the
    stores that the engine is made of, and not over all of them.
    """

    name: str
    durable: bool
    shared: bool
    inspect: bool = True
    priority: bool = True
    keys: bool = True
    renew: bool = True
    fencing: bool = True
    ordered: bool = True
    transactional: bool = False
    groups: bool = False
    dependencies: bool = False
    rates: bool = False
    delay_ms_max: int = limits.DELAY_MS_MAX
    batch_max: int = limits.BATCH_MAX
    payload_max: int = limits.PAYLOAD_MAX


class _Any(Enum):
    ANY = "any"


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """Lapsed leases by (deadline, seq), and the time to the next deadline; None when there is
    none, 0 when there may be more than were asked for."""

    leases: tuple[Lease, ...]
    next_ms: int | None = None


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting jobs past their expiry by (expires_at, seq), and the time to the next."""

    jobs: tuple[Job, ...]
    next_ms: int | None = None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine that can `examine` itself finds: its clock, what it runs on, the room that is
    left on its disk, what a person should see to, and what is damaged if it was asked to look."""

    now: int
    versions: dict[str, str] = {}
    free_bytes: int | None = None
    trouble: tuple[str, ...] = ()
    damage: tuple[str, ...] | None = None


ANY: Final = _Any.ANY
"""Whatever is there."""

Known: TypeAlias = Queue | Literal[_Any.ANY] | None
"""The settings that a change was made from."""


class Saved(StrEnum):
    SAVED = "saved"
    STALE = "stale"


class Engine(Protocol):
    """Batch in, same-length list out, same order. The laws, each with a contract test:

    1. Durable before return.
    2. Never early: no job is leased before it is due, nor after it expired.
    3. One live token per job.
    4. A stale token changes nothing.
    5. A late settle still wins while the job is leased or waiting under that token, never once it
       is finished or leased anew; a late renew does not.
    6. The attempt is counted when leased, and given back by Release.
    7. Retried and reaped jobs go behind those already due at the same priority, unless the queue
       says `order = keep` or the job is in a strict group.
    8. Repeating a settle is harmless.
    9. Every list has a stated order.
    10. Every call is bounded.
    11. No policy, and no clock but its own.
    12. A valid lease is never ended by expiry, by max_attempts, by a reaper that looked too early
        or by an operator, who can only ask; except by `drop` and by a forced delete, which
        revoke it.
    13. An outcome that is not known is reported as OutcomeUnknown, and repeating the call with
        the same id, key or token is safe.
    14. A move to a dead queue is one transaction.
    15. Of a strict group one batch is leased at a time, in the order of arrival.
    16. No limit is exceeded: slots are taken and given back in the transaction that grants or ends
        the lease, and no start is given back to a rate.
    17. No job is leased before its parents have ended as it asked.
    """

    @property
    def traits(self) -> Traits: ...

    async def open(self) -> None:
        """Create or check the store. Idempotent. The queue `default` exists afterwards."""

    async def close(self) -> None:
        """Let go of everything; waiting leases return empty. Idempotent."""

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        """Create a queue or replace its settings: only while they are `instead_of`, if that is
        given; None is a queue that is not there yet. Whether it was written."""

    async def drop(self, name: str) -> None:
        """Remove a queue and its jobs, revoking their leases. Unknown names are no error."""

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        """Every queue by name; without `counts` only the settings are read."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Durable on return. A bad job is REFUSED with a code and harms no neighbour. A known id,
        or a key still held, is a DUPLICATE."""

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Due jobs by (queue as asked, priority, due_at, place); empty after `wait_ms`."""

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Push the deadlines and keep the notes; None = lost. The lease that comes back carries an
        operator's cancel request."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """The only way a lease ends."""

    async def overdue(self, limit: int) -> Overdue:
        """What the reaper must look at; without payloads, which it has no use for."""

    async def expired(self, limit: int) -> Expired:
        """What the reaper must bury; without payloads too."""

    async def finished(self, limit: int) -> list[Job]:
        """Whole jobs past their queue's retention, by (finished_at, seq): archived by the pruner,
        then deleted with `amend`. Also lets go of once-only keys that are past their window."""

    async def recount(self, limit: int) -> int:
        """Compare what is counted beside the jobs with the jobs themselves, and mend what differs:
        slots that no lease holds, groups without a head, children whose parents have ended. How
        many were mended; bounded by `limit`, and repeated calls come round to everything."""

    async def flow(self, queue: str, *, limit: int) -> Flow:
        """How the limits and the tenants of a queue stand: at most `limit` of each."""

    async def waits(self, id: str) -> Waits | None:
        """What keeps a waiting job, beside its time; None if no such job waits."""

    async def get(self, id: str) -> Job | None:
        """The whole job, with its timeline rows, output and result."""

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """Newest first, without payload-sized extras beyond the payload itself."""

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        """How many by value, most first, then by value; over at most `limits.SCAN_MAX` jobs."""

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        """Act on at most `limit` matching jobs, oldest first, guarded by their state in the same
        write; how many were changed."""

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        """Records of one kind by key."""

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        """Each is written only on the version that was read."""
