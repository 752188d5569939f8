"""The PostgreSQL engine: checks what it is given, and holds the conversations of its neighbours.

No SQL is here. The server's clock decides, unless a test gives its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.core import checks, limits
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
from holdfast.engines.base import ANY, Examination, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.clock import Clock
from holdfast.engines.parts import told_in_part
from holdfast.engines.postgres import (
    amending,
    edges,
    enqueuing,
    insight,
    leasing,
    looking,
    opening,
    queues,
    recount,
    schemas,
    settling,
    sorting,
    upkeep,
)
from holdfast.engines.postgres import records as recording
from holdfast.engines.postgres.adopt import PostgresMover
from holdfast.engines.postgres.listen import Listener
from holdfast.engines.postgres.patience import Patience
from holdfast.engines.postgres.pool import CLOSE_S_MAX, Connection, Pool
from holdfast.engines.postgres.steps import Duties, Steps, Store, T
from holdfast.engines.postgres.within import AsyncWithin, Home, Within, within
from holdfast.engines.returning import Returns
from holdfast.engines.waiting import Bell, lease_patiently, may_make_due
from holdfast.errors import ConfigError, EngineClosed, EngineError, SchemaMismatch

_TRAITS = Traits(
    name="postgres",
    durable=True,
    shared=True,
    transactional=True,
    groups=True,
    dependencies=True,
    rates=True,
)
_NET_MS = (800, 1_200)
_AMEND_ROUNDS_MAX = 20


class PostgresEngine:
    """See `Engine`. `pooled` keeps nothing in a session, for PgBouncer's transaction pooling."""

    def __init__(
        self,
        dsn: str,
        *,
        namespace: str = "default",
        schema: str = "holdfast",
        connections: int = 4,
        pooled: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if not limits.NAMESPACE.match(namespace):
            raise ConfigError(f"namespace {namespace[:100]!r} is not 1 to 80 of A-Z a-z 0-9 _ . -")
        if not schemas.SCHEMA_NAME.match(schema):
            raise ConfigError(
                f"schema {schema[:100]!r} is not 1 to 63 of a-z 0-9 _, no digit first"
            )
        if connections < 1:
            raise ConfigError(f"connections {connections} is not 1 or more")
        self._namespace = namespace
        self._schema = schema
        self._pooled = pooled
        self._clock_ms = None if clock is None else clock.wall_ms
        self._make_pool = partial(
            Pool, dsn, schema=schema, size=connections, pooled=pooled, setup=self._recognise
        )
        self._bell = Bell()
        self._opening = asyncio.Lock()
        self._identity: schemas.Identity | None = None
        self._pool: Pool | None = None
        self._listener: Listener | None = None
        self._returns = Returns(self.settle)
        self._laned: set[str] = set()
        self._flowing: set[str] = set()
        self._rounds = recount.Rounds()

    @property
    def traits(self) -> Traits:
        return _TRAITS

    async def open(self) -> None:
        async with self._opening:
            if self._pool is None:
                await self._open()

    async def close(self) -> None:
        await self._returns.ended(CLOSE_S_MAX)
        pool, self._pool = self._pool, None
        listener, self._listener = self._listener, None
        self._bell.ring()
        if listener is not None:
            await listener.stop()
        if pool is not None:
            await pool.close()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        checks.check_queue(queue)
        written, unsorted = await self._run(queues.declare, queue, instead_of)
        if unsorted is not None:
            # It is declared by now; what is not sorted here the next lease sorts.
            with contextlib.suppress(EngineError):
                await self._sort(unsorted)
        self._bell.ring()
        return written

    async def drop(self, name: str) -> None:
        if not limits.QUEUE_NAME.match(name):
            return
        number = await self._run(queues.take_name, name)
        # The queue is gone by now. Each batch is a transaction of its own; if it ends here the
        # pruner goes on with it.
        purged = number is not None
        with contextlib.suppress(EngineError):
            while purged:
                purged = await self._run(queues.purge, number) > 0
        # Its leases may have held slots that others wait for.
        self._bell.ring()

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        if counts:
            return await self._read(queues.count_queues)
        return await self._read(queues.list_queues)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        receipts = await self._run(enqueuing.enqueue, jobs)
        self._bell.ring()
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        checks.check_request(request)
        self._opened()
        patience = Patience(self._lease, self._linger)
        leases = await lease_patiently(
            request,
            patience.attempt if request.wait_ms else self._lease,
            self._bell,
            net_ms=random.randint(*_NET_MS),
            open_=lambda: self._pool is not None,
        )
        if not leases and patience.failure is not None and self._pool is not None:
            raise patience.failure
        return leases

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        checks.check_renewals(renewals)
        return await self._run(leasing.renew, renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        outcomes = await self._run(settling.settle, settlements)
        if may_make_due(settlements) or any(map(self._may_let_go, settlements)):
            self._bell.ring()
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        """Whoever reaps also tells what a dead process did not: the next recount may be far."""
        checks.check_page(limit)
        await self._part(await self._read(recount.untold, limit))
        return await self._read(upkeep.overdue, limit)

    async def expired(self, limit: int) -> Expired:
        checks.check_page(limit)
        return await self._read(upkeep.expired, limit)

    async def finished(self, limit: int) -> list[Job]:
        checks.check_page(limit)
        return await self._run(upkeep.finished, limit)

    async def recount(self, limit: int) -> int:
        checks.check_page(limit)
        return await self._run(recount.recount, self._rounds, limit)

    async def flow(self, queue: str, *, limit: int) -> Flow:
        checks.check_page(limit)
        return await self._read(partial(insight.show_flow, limit=limit), queue)

    async def waits(self, id: str) -> Waits | None:
        if not limits.JOB_ID.match(id):
            self._opened()
            return None
        return await self._read(insight.show_waits, id)

    async def get(self, id: str) -> Job | None:
        if not limits.JOB_ID.match(id):
            self._opened()
            return None
        return await self._read(looking.get, id)

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        return await self._read(partial(looking.find, limit=limit, after=after), wanted)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        checks.check_page(limit)
        checks.check_filter(wanted)
        return await self._read(partial(looking.tally, limit=limit), wanted, by)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        checks.check_page(limit)
        checks.check_filter(wanted)
        checks.check_amendment(amendment)
        total = 0
        with told_in_part(lambda: total):
            # Jobs that somebody else changed between the look and the lock leave room for others.
            for _ in range(_AMEND_ROUNDS_MAX):
                talk = partial(amending.amend, limit=limit - total)
                count, lost = await self._run(talk, wanted, amendment)
                self._bell.ring()
                total += count
                if not lost or total >= limit:
                    break
        return total

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        checks.check_load(kind, after, limit)
        return await self._read(partial(recording.load, after=after, limit=limit), kind)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        return await self._run(recording.save, records)

    async def examine(self, *, deep: bool = False) -> Examination:
        """What there is to say about the server, which looks after its own files."""
        return await self._read(upkeep.examine)

    def mover(self) -> PostgresMover:
        """Whole jobs out of this store and into it, as they are."""
        return PostgresMover(self._read, self._run)

    def within(self, connection: Any) -> Within | AsyncWithin:
        """Enqueue and settle in the transaction that `connection` is in: what is done there is
        done when the caller commits, and never was if it rolls back."""
        _, store = self._opened()
        assert self._identity is not None
        store.duties.is_final = True
        return within(connection, Home(self._identity, self._schema, store))

    async def _open(self) -> None:
        pool = self._make_pool()
        try:
            self._identity = await opening.prepare(pool, self._schema, self._namespace)
            self._pool = pool
            await self._run(queues.declare_default)
        except BaseException:
            self._pool = None
            await pool.close()
            raise
        self._listener = None if self._pooled else Listener(pool, self._bell)

    async def _run(self, talk: Callable[..., Steps[T]], *arguments: object) -> T:
        result, endings = await self._write(talk, *arguments)
        await self._part(endings)
        return result

    async def _write(
        self, talk: Callable[..., Steps[T]], *arguments: object
    ) -> tuple[T, list[int]]:
        """Also the ends of parents that their children are to be told of."""
        pool, store = self._opened()

        def begin() -> Steps[T]:
            store.duties.endings.clear()
            return talk(store, *arguments)

        with told_in_part(lambda: store.duties.is_in_part):
            result = await pool.run(begin)
        return result, store.duties.committed + store.duties.endings

    async def _part(self, endings: list[int]) -> None:
        """Tell the children of what ended, the first to end first, and theirs in turn. What is
        not told here the reaper will tell: the call itself has succeeded."""
        with contextlib.suppress(EngineError):
            while endings:
                told, endings = endings[: edges.STEP], endings[edges.STEP :]
                is_left = True
                while is_left:
                    is_left, further = await self._write(edges.release, told)
                    endings += further
                    self._bell.ring()

    async def _sort(self, number: int) -> None:
        """Each step is a transaction of its own; if it ends here the next lease goes on with it."""
        while await self._run(sorting.step, number):
            pass

    def _may_let_go(self, settlement: Settlement) -> bool:
        """Could the end of this lease make room for others?"""
        job = settlement.lease.job
        return job.group is not None or job.queue in self._laned

    async def _read(self, talk: Callable[..., Steps[T]], *arguments: object) -> T:
        pool, store = self._opened()
        return await pool.run(lambda: talk(store, *arguments), writes=False)

    def _opened(self) -> tuple[Pool, Store]:
        if self._pool is None or self._identity is None:
            raise EngineClosed("the PostgreSQL engine is not open")
        return self._pool, Store(
            self._identity.ns, self._clock_ms, Duties(self._laned, self._flowing)
        )

    async def _lease(self, request: LeaseRequest) -> tuple[list[Lease], int | None]:
        """Once it is under way nothing stops it: what nobody would have is given back."""
        under_way = asyncio.create_task(self._take(request))
        try:
            return await asyncio.shield(under_way), None
        except asyncio.CancelledError:
            self._returns.begin(under_way)
            raise

    async def _take(self, request: LeaseRequest) -> list[Lease]:
        while True:
            taken = await self._run(leasing.lease, request)
            if not isinstance(taken, int):
                return taken
            await self._sort(taken)

    async def _linger(self, request: LeaseRequest, seen_at: int | None) -> leasing.Outlook:
        """Before a wait: what there is to wait for."""
        _, store = self._opened()
        if self._listener is not None:
            await self._listener.start(f"{self._schema[:40]}_{store.ns}")
        talk = partial(leasing.linger, listens=self._listener is not None)
        return await self._run(talk, request, seen_at)

    async def _recognise(self, connection: Connection) -> None:
        """A new connection must lead to the store that was opened."""
        found = await schemas.identify(connection, self._schema, self._namespace)
        if found != self._identity:
            raise SchemaMismatch(
                f"the schema {self._schema} is not the one that was opened: open the engine again"
            )
