"""The PostgreSQL engine: checks arguments, and runs the scripts of the other modules and their
effects. Contains no SQL. It uses the server's clock, unless a test injects one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

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
from holdfast.engines.base import ANY, Expired, Known, Overdue, Saved, Traits, unknown_if_partial
from holdfast.engines.clock import Clock
from holdfast.engines.extras import Examination
from holdfast.engines.lease import Bell, LeaseReturns, lease_with_wait, may_make_due
from holdfast.engines.postgres import (
    amend,
    enqueue,
    lease,
    queues,
    search,
    settle,
    upkeep,
    write,
)
from holdfast.engines.postgres.flow import dependencies, lanes, status
from holdfast.engines.postgres.move import PostgresMover
from holdfast.engines.postgres.pool import CLOSE_S_MAX, PostgresConnection, PostgresPool
from holdfast.engines.postgres.schema import (
    SCHEMA_NAME,
    NamespaceIdentity,
    exists,
    identify,
    prepare,
)
from holdfast.engines.postgres.script import CallContext, Effects, Script, T
from holdfast.engines.postgres.wait import (
    LeaseWait,
    NextDue,
    NotifyListener,
    count_skipped,
    next_due,
)
from holdfast.engines.postgres.within import (
    AsyncPostgresWithin,
    PostgresWithin,
    WithinTarget,
    within,
)
from holdfast.errors import ConfigError, EngineClosed, EngineError, SchemaMismatch

_TRAITS = Traits(
    name="postgres",
    durable=True,
    shared=True,
    transactional=True,
    groups=True,
    dependencies=True,
    rates=True,
    dead_leases=True,
    queue_expiry=True,
    key_hold=True,
    parent_filter=True,
)
_NET_MS = (800, 1_200)
_AMEND_ROUNDS_MAX = 20


class PostgresEngine:
    """See `Engine`. With `pooled` it keeps no state in a session, as the transaction pooling of
    PgBouncer requires."""

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
        if not bounds.NAMESPACE.match(namespace):
            raise ConfigError(
                f"namespace {namespace[:100]!r} is not valid: use 1 to 80 characters of A-Z a-z"
                " 0-9 _ . -"
            )
        if not SCHEMA_NAME.match(schema):
            raise ConfigError(
                f"schema {schema[:100]!r} is not valid: use 1 to 63 characters of a-z 0-9 _, no"
                " digit first"
            )
        if connections < 1:
            raise ConfigError(f"connections={connections}: at least 1 is needed")
        self._namespace = namespace
        self._schema = schema
        self._pooled = pooled
        self._clock_ms = None if clock is None else clock.wall_ms
        self._make_pool = partial(
            PostgresPool, dsn, schema=schema, size=connections, pooled=pooled, setup=self._verify
        )
        self._bell = Bell()
        self._opening = asyncio.Lock()
        self._identity: NamespaceIdentity | None = None
        self._pool: PostgresPool | None = None
        self._listener: NotifyListener | None = None
        self._returns = LeaseReturns(self.settle)
        self._laned: set[str] = set()
        self._flowing: set[str] = set()
        self._recount_cursor = upkeep.RecountProgress()

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
        before = [] if queue.expires_ms else await self._run(queues.list_queues, (queue.name,))
        has_expiry = queue.expires_ms or any(view.queue.expires_ms for view in before)
        written, unsorted = await self._run(queues.declare, queue, instead_of)
        if unsorted is not None:
            # The queue is declared. If sorting its jobs into lanes fails, the next lease continues.
            with contextlib.suppress(EngineError):
                await self._sort_into_lanes(unsorted)
        after: int | None = 0 if written and has_expiry else None
        while after is not None:
            after = await self._run(write.correct_expiries, queue.name, after)
        self._bell.announce()
        return written

    async def drop(self, name: str) -> None:
        if not bounds.QUEUE_NAME.match(name):
            return
        number = await self._run(queues.drop, name)
        # The queue is dropped. Each batch is a separate transaction; if one fails, the pruner
        # continues.
        purged = number is not None
        with contextlib.suppress(EngineError):
            while purged:
                purged = await self._run(queues.purge, number) > 0
        # Its leases may have held slots that waiting leases need.
        self._bell.announce()

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        read = queues.count_queues if counts else queues.list_queues
        return await self._read(read, names)

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        """See `Countable`."""
        return await self._read(partial(queues.count_queues, most=most), names)

    async def revision(self) -> str | None:
        """See `Revisioned`. It also changes if another database of the server is written."""
        return await self._read(search.revision)

    async def count_revision(self) -> str | None:
        """See `Revisioned`."""
        return await self._read(queues.count_revision)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        checks.check_batch(len(jobs))
        receipts = await self._run(enqueue.enqueue, jobs)
        self._bell.announce()
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        checks.check_request(request)
        self._opened()
        if request.wait_ms == 0:
            return await self._lease(request)
        wait = LeaseWait(self._lease, self._next_due, self._count_skipped)
        leases = await lease_with_wait(
            request,
            wait.attempt,
            self._bell,
            net_ms=random.randint(*_NET_MS),
            open_=lambda: self._pool is not None,
        )
        if not leases and wait.failure is not None and self._pool is not None:
            raise wait.failure
        return leases

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        checks.check_renewals(renewals)
        return await self._run(settle.renew, renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        checks.check_batch(len(settlements))
        outcomes = await self._run(settle.settle, settlements)
        if may_make_due(settlements) or self._may_free_others(settlements):
            self._bell.announce()
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        """Also notifies children of endings that a dead process did not report, because the next
        recount may be far away.
        """
        checks.check_page(limit)
        await self._tell_children(await self._read(upkeep.untold_endings, limit))
        return await self._read(upkeep.overdue, limit)

    async def expired(self, limit: int) -> Expired:
        checks.check_page(limit)
        return await self._read(upkeep.expired, limit)

    async def finished(self, limit: int) -> list[Job]:
        checks.check_page(limit)
        return await self._run(upkeep.finished, limit)

    async def recount(self, limit: int) -> int:
        checks.check_page(limit)
        repaired = await self._run(upkeep.recount, self._recount_cursor, limit)
        if repaired:
            self._bell.announce()
        return repaired

    async def flow(self, queue: str, *, limit: int) -> Flow:
        checks.check_page(limit)
        return await self._read(partial(status.read_flow, limit=limit), queue)

    async def waits(self, id: str) -> Waits | None:
        if not bounds.JOB_ID.match(id):
            self._opened()
            return None
        return await self._read(status.read_waits, id)

    async def get(self, id: str) -> Job | None:
        if not bounds.JOB_ID.match(id):
            self._opened()
            return None
        return await self._read(search.get, id)

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        return await self._read(partial(search.find, limit=limit, after=after), wanted)

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """See `ListsRows`."""
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        find = partial(search.find, limit=limit, after=after, payloads=False)
        return await self._read(find, wanted)

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        checks.check_page(limit)
        checks.check_filter(wanted)
        return await self._read(partial(search.tally, limit=limit), wanted, by)

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        checks.check_page(limit)
        checks.check_filter(wanted)
        checks.check_amendment(amendment)
        total = 0
        with unknown_if_partial(lambda: total):
            # Jobs that another call changed before they were locked are replaced by further ones.
            for _ in range(_AMEND_ROUNDS_MAX):
                call = partial(amend.amend, limit=limit - total)
                count, lost = await self._run(call, wanted, amendment)
                self._bell.announce()
                total += count
                if not lost or total >= limit:
                    break
        return total

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        checks.check_load(kind, after, limit)
        return await self._read(partial(queues.load_records, after=after, limit=limit), kind)

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        return await self._run(queues.save_records, records)

    async def examine(self, *, deep: bool = False) -> Examination:
        """The server's clock, version and risky settings; `deep` adds nothing."""
        return await self._read(upkeep.examine)

    def wake(self) -> None:
        """Make the waiting leases look again."""
        self._bell.ring()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a call of this engine may have made a job due."""
        self._bell.on_announce(listener)

    def mover(self) -> PostgresMover:
        """Exports and imports complete jobs."""
        return PostgresMover(self._read, self._run)

    def within(self, connection: Any) -> PostgresWithin | AsyncPostgresWithin:
        """Enqueue and settle in the open transaction of `connection`: the changes take effect when
        the caller commits, and not at all if it rolls back."""
        _, context = self._opened()
        assert self._identity is not None
        context.effects.is_final = True
        return within(connection, WithinTarget(self._identity, self._schema, context))

    async def missing_schema(self) -> str:
        """The schema that `open` would have to create, in words; "" if it exists."""
        pool = self._make_pool()
        try:
            found = await pool.open(lambda connection: exists(connection, self._schema))
        finally:
            await pool.close()
        return "" if found else f"there is no Holdfast schema {self._schema!r} in {pool.where}"

    async def _open(self) -> None:
        pool = self._make_pool()
        try:
            self._identity = await pool.open(
                lambda connection: prepare(connection, self._schema, self._namespace)
            )
            self._pool = pool
            await self._run(queues.declare_default)
        except BaseException:
            self._pool = None
            await pool.close()
            raise
        self._listener = None if self._pooled else NotifyListener(pool, self._bell)

    async def _run(self, call: Callable[..., Script[T]], *arguments: object) -> T:
        """Run a script that writes, and notify the children of jobs that it ended."""
        result, endings = await self._write(call, *arguments)
        if endings:
            await self._tell_children(endings)
        return result

    async def _write(
        self, call: Callable[..., Script[T]], *arguments: object
    ) -> tuple[T, list[int]]:
        """Run a script that writes; returns its result and the endings of which children must be
        notified.
        """
        pool, context = self._opened()

        def begin() -> Script[T]:
            context.effects.endings.clear()
            return call(context, *arguments)

        with unknown_if_partial(lambda: context.effects.is_in_part):
            result = await pool.run(begin)
        return result, context.effects.committed + context.effects.endings

    async def _tell_children(self, endings: list[int]) -> None:
        """Notify the children of ended parents, in the order of the endings, and their children in
        turn. A failure is ignored: the call has succeeded, and the reaper notifies the rest.
        """
        with contextlib.suppress(EngineError):
            while endings:
                batch = endings[: dependencies.TELL_BATCH]
                endings = endings[dependencies.TELL_BATCH :]
                is_left = True
                while is_left:
                    is_left, further = await self._write(dependencies.tell_children, batch)
                    endings += further
                    self._bell.announce()

    async def _sort_into_lanes(self, number: int) -> None:
        """Each step is a separate transaction; if one fails, the next lease continues."""
        while await self._run(lanes.relane_step, number):
            pass

    def _may_free_others(self, settlements: Sequence[Settlement]) -> bool:
        """Whether the end of these leases may let other jobs start."""
        for settlement in settlements:
            job = settlement.lease.job
            if job.group is not None or job.queue in self._laned:
                return True
        return False

    async def _read(self, call: Callable[..., Script[T]], *arguments: object) -> T:
        pool, context = self._opened()
        return await pool.run(lambda: call(context, *arguments), writes=False)

    def _opened(self) -> tuple[PostgresPool, CallContext]:
        if self._pool is None or self._identity is None:
            raise EngineClosed("the PostgreSQL engine is not open")
        effects = Effects(self._laned, self._flowing)
        return self._pool, CallContext(self._identity.ns, self._clock_ms, effects)

    async def _lease(self, request: LeaseRequest) -> list[Lease]:
        """A cancelled call is not interrupted: its leases are released when they arrive."""
        under_way = asyncio.create_task(self._lease_once(request))
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            self._returns.begin(under_way)
            raise

    async def _lease_once(self, request: LeaseRequest) -> list[Lease]:
        while True:
            leases = await self._run(lease.lease, request)
            if not isinstance(leases, int):
                return leases
            await self._sort_into_lanes(leases)

    async def _next_due(self, request: LeaseRequest, since: int | None) -> NextDue:
        """The time until the next job becomes due, read before a wait. The listener is started
        first.
        """
        _, context = self._opened()
        if self._listener is not None:
            await self._listener.start(f"{self._schema[:40]}_{context.ns}")
        call = partial(next_due, listens=self._listener is not None)
        return await self._run(call, request, since)

    async def _count_skipped(self, request: LeaseRequest, now: int) -> int:
        return await self._read(count_skipped, request, now)

    async def _verify(self, connection: PostgresConnection) -> None:
        """Check that a new connection leads to the store that was opened."""
        identity = await identify(connection, self._schema, self._namespace)
        if identity != self._identity:
            raise SchemaMismatch(
                f"the schema {self._schema} is not the one that was opened: open the engine again"
            )
