"""SQLiteEngine: runs each Engine verb as transactions in the writer's or the reader's thread.

It holds no SQL and no policy: `database` owns the transactions, the other modules their statements.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

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
from holdfast.engines.base import ANY, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.clock import Clock, SystemClock
from holdfast.engines.extras import Examination
from holdfast.engines.lease import Bell, LeaseAttempt, LeaseReturns, lease_with_wait, may_make_due
from holdfast.engines.sqlite import amend, enqueue, lease, queues, search, settle, upkeep
from holdfast.engines.sqlite.connection import Durability, back_up
from holdfast.engines.sqlite.database import Database, SerialThread, StartGuard
from holdfast.engines.sqlite.faults import FilesChanged
from holdfast.engines.sqlite.files import FLOOR_BYTES, Disk, Files
from holdfast.engines.sqlite.flow import lanes, status
from holdfast.engines.sqlite.lease import DueCheck
from holdfast.engines.sqlite.move import SQLiteMover
from holdfast.engines.sqlite.transaction import Transaction
from holdfast.engines.sqlite.wait import ChangeListener
from holdfast.engines.sqlite.within import SQLiteWithin
from holdfast.errors import ConfigError, EngineClosed, EngineError

Result = TypeVar("Result")

_TRAITS = Traits(
    name="sqlite",
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
_POLL_NET_MS = 1_000
_JOIN_S = 1.0
_LEASE_ROUNDS_MAX = 10

Leased = tuple[list[Lease], DueCheck]
"""The leases taken, and the last check for due jobs."""


class SQLiteEngine:
    """An `Engine` on one SQLite file. Opened and used from one event loop of one process."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "default",
        durability: Durability = "full",
        clock: Clock | None = None,
        vfs: str | None = None,
        floor_bytes: int = FLOOR_BYTES,
    ) -> None:
        if not bounds.NAMESPACE.match(namespace):
            raise ConfigError(
                f"namespace {namespace[:80]!r} is not valid: use 1 to 80 characters of A-Z a-z"
                " 0-9 _ . -"
            )
        if durability not in ("full", "relaxed"):
            raise ConfigError(f"durability {durability!r} is unknown: use full or relaxed")
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._files = Files(path)
        self._disk = Disk(self._files, floor_bytes)
        self._new_database = partial(
            Database,
            self._files,
            disk=self._disk,
            clock=self._clock,
            namespace=namespace,
            durability=durability,
            vfs=vfs,
        )
        self._bell = Bell()
        self._recount_cursor = upkeep.RecountCursor()
        self._opening = asyncio.Lock()
        self._returns = LeaseReturns(self.settle)
        self._open = False
        self._pid = os.getpid()

    @property
    def traits(self) -> Traits:
        return _TRAITS

    async def open(self) -> None:
        await self._begin(create=True)

    async def reopen(self) -> None:
        """Open an existing file; one that is missing is not created."""
        await self._begin(create=False)

    async def _begin(self, *, create: bool) -> None:
        async with self._opening:
            if self._open:
                self._check_open()
                return
            self._pid = os.getpid()
            writer, reader = (
                SerialThread("holdfast-sqlite-writer"),
                SerialThread("holdfast-sqlite-reader"),
            )
            # A new one each time: a thread that still waits for a lock keeps the last one.
            database = self._new_database()
            writer.start()
            try:
                await writer.call(partial(database.open, create=create))
            except BaseException:
                await writer.end(database.close, _JOIN_S)
                raise
            reader.start()
            self._database, self._writer, self._reader = database, writer, reader
            self._loop = asyncio.get_running_loop()
            self._listener = ChangeListener(self._files.bell, self._bell.ring, self._data_version)
            self._open = True
        # Rows of dropped queues that cannot be deleted now are left to the pruner.
        with contextlib.suppress(EngineError):
            await self._finish_drops()

    async def close(self) -> None:
        async with self._opening:
            if not self._open:
                return
            self._check_open()
            await self._returns.ended()
            self._open = False
            self._bell.ring()
            self._listener.close()
            self._reader.stop()
            await self._writer.end(partial(_close, self._reader, self._database))

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._check_open()
        checks.check_queue(queue)
        declared = await self._write(
            lambda transaction: queues.declare(transaction, queue, instead_of)
        )
        with contextlib.suppress(EngineError):
            # The queue is declared; the next lease continues the relaning if this fails.
            await self._relane(queue.name)
        cursor = lanes.WALK_START if declared.has_expiry else None
        while cursor is not None:
            cursor = await self._write(partial(queues.expiry_step, name=queue.name, cursor=cursor))
        self._bell.announce()
        return declared.is_written

    async def drop(self, name: str) -> None:
        self._check_open()
        await self._write(lambda transaction: queues.begin_drop(transaction, name))
        with contextlib.suppress(EngineError):
            # The queue is gone; if this fails, the pruner deletes the rest.
            await self._finish_drops()
        # Dropped jobs may have held slots or been parents of others.
        self._bell.announce()

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        self._check_open()
        return await self._read(lambda transaction: queues.views(transaction, names, counts=counts))

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        """See `Countable`."""
        self._check_open()
        return await self._read(
            lambda transaction: queues.views(transaction, names, counts=True, most=most)
        )

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._check_open()
        checks.check_batch(len(jobs))
        grows_bytes = sum([len(job.payload) for job in jobs])
        work = partial(enqueue.enqueue, jobs=jobs)
        receipts = await self._write(work, grows_bytes=grows_bytes)
        self._bell.announce()
        return receipts

    @property
    def is_direct(self) -> bool:
        """See `EnqueuesDirectly`."""
        return True

    def enqueue_directly(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """See `EnqueuesDirectly`. The call waits for the writer's thread, not for the loop."""
        self._check_open()
        checks.check_batch(len(jobs))
        grows_bytes = sum([len(job.payload) for job in jobs])
        work = partial(enqueue.enqueue, jobs=jobs)
        receipts = self._writer.call_blocking(
            lambda guard: self._database.write(work, guard, grows_bytes=grows_bytes)
        )
        # A lease that begins to wait after this look has looked for jobs after the commit.
        if self._listener.is_in_use or self._bell.has_listeners:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._bell.announce)
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self._check_open()
        checks.check_request(request)
        if request.wait_ms == 0:
            return (await self._try_lease(request)).leases
        with self._listener.listening():
            return await lease_with_wait(
                request, self._try_lease, self._bell, net_ms=_POLL_NET_MS, open_=lambda: self._open
            )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._check_open()
        checks.check_renewals(renewals)
        return await self._write(
            lambda transaction: settle.renew(transaction, renewals), urgent=True
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._check_open()
        checks.check_batch(len(settlements))
        # A job that ends may free a slot, its group or its children.
        outcomes, notifies = await self._write(
            lambda transaction: (settle.settle(transaction, settlements), transaction.notifies)
        )
        if notifies or may_make_due(settlements):
            self._bell.announce()
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda transaction: upkeep.overdue(transaction, limit))

    async def expired(self, limit: int) -> Expired:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda transaction: upkeep.expired(transaction, limit))

    async def finished(self, limit: int) -> list[Job]:
        self._check_open()
        checks.check_page(limit)
        jobs, keys = await self._read(
            lambda transaction: (upkeep.finished(transaction, limit), upkeep.free_keys(transaction))
        )
        if keys:
            await self._write(lambda transaction: upkeep.delete_keys(transaction, keys))
        await self._finish_drops()
        return jobs

    async def recount(self, limit: int) -> int:
        self._check_open()
        checks.check_page(limit)
        cursor = self._recount_cursor
        found = await self._read(
            lambda transaction: upkeep.find_discrepancies(transaction, cursor, limit)
        )
        self._recount_cursor = found.cursor
        repaired = (
            await self._write(partial(upkeep.repair_discrepancies, found=found)) if found.any else 0
        )
        await self._write(partial(upkeep.prune_flow, limit=limit))
        if repaired:
            self._bell.announce()
        return repaired

    async def flow(self, queue: str, *, limit: int) -> Flow:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda transaction: status.flow_of(transaction, queue, limit))

    async def waits(self, id: str) -> Waits | None:
        self._check_open()
        return await self._read(lambda transaction: status.waits_of(transaction, id))

    async def get(self, id: str) -> Job | None:
        self._check_open()
        return await self._read(lambda transaction: search.get(transaction, id))

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self._check_open()
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        return await self._read(lambda transaction: search.find(transaction, wanted, limit, after))

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """See `ListsRows`."""
        self._check_open()
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        return await self._read(
            lambda transaction: search.find(transaction, wanted, limit, after, payloads=False)
        )

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        return await self._read(lambda transaction: search.tally(transaction, wanted, by, limit))

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        checks.check_amendment(amendment)
        try:
            return await amend.amend_in_rounds(
                self._read, self._write, wanted, amendment, limit=limit
            )
        finally:
            self._bell.announce()

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._check_open()
        checks.check_load(kind, after, limit)
        return await self._read(
            lambda transaction: queues.load_records(transaction, kind, after, limit)
        )

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._check_open()
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        return await self._write(lambda transaction: queues.save_records(transaction, records))

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the database, as it is now, to a new file that only its owner can read."""
        self._check_open()
        await asyncio.to_thread(back_up, self._database.connect_reader, Path(path))

    def within(self, connection: apsw.Connection) -> SQLiteWithin:
        """Enqueue and settle in the caller's own transaction on this file."""
        self._check_open()
        return SQLiteWithin(
            connection,
            files=self._files,
            check_files=self._database.check_caller,
            disk=self._disk,
            clock=self._clock,
            namespace=self._namespace,
        )

    def missing(self, *, creating: bool = False) -> str:
        """Name the first thing that opening would have to create, or "".

        With `creating`, only a missing folder counts. Changes nothing; blocks on the disk.
        """
        return self._new_database().missing(creating=creating)

    async def trouble(self) -> list[str]:
        """Problems that an operator should fix although everything still works."""
        self._check_open()
        return await asyncio.to_thread(self._database.trouble)

    async def examine(self, *, deep: bool = False) -> Examination:
        """Versions, free space and problems; `deep` also checks every page for damage."""
        self._check_open()
        now = self._clock.wall_ms()
        return await asyncio.to_thread(self._database.examine, now, deep=deep)

    def wake(self) -> None:
        """Make the waiting leases look again."""
        self._bell.ring()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a call of this engine may have made a job due."""
        self._bell.on_announce(listener)

    def mover(self) -> SQLiteMover:
        """Exports and imports complete jobs."""
        self._check_open()
        return SQLiteMover(self._read, self._write)

    async def _try_lease(self, request: LeaseRequest) -> LeaseAttempt:
        """Lease once."""
        known: DueCheck | None = None
        next_ms: int | None = None
        skipped = 0
        # More rounds only if another process was faster, or if many jobs had expired.
        for _ in range(_LEASE_ROUNDS_MAX):
            take = partial(self._look_and_take, request, known)
            leases, seen = await self._writer.call(take, orphan=self._release)
            if leases:
                return LeaseAttempt(leases)
            if seen.needs_relane is not None:
                await self._relane(seen.needs_relane)
                known = None
                continue
            next_ms, skipped = seen.next_ms, seen.skipped
            while seen.resume is not None:
                # In the reader's thread, so that the writer's is free for renewals.
                look = partial(lease.check_due, request=request, after=seen.resume)
                seen = await self._read(look)
                times = [ms for ms in (next_ms, seen.next_ms) if ms is not None]
                next_ms = min(times, default=None)
                skipped += seen.skipped
            if next_ms != 0:
                break
            known = seen
        return LeaseAttempt([], next_ms, skipped)

    def _look_and_take(
        self, request: LeaseRequest, known: DueCheck | None, guard: StartGuard
    ) -> Leased:
        """In the writer's thread: check without the lock, then lease in a transaction."""
        database = self._database
        look = partial(lease.check_due, request=request)
        seen = database.peek(look) if known is None else known
        if seen.next_ms != 0 or seen.needs_relane is not None:
            return [], seen
        take = partial(lease.take, request=request, start=seen.start)
        leases = database.write(take, guard)
        return leases, seen if leases else database.peek(look)

    def _release(self, leased: Leased) -> None:
        """Release leases whose caller was cancelled while they were taken."""
        leases, _ = leased
        if leases and self._open:
            self._returns.begin(leases)

    async def _finish_drops(self) -> None:
        while await self._read(queues.is_dropping):
            await self._write(queues.drop_step)

    async def _relane(self, queue: str | int) -> None:
        """Move a queue's jobs into the lanes that its settings demand, step by step."""
        while await self._write(partial(lanes.relane_step, queue=queue)):
            pass

    async def _write(
        self,
        work: Callable[[Transaction], Result],
        *,
        grows_bytes: int | None = None,
        urgent: bool = False,
    ) -> Result:
        def call(guard: StartGuard) -> Result:
            return self._database.write(work, guard, grows_bytes=grows_bytes)

        return await self._writer.call(call, urgent=urgent)

    async def _read(self, work: Callable[[Transaction], Result]) -> Result:
        def call(guard: StartGuard) -> Result:
            return self._database.read(work, guard)

        try:
            return await self._reader.call(call)
        except FilesChanged:
            # Only the writer can save the commits of a file that was removed.
            with contextlib.suppress(EngineError):
                await self._writer.call(lambda _guard: self._database.reattach())
            raise

    async def revision(self) -> str | None:
        """See `Revisioned`."""

        def read(transaction: Transaction) -> str:
            # The number belongs to the connection, which may be opened again.
            connection = transaction.connection
            return f"{id(connection)}-{transaction.run('PRAGMA data_version').get}"

        return await self._read(read)

    async def count_revision(self) -> str | None:
        """See `Revisioned`."""
        return await self._read(queues.count_revision)

    async def _data_version(self) -> int:
        return await self._read(lambda transaction: int(transaction.run("PRAGMA data_version").get))

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosed(
                f"this engine was opened by process {self._pid}, and an SQLite connection does"
                " not survive a fork: open a new engine in this process"
            )
        if not self._open:
            raise EngineClosed("the SQLite engine is not open: call open() first")


def _close(reader: SerialThread, database: Database) -> None:
    """Runs last in the writer's thread. A hanging reader keeps its connection open."""
    if reader.join():
        database.close()
