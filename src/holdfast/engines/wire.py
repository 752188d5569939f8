"""The wire format of the engine verbs between client and server: MessagePack, lossless.

One table for both ends: the arguments of a call, its answer, and how to call it on an engine. A
lease is sent back without its job. New fields go last, have a default and are never removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.model import (
    Flow,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Page,
    Queue,
    QueueView,
    Reason,
    Receipt,
    Record,
    Renewal,
    State,
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement, Verdict
from holdfast.engines.base import ANY, Engine, Expired, Overdue, Saved, Traits
from holdfast.engines.extras import Examinable, Examination, extra
from holdfast.errors import Unsupported

CONTENT_TYPE = "application/msgpack"

Cursor = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,400}\Z")]

Carried = TypeVar("Carried", bound=msgspec.Struct)


class About(msgspec.Struct):
    """A server's version, the traits of its engine and its time, and whether each partition of its
    store is in use."""

    version: str
    traits: Traits
    now: int
    partitions: tuple[bool, ...] = ()


class SentLease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The parts of a lease that are sent back: ids, and fields that help a store to find it. `kept`
    is the job if its engine has no other copy."""

    id: str
    token: int
    lease_ms: int
    queue: str
    task: str
    seq: int = 0
    group: str | None = None
    is_child: bool = False
    is_dead: bool = False
    kept: Job | None = None

    @classmethod
    def of(cls, lease: Lease) -> SentLease:
        job = lease.job
        return cls(
            job.id,
            lease.token,
            lease.lease_ms,
            job.queue,
            job.task,
            job.seq,
            job.group,
            bool(job.after),
            job.is_dead_letter,
            job if job.has_receipt else None,
        )

    def lease(self) -> Lease:
        if self.kept is not None:
            # Rights were checked for this queue and task.
            kept = replace(self.kept, id=self.id, queue=self.queue, task=self.task)
            return Lease(job=kept, token=self.token, lease_ms=self.lease_ms)
        job = Job(
            id=self.id,
            task=self.task,
            queue=self.queue,
            token=self.token,
            seq=self.seq,
            group=self.group,
            after=_UNKNOWN_PARENT if self.is_child else (),
            state=State.LEASED if self.is_dead else State.WAITING,
            reason=_UNKNOWN_REASON if self.is_dead else None,
        )
        return Lease(job=job, token=self.token, lease_ms=self.lease_ms)


_UNKNOWN_PARENT = ("?",)
"""Engines need to know that the job had parents, not which."""
_UNKNOWN_REASON = Reason.EXPLICIT
"""Engines need to know that a dead letter was leased, not why it died."""


class DeclareCall(msgspec.Struct):
    """`instead_of` is unset if any settings may be replaced."""

    queue: Queue
    instead_of: Queue | msgspec.UnsetType | None = msgspec.UNSET


class DropCall(msgspec.Struct):
    """Drop a queue."""

    name: str


class QueuesCall(msgspec.Struct):
    """Read queues; `names` None means all."""

    counts: bool = True
    names: list[str] | None = None


class EnqueueCall(msgspec.Struct):
    """Enqueue jobs."""

    jobs: Sequence[NewJob]


class LeaseCall(msgspec.Struct):
    """Lease jobs."""

    request: LeaseRequest


class SentRenewal(msgspec.Struct, gc=False, array_like=True):
    """One renewal."""

    held: SentLease
    lease_ms: int | None = None
    note: Note | None = None


class RenewCall(msgspec.Struct):
    """Renew leases."""

    renewals: list[SentRenewal]


class SentSettlement(msgspec.Struct, gc=False, array_like=True):
    """One verdict on a lease."""

    held: SentLease
    verdict: Verdict
    note: Note | None = None


class SettleCall(msgspec.Struct):
    """Settle leases."""

    settlements: list[SentSettlement]


class LimitCall(msgspec.Struct):
    """A verb whose only argument is a limit."""

    limit: int


class FlowCall(msgspec.Struct):
    """Read the limits and tenants of a queue."""

    queue: str
    limit: int


class IdCall(msgspec.Struct):
    """A verb about one job."""

    id: str


class FindCall(msgspec.Struct):
    """The cursor is text: that of a partitioned store exceeds the integers of MessagePack."""

    wanted: JobFilter
    limit: int
    after: Cursor | None = None


class FoundPage(msgspec.Struct):
    """A page, with its cursor as text."""

    jobs: tuple[Job, ...] = ()
    after: Cursor | None = None

    @classmethod
    def of(cls, page: Page) -> FoundPage:
        return cls(page.jobs, None if page.after is None else str(page.after))


def number_of(cursor: str | None) -> int | None:
    """The cursor as the engine's integer."""
    return None if cursor is None else int(cursor)


class TallyCall(msgspec.Struct):
    """Count jobs by value."""

    wanted: JobFilter
    by: TallyBy
    limit: int


class AmendCall(msgspec.Struct):
    """Amend jobs."""

    wanted: JobFilter
    amendment: Amendment
    limit: int


class LoadCall(msgspec.Struct):
    """Read records."""

    kind: str
    limit: int
    after: str | None = None


class SaveCall(msgspec.Struct):
    """Write records."""

    records: list[Record]


class ExamineCall(msgspec.Struct):
    """Examine the store."""

    deep: bool = False


class Verb(Generic[Carried]):
    """Encoding and decoding of one verb, and how to call it on an engine."""

    def __init__(
        self,
        carries: type[Carried],
        answer: Any,
        make: Callable[[Engine, Carried], Awaitable[Any]],
        *,
        repeatable: bool = False,
    ) -> None:
        self.carries = carries
        self.answer = answer
        self.make = make
        self.repeatable = repeatable
        """Safe to send twice: it only reads, or ids and tokens make it idempotent. Leases granted
        in a lost answer expire.
        """
        self.read_call: Final = msgspec.msgpack.Decoder(carries).decode
        self.read_answer: Final = msgspec.msgpack.Decoder(answer).decode
        self.read_known: Final = msgspec.msgpack.Decoder(_known(answer)).decode


def _known(answer: Any) -> Any:
    """The type of a partial answer to a batch: answers by position."""
    arguments = getattr(answer, "__args__", (Any,))
    return dict[int, arguments[0]]  # type: ignore[valid-type]


def _examine(engine: Engine, call: ExamineCall) -> Awaitable[Examination]:
    examinable = extra(engine, Examinable)
    if examinable is None:
        raise Unsupported(engine.traits.name, "an examination", "examine its store there")
    return examinable.examine(deep=call.deep)


def _declare(engine: Engine, call: DeclareCall) -> Awaitable[bool]:
    known = call.instead_of
    return engine.declare(call.queue, instead_of=ANY if known is msgspec.UNSET else known)


async def _find(engine: Engine, call: FindCall) -> FoundPage:
    after = number_of(call.after)
    return FoundPage.of(await engine.find(call.wanted, limit=call.limit, after=after))


def _renew(engine: Engine, call: RenewCall) -> Awaitable[list[Lease | None]]:
    return engine.renew(
        [
            Renewal(lease=each.held.lease(), lease_ms=each.lease_ms, note=each.note)
            for each in call.renewals
        ]
    )


def _settle(engine: Engine, call: SettleCall) -> Awaitable[list[Outcome]]:
    return engine.settle(
        [
            Settlement(lease=each.held.lease(), verdict=each.verdict, note=each.note)
            for each in call.settlements
        ]
    )


VERBS: dict[str, Verb[Any]] = {
    "declare": Verb(DeclareCall, bool, _declare),
    "drop": Verb(DropCall, None, lambda engine, call: engine.drop(call.name), repeatable=True),
    "queues": Verb(
        QueuesCall,
        list[QueueView],
        lambda engine, call: engine.queues(names=call.names, counts=call.counts),
        repeatable=True,
    ),
    "enqueue": Verb(
        EnqueueCall, list[Receipt], lambda engine, call: engine.enqueue(call.jobs), repeatable=True
    ),
    "lease": Verb(
        LeaseCall,
        list[Lease],
        lambda engine, call: engine.lease(call.request),
        repeatable=True,
    ),
    "renew": Verb(RenewCall, list[Lease | None], _renew, repeatable=True),
    "settle": Verb(SettleCall, list[Outcome], _settle, repeatable=True),
    "overdue": Verb(
        LimitCall, Overdue, lambda engine, call: engine.overdue(call.limit), repeatable=True
    ),
    "expired": Verb(
        LimitCall, Expired, lambda engine, call: engine.expired(call.limit), repeatable=True
    ),
    "finished": Verb(
        LimitCall, list[Job], lambda engine, call: engine.finished(call.limit), repeatable=True
    ),
    "recount": Verb(
        LimitCall, int, lambda engine, call: engine.recount(call.limit), repeatable=True
    ),
    "flow": Verb(
        FlowCall,
        Flow,
        lambda engine, call: engine.flow(call.queue, limit=call.limit),
        repeatable=True,
    ),
    "waits": Verb(
        IdCall, Waits | None, lambda engine, call: engine.waits(call.id), repeatable=True
    ),
    "get": Verb(IdCall, Job | None, lambda engine, call: engine.get(call.id), repeatable=True),
    "find": Verb(FindCall, FoundPage, _find, repeatable=True),
    "tally": Verb(
        TallyCall,
        list[Tally],
        lambda engine, call: engine.tally(call.wanted, call.by, limit=call.limit),
        repeatable=True,
    ),
    "amend": Verb(
        AmendCall,
        int,
        lambda engine, call: engine.amend(call.wanted, call.amendment, limit=call.limit),
    ),
    "load": Verb(
        LoadCall,
        list[Record],
        lambda engine, call: engine.load(call.kind, after=call.after, limit=call.limit),
        repeatable=True,
    ),
    "examine": Verb(ExamineCall, Examination, _examine, repeatable=True),
    "save": Verb(SaveCall, list[Saved], lambda engine, call: engine.save(call.records)),
}
