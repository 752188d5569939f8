"""SqsEngine: jobs kept on Amazon SQS itself. A job is a message, a lease its receipt handle.

SQS has no records: the data that workers share (registry, orders, schedules, breakers, telemetry)
is stored by another engine, the control engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec.structs import replace

from holdfast.core import bounds, checks
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
from holdfast.engines.base import ANY, NO_RECORDS, Engine, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.clock import Clock
from holdfast.engines.extras import DeadLetterMove, Examination
from holdfast.engines.lease import Bell, LeaseReturns
from holdfast.engines.sqs.client import VISIBILITY_S_MAX, SqsClient
from holdfast.engines.sqs.cloudwatch import CloudWatchReader
from holdfast.engines.sqs.dead_letters import DeadLetterStore
from holdfast.engines.sqs.enqueue import Sender
from holdfast.engines.sqs.faults import DeniedByPolicy
from holdfast.engines.sqs.lease import Receiver
from holdfast.engines.sqs.messages import DELAY_S_MAX, MESSAGE_BYTES_MAX
from holdfast.engines.sqs.mover import SqsMessageMover
from holdfast.engines.sqs.names import QueueNames
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settle import SqsSettler
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable, NotFound, Unsupported

DELAY_MS_MAX: Final = DELAY_S_MAX * bounds.SECOND_MS
LEASE_MS_MAX: Final = VISIBILITY_S_MAX * bounds.SECOND_MS


class SqsEngine:
    """See `Engine`. `prefix` begins the names of all its queues on SQS. With `create`, missing
    queues are created when they are first used."""

    def __init__(
        self,
        region: str,
        prefix: str = "",
        *,
        namespace: str = "default",
        endpoint: str | None = None,
        create: bool = False,
        control: Engine | None = None,
        clock: Clock | None = None,
    ) -> None:
        names = QueueNames(prefix, namespace)
        self._client = SqsClient(region, endpoint=endpoint, clock=clock)
        self._catalog = SqsQueues(self._client, names, creates=create)
        self._cloudwatch = CloudWatchReader(region, endpoint)
        self._mover = SqsMessageMover(self._client, self._catalog)
        self._dead_letters = DeadLetterStore(self._client, self._catalog)
        self._sender = Sender(self._client, self._catalog)
        self._settler = SqsSettler(self._client, self._catalog, self._mover, self._follow_up)
        self._bell = Bell()
        self._returns = LeaseReturns(self.settle)
        self._receiver: Receiver | None = None
        self._control = control
        self._creates = create
        self._traits = Traits(
            name="sqs",
            durable=True,
            shared=True,
            inspect=False,
            priority=False,
            keys=False,
            fencing=False,
            ordered=False,
            keep_order=False,
            delay_ms_max=DELAY_MS_MAX,
            payload_max=MESSAGE_BYTES_MAX,
            limits=False,
            fairness=False,
            refunds=False,
            results=False,
            notes=False,
            records=control is not None and control.traits.records,
            exact_counts=False,
            atomic_max=0,
            lease_ms_max=LEASE_MS_MAX,
            retry_ms_max=LEASE_MS_MAX,
            dead_leases=True,
            overdue=False,
            exact_times=False,
            prompt_settings=False,
            fifo_groups=True,
            queue_name_max=names.length_max,
        )

    @property
    def traits(self) -> Traits:
        return self._traits

    @property
    def client(self) -> SqsClient:
        """The client, whose requests tests count."""
        return self._client

    async def open(self) -> None:
        """Without `create`, the queue `default` is not created: it may be missing."""
        if self._receiver is not None:
            return
        await self._client.open()
        try:
            # The first request also shows whether credentials, region and clock are right.
            if self._creates:
                await self._catalog.use("default")
            else:
                # A policy may leave out a queue that nobody here uses.
                with suppress(DeniedByPolicy):
                    await self._catalog.find("default")
            if self._control is not None:
                await self._control.open()
        except BaseException:
            await self._client.close()
            raise
        self._receiver = Receiver(
            self._client, self._catalog, self._mover, self._bell, self._returns
        )

    async def close(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()
            self._bell.ring()
            await self._returns.ended()
            await self._cloudwatch.close()
            await self._client.close()
            if self._control is not None:
                await self._control.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._opened()
        written = await self._catalog.declare(queue, instead_of=instead_of)
        self._bell.announce()
        return written

    async def drop(self, name: str) -> None:
        self._opened()
        await self._catalog.drop(name)

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        self._opened()
        views = await self._catalog.views(names, counts=counts)
        waiting = {
            view.queue.name: self._catalog.sqs_name(view.queue.name) for view in views if view.ready
        }
        if not waiting:
            return views
        ages = await self._cloudwatch.ages_ms(waiting.values())
        return [
            replace(view, oldest_age_ms=ages.get(waiting.get(view.queue.name, "")))
            for view in views
        ]

    async def arrivals(self, names: Collection[str]) -> dict[str, float]:
        """See `ArrivalRates`."""
        self._opened()
        sqs_names = {self._catalog.sqs_name(name): name for name in names}
        found = await self._cloudwatch.arrivals(sqs_names)
        return {sqs_names[name]: rate for name, rate in found.items()}

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._opened()
        checks.check_batch(len(jobs))
        return await self._sender.enqueue(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        receiver = self._opened()
        checks.check_request(request)
        with _correctable():
            return await receiver.lease(request)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._opened()
        checks.check_renewals(renewals)
        with _correctable():
            return await self._settler.renew(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        if not self._client.is_open:
            raise EngineClosed("the SQS engine is not open")
        checks.check_batch(len(settlements))
        with _correctable():
            return await self._settler.settle(settlements)

    async def overdue(self, limit: int) -> Overdue:
        """None: SQS itself makes the message of an ended lease visible again."""
        self._opened()
        checks.check_page(limit)
        return Overdue(leases=())

    async def expired(self, limit: int) -> Expired:
        """None: an expired job is buried when its message is received."""
        self._opened()
        checks.check_page(limit)
        return Expired(jobs=())

    async def finished(self, limit: int) -> list[Job]:
        """None: a message is deleted when its job is done."""
        self._opened()
        checks.check_page(limit)
        return []

    async def recount(self, limit: int) -> int:
        """Always 0: there are no stored counters."""
        self._opened()
        checks.check_page(limit)
        return 0

    async def flow(self, queue: str, *, limit: int) -> Flow:
        self._opened()
        checks.check_page(limit)
        if await self._catalog.find(queue) is None:
            raise checks.unknown_queue(queue)
        return Flow()

    async def waits(self, id: str) -> Waits | None:
        raise self._no_search("looking up what a job waits for")

    async def get(self, id: str) -> Job | None:
        raise self._no_search("reading a job by its id")

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        raise self._no_search("searching jobs")

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        raise self._no_search("counting jobs by value")

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        raise self._no_search("changing jobs without a lease")

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._opened()
        return await self._records().load(kind, after=after, limit=limit)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._opened()
        return await self._records().save(records)

    async def examine(self, *, deep: bool = False) -> Examination:
        """The service's clock, and queues whose settings lose messages."""
        self._opened()
        import boto3

        try:
            views = await self._catalog.views(None, counts=False)
        except ConfigError as error:
            return Examination(now=self._client.now_ms(), trouble=(str(error),))
        trouble: list[str] = []
        for view in views:
            trouble += await self._catalog.trouble(view.queue.name)
        return Examination(
            now=self._client.now_ms(), versions={"boto3": boto3.__version__}, trouble=tuple(trouble)
        )

    async def sample_dead(self, queues: Collection[str] | None, *, limit: int) -> list[Job]:
        """See `DeadLetterQueues`, here and below."""
        self._opened()
        checks.check_page(limit)
        return await self._dead_letters.sample(queues, limit)

    async def move_dead(self, queue: str, *, rate: int | None) -> DeadLetterMove:
        self._opened()
        return await self._dead_letters.move(queue, rate)

    async def dead_moves(self, queues: Collection[str] | None) -> list[DeadLetterMove]:
        self._opened()
        return await self._dead_letters.moves(queues)

    async def cancel_dead_move(self, queue: str) -> DeadLetterMove | None:
        self._opened()
        return await self._dead_letters.cancel(queue)

    async def purge_dead(self, queue: str) -> None:
        self._opened()
        await self._dead_letters.purge(queue)

    async def _follow_up(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._sender.enqueue(jobs, follow_ups=True)

    def _records(self) -> Engine:
        if self._control is None:
            raise Unsupported("sqs", "records (workers, schedules, settings)", NO_RECORDS)
        return self._control

    def _no_search(self, feature: str) -> Unsupported:
        remedy = "use an engine that can search its jobs, such as SQLite or PostgreSQL"
        return Unsupported("sqs", feature, remedy)

    def _opened(self) -> Receiver:
        if self._receiver is None:
            raise EngineClosed("the SQS engine is not open")
        return self._receiver


@contextmanager
def _correctable() -> Iterator[None]:
    """Credentials, policies and missing queues can be corrected while a worker runs: it goes on
    trying, with the same text."""
    try:
        yield
    except (ConfigError, NotFound) as error:
        raise EngineUnavailable(str(error)) from error
