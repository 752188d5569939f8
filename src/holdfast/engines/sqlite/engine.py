"""SQLiteEngine: the Engine's calls, each handed to the writer's or the reader's thread.

It holds no SQL and makes no decision: `store` owns the transactions, the other modules what is
done in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

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
from holdfast.engines.clock import Clock, SystemClock
from holdfast.engines.returning import Returns
from holdfast.engines.sqlite import (
    amend,
    backup,
    enqueue,
    examine,
    insight,
    inspect,
    pruning,
    queues,
    recount,
    renew,
    settle,
    sorting,
)
from holdfast.engines.sqlite import records as recording
from holdfast.engines.sqlite.adopt import SQLiteMover
from holdfast.engines.sqlite.attempt import Answer, Attempt
from holdfast.engines.sqlite.bell import Watch
from holdfast.engines.sqlite.connection import Durability
from holdfast.engines.sqlite.disk import FLOOR_BYTES, Disk
from holdfast.engines.sqlite.files import Files
from holdfast.engines.sqlite.store import Store
from holdfast.engines.sqlite.threads import Turn, Worker
from holdfast.engines.sqlite.unit import Unit
from holdfast.engines.sqlite.within import Within
from holdfast.engines.waiting import Bell, lease_patiently, may_make_due
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
)
_POLL_NET_MS = 1_000
_FAREWELL_S = 1.0


class SQLiteEngine:
    """See `Engine`. Opened and used from one event loop of one process."""

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
        if not limits.NAMESPACE.match(namespace):
            raise ConfigError(f"namespace {namespace[:80]!r} is not 1 to 80 of A-Z a-z 0-9 _ . -")
        if durability not in ("full", "relaxed"):
            raise ConfigError(f"durability {durability!r} is not full or relaxed")
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._files = Files(path)
        self._disk = Disk(self._files, floor_bytes)
        self._new_store = partial(
            Store,
            self._files,
            disk=self._disk,
            clock=self._clock,
            namespace=namespace,
            durability=durability,
            vfs=vfs,
        )
        self._bell = Bell()
        self._recounted = recount.Cursor()
        self._opening = asyncio.Lock()
        self._returns = Returns(self.settle)
        self._open = False
        self._pid = os.getpid()

    @property
    def traits(self) -> Traits:
        return _TRAITS

    async def open(self) -> None:
        await self._begin(create=True)

    async def reopen(self) -> None:
        """Open what was there before: a file that is gone is not made anew."""
        await self._begin(create=False)

    async def _begin(self, *, create: bool) -> None:
        async with self._opening:
            if self._open:
                self._check_open()
                return
            self._pid = os.getpid()
            writer, reader = Worker("holdfast-sqlite-writer"), Worker("holdfast-sqlite-reader")
            # A store of its own each time: a thread that still hangs in a lock keeps the last one.
            store = self._new_store()
            writer.start()
            try:
                await writer.call(partial(store.open, create=create))
            except BaseException:
                writer.stop(store.close)
                await asyncio.to_thread(writer.join, _FAREWELL_S)
                raise
            reader.start()
            self._store, self._writer, self._reader = store, writer, reader
            self._attempt = Attempt(
                store, writer, read=self._read, sort=self._sort, orphan=self._release
            )
            self._watch = Watch(self._files.bell, self._bell.ring, self._data_version)
            self._open = True
        # What cannot be removed now harms nobody, and the pruner comes by again.
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
            self._watch.close()
            self._reader.stop()
            self._writer.stop(partial(_wind_up, self._reader, self._store))
            await asyncio.to_thread(self._writer.join)

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._check_open()
        checks.check_queue(queue)
        written = await self._write(lambda unit: queues.declare(unit, queue, instead_of))
        with contextlib.suppress(EngineError):
            # It is declared by now; what is not sorted here the next lease sorts.
            await self._sort(queue.name)
        self._bell.ring()
        return written

    async def drop(self, name: str) -> None:
        self._check_open()
        await self._write(lambda unit: queues.begin_drop(unit, name))
        with contextlib.suppress(EngineError):
            # It is gone by now; what is left of it the pruner removes.
            await self._finish_drops()
        # What was dropped may have held slots, or been waited for.
        self._bell.ring()

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        self._check_open()
        return await self._read(lambda unit: queues.views(unit, counts=counts))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._check_open()
        checks.check_batch(len(jobs))
        grows_bytes = sum([len(job.payload) for job in jobs])
        work = partial(enqueue.enqueue, jobs=jobs)
        receipts = await self._write(work, grows_bytes=grows_bytes)
        self._bell.ring()
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self._check_open()
        checks.check_request(request)
        if request.wait_ms == 0:
            return (await self._attempt(request))[0]
        with self._watch.listening():
            return await lease_patiently(
                request, self._attempt, self._bell, net_ms=_POLL_NET_MS, open_=lambda: self._open
            )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._check_open()
        checks.check_renewals(renewals)
        return await self._write(lambda unit: renew.renew(unit, renewals), urgent=True)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._check_open()
        checks.check_batch(len(settlements))
        # A job that ends may free a slot, or others that came behind it or waited for it.
        outcomes, rings = await self._write(
            lambda unit: (settle.settle(unit, settlements), unit.rings)
        )
        if rings or may_make_due(settlements):
            self._bell.ring()
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda unit: inspect.overdue(unit, limit))

    async def expired(self, limit: int) -> Expired:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda unit: inspect.expired(unit, limit))

    async def finished(self, limit: int) -> list[Job]:
        self._check_open()
        checks.check_page(limit)
        jobs, keys = await self._read(
            lambda unit: (inspect.finished(unit, limit), inspect.free_keys(unit))
        )
        if keys:
            await self._write(lambda unit: inspect.drop_keys(unit, keys))
        await self._finish_drops()
        return jobs

    async def recount(self, limit: int) -> int:
        self._check_open()
        checks.check_page(limit)
        cursor = self._recounted
        found = await self._read(lambda unit: recount.suspect(unit, cursor, limit))
        self._recounted = found.cursor
        mended = await self._write(partial(recount.mend, found=found)) if found.any else 0
        await self._write(partial(pruning.prune, limit=limit))
        if mended:
            self._bell.ring()
        return mended

    async def flow(self, queue: str, *, limit: int) -> Flow:
        self._check_open()
        checks.check_page(limit)
        return await self._read(lambda unit: insight.flow_of(unit, queue, limit))

    async def waits(self, id: str) -> Waits | None:
        self._check_open()
        return await self._read(lambda unit: insight.waits_of(unit, id))

    async def get(self, id: str) -> Job | None:
        self._check_open()
        return await self._read(lambda unit: inspect.get(unit, id))

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self._check_open()
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        return await self._read(lambda unit: inspect.find(unit, wanted, limit, after))

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        return await self._read(lambda unit: inspect.tally(unit, wanted, by, limit))

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        checks.check_amendment(amendment)
        try:
            return await amend.in_rounds(self._read, self._write, wanted, amendment, limit=limit)
        finally:
            self._bell.ring()

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._check_open()
        checks.check_load(kind, after, limit)
        return await self._read(lambda unit: recording.load(unit, kind, after, limit))

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._check_open()
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        return await self._write(lambda unit: recording.save(unit, records))

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the whole database, as it is now, to a new file that only its owner can read."""
        self._check_open()
        await asyncio.to_thread(backup.back_up, self._store, Path(path))

    def within(self, connection: apsw.Connection) -> Within:
        """Enqueue and settle in the caller's own transaction on the same file."""
        self._check_open()
        return Within(
            connection,
            files=self._files,
            disk=self._disk,
            clock=self._clock,
            namespace=self._namespace,
        )

    def missing(self, *, creating: bool = False) -> str:
        """What is not there that opening would make; "" when all is. `creating`: a file may be
        made, but no folder. It changes nothing, and waits for the disk."""
        return self._new_store().missing(creating=creating)

    async def trouble(self) -> list[str]:
        """What a person should see to although everything still works; empty when all is well."""
        self._check_open()
        return await asyncio.to_thread(self._store.trouble)

    async def examine(self, *, deep: bool = False) -> Examination:
        """Everything there is to say about the file; `deep` reads all of it."""
        self._check_open()
        now = self._clock.wall_ms()
        return await asyncio.to_thread(examine.examine, self._store, now, deep=deep)

    def mover(self) -> SQLiteMover:
        """Whole jobs out of this store and into it, as they are."""
        self._check_open()
        return SQLiteMover(self._read, self._write)

    async def _finish_drops(self) -> None:
        while await self._read(queues.is_dropping):
            await self._write(queues.go_on_dropping)

    async def _sort(self, queue: str | int) -> None:
        """Put a queue's jobs into the lanes its settings ask for, step by step."""
        while await self._write(partial(sorting.go_on, queue=queue)):
            pass

    def _release(self, answer: Answer) -> None:
        """The caller was cancelled while its jobs were being leased: nobody else has them."""
        leases, _ = answer
        if leases and self._open:
            self._returns.begin(leases)

    async def _write(
        self,
        work: Callable[[Unit], Result],
        *,
        grows_bytes: int | None = None,
        urgent: bool = False,
    ) -> Result:
        def call(turn: Turn) -> Result:
            return self._store.write(work, turn, grows_bytes=grows_bytes)

        return await self._writer.call(call, urgent=urgent)

    async def _read(self, work: Callable[[Unit], Result]) -> Result:
        def call(turn: Turn) -> Result:
            return self._store.read(work, turn)

        return await self._reader.call(call)

    async def _data_version(self) -> int:
        return await self._read(lambda unit: int(unit.run("PRAGMA data_version").get))

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosed(
                f"this engine was opened by process {self._pid}, and an SQLite connection does"
                " not survive a fork: open a new engine in this process"
            )
        if not self._open:
            raise EngineClosed("the SQLite engine is not open: call open() first")


def _wind_up(reader: Worker, store: Store) -> None:
    """The last act of the writer's thread. A reader that hangs keeps what it still uses."""
    if reader.join():
        store.close()
