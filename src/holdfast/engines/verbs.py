"""The verbs of an engine as they travel between processes: MessagePack, nothing lost.

One table for both ends: what a call carries, what it answers, and how it is made on an engine. A
lease goes back without its job. Fields are added at the end, with a default, and never taken away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from holdfast.core.flow import Flow, Waits
from holdfast.core.model import (
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Page,
    Queue,
    QueueView,
    Receipt,
    Record,
    Renewal,
    Tally,
    TallyBy,
)
from holdfast.core.verdict import Amendment, Outcome, Settlement, Verdict
from holdfast.engines.base import ANY, Engine, Examination, Expired, Overdue, Saved, Traits
from holdfast.errors import Unsupported

CONTENT_TYPE = "application/msgpack"

Cursor = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,400}\Z")]

Carried = TypeVar("Carried", bound=msgspec.Struct)


class About(msgspec.Struct):
    """What a server says of itself, of its engine and of the time."""

    version: str
    traits: Traits
    now: int


class Held(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What of a lease goes back: its names, and what helps a store to find it quickly."""

    id: str
    token: int
    lease_ms: int
    queue: str
    task: str
    seq: int = 0
    group: str | None = None
    is_child: bool = False

    @classmethod
    def of(cls, lease: Lease) -> Held:
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
        )

    def lease(self) -> Lease:
        job = Job(
            id=self.id,
            task=self.task,
            queue=self.queue,
            token=self.token,
            seq=self.seq,
            group=self.group,
            after=_SOMEBODY if self.is_child else (),
        )
        return Lease(job=job, token=self.token, lease_ms=self.lease_ms)


_SOMEBODY = ("?",)
"""That it waited for others matters, and not for whom."""


class Declare(msgspec.Struct):
    queue: Queue
    instead_of: Queue | msgspec.UnsetType | None = msgspec.UNSET


class Drop(msgspec.Struct):
    name: str


class Queues(msgspec.Struct):
    counts: bool = True


class Enqueue(msgspec.Struct):
    jobs: Sequence[NewJob]


class LeaseCall(msgspec.Struct):
    request: LeaseRequest


class Renewed(msgspec.Struct, gc=False, array_like=True):
    held: Held
    lease_ms: int | None = None
    note: Note | None = None


class Renew(msgspec.Struct):
    renewals: list[Renewed]


class Settled(msgspec.Struct, gc=False, array_like=True):
    held: Held
    verdict: Verdict
    note: Note | None = None


class Settle(msgspec.Struct):
    settlements: list[Settled]


class Bounded(msgspec.Struct):
    limit: int


class FlowCall(msgspec.Struct):
    queue: str
    limit: int


class One(msgspec.Struct):
    id: str


class Find(msgspec.Struct):
    """A cursor is told as text: that of a partitioned store is larger than any number here."""

    wanted: JobFilter
    limit: int
    after: Cursor | None = None


class Found(msgspec.Struct):
    jobs: tuple[Job, ...] = ()
    after: Cursor | None = None

    @classmethod
    def of(cls, page: Page) -> Found:
        return cls(page.jobs, None if page.after is None else str(page.after))


def number_of(cursor: str | None) -> int | None:
    return None if cursor is None else int(cursor)


class TallyCall(msgspec.Struct):
    wanted: JobFilter
    by: TallyBy
    limit: int


class Amend(msgspec.Struct):
    wanted: JobFilter
    amendment: Amendment
    limit: int


class Load(msgspec.Struct):
    kind: str
    limit: int
    after: str | None = None


class Save(msgspec.Struct):
    records: list[Record]


class Examine(msgspec.Struct):
    deep: bool = False


class Verb(Generic[Carried]):
    """How a call of one verb is written, read and made."""

    def __init__(
        self,
        carries: type[Carried],
        answer: Any,
        make: Callable[[Engine, Carried], Awaitable[Any]],
        *,
        repeatable: bool = False,
    ) -> None:
        self.carries = carries
        self.make = make
        self.repeatable = repeatable
        """Harmless when it happens twice: it only reads, or its ids and tokens make it so. What
        was leased for nobody lapses."""
        self.read_call = msgspec.msgpack.Decoder(carries).decode
        self.read_answer = msgspec.msgpack.Decoder(answer).decode
        self.read_known = msgspec.msgpack.Decoder(_known(answer)).decode


def _known(answer: Any) -> Any:
    """Some of a list's answers by their positions."""
    arguments = getattr(answer, "__args__", (Any,))
    return dict[int, arguments[0]]  # type: ignore[valid-type]


def _examine(engine: Engine, call: Examine) -> Awaitable[Examination]:
    able: Callable[..., Awaitable[Examination]] | None = getattr(engine, "examine", None)
    if able is None:
        raise Unsupported(engine.traits.name, "an examination")
    return able(deep=call.deep)


def _declare(engine: Engine, call: Declare) -> Awaitable[bool]:
    known = call.instead_of
    return engine.declare(call.queue, instead_of=ANY if known is msgspec.UNSET else known)


async def _find(engine: Engine, call: Find) -> Found:
    after = number_of(call.after)
    return Found.of(await engine.find(call.wanted, limit=call.limit, after=after))


def _renew(engine: Engine, call: Renew) -> Awaitable[list[Lease | None]]:
    return engine.renew(
        [
            Renewal(lease=each.held.lease(), lease_ms=each.lease_ms, note=each.note)
            for each in call.renewals
        ]
    )


def _settle(engine: Engine, call: Settle) -> Awaitable[list[Outcome]]:
    return engine.settle(
        [
            Settlement(lease=each.held.lease(), verdict=each.verdict, note=each.note)
            for each in call.settlements
        ]
    )


VERBS: dict[str, Verb[Any]] = {
    "declare": Verb(Declare, bool, _declare),
    "drop": Verb(Drop, None, lambda engine, call: engine.drop(call.name), repeatable=True),
    "queues": Verb(
        Queues,
        list[QueueView],
        lambda engine, call: engine.queues(counts=call.counts),
        repeatable=True,
    ),
    "enqueue": Verb(
        Enqueue, list[Receipt], lambda engine, call: engine.enqueue(call.jobs), repeatable=True
    ),
    "lease": Verb(
        LeaseCall,
        list[Lease],
        lambda engine, call: engine.lease(call.request),
        repeatable=True,
    ),
    "renew": Verb(Renew, list[Lease | None], _renew, repeatable=True),
    "settle": Verb(Settle, list[Outcome], _settle, repeatable=True),
    "overdue": Verb(
        Bounded, Overdue, lambda engine, call: engine.overdue(call.limit), repeatable=True
    ),
    "expired": Verb(
        Bounded, Expired, lambda engine, call: engine.expired(call.limit), repeatable=True
    ),
    "finished": Verb(
        Bounded, list[Job], lambda engine, call: engine.finished(call.limit), repeatable=True
    ),
    "recount": Verb(Bounded, int, lambda engine, call: engine.recount(call.limit), repeatable=True),
    "flow": Verb(
        FlowCall,
        Flow,
        lambda engine, call: engine.flow(call.queue, limit=call.limit),
        repeatable=True,
    ),
    "waits": Verb(One, Waits | None, lambda engine, call: engine.waits(call.id), repeatable=True),
    "get": Verb(One, Job | None, lambda engine, call: engine.get(call.id), repeatable=True),
    "find": Verb(Find, Found, _find, repeatable=True),
    "tally": Verb(
        TallyCall,
        list[Tally],
        lambda engine, call: engine.tally(call.wanted, call.by, limit=call.limit),
        repeatable=True,
    ),
    "amend": Verb(
        Amend,
        int,
        lambda engine, call: engine.amend(call.wanted, call.amendment, limit=call.limit),
    ),
    "load": Verb(
        Load,
        list[Record],
        lambda engine, call: engine.load(call.kind, after=call.after, limit=call.limit),
        repeatable=True,
    ),
    "examine": Verb(Examine, Examination, _examine, repeatable=True),
    "save": Verb(Save, list[Saved], lambda engine, call: engine.save(call.records)),
}
