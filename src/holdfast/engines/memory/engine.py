"""The reference engine: the contract compares all others with it. Read this one first.

No call awaits anything while it changes the store, so each call is a transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy

from msgspec.structs import replace

from holdfast.core import amend as amending
from holdfast.core import checks, lifecycle, retry_policy
from holdfast.core.amend import matches
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
    State,
    Tally,
    TallyBy,
    Waits,
)
from holdfast.core.verdict import Amendment, Cancel, Move, Outcome, Settlement
from holdfast.engines.base import ANY, Expired, Known, Overdue, Saved, Traits
from holdfast.engines.clock import Clock, SystemClock
from holdfast.engines.extras import Examination
from holdfast.engines.lease import Bell, LeaseAttempt, lease_with_wait
from holdfast.engines.memory.counts import count_jobs, flow_of, next_start_ms, waits_of
from holdfast.engines.memory.lease import LeaseSelection
from holdfast.engines.memory.move import MemoryMover
from holdfast.engines.memory.store import JobRow, MemoryStore, for_list, for_reaper
from holdfast.errors import EngineClosed

_TRAITS = Traits(
    name="memory", durable=False, shared=False, groups=True, dependencies=True, rates=True,
    dead_leases=True,
    queue_expiry=True,
    key_hold=True,
    parent_filter=True,
)  # fmt: skip
_POLL_NET_MS = 1_000


class MemoryEngine:
    """See `Engine`."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._store = MemoryStore(self._clock)
        self._records: dict[str, dict[str, tuple[Record, int]]] = defaultdict(dict)
        """By kind and key, with the time at which each was saved."""
        self._bell = Bell()
        self._open = False

    @property
    def traits(self) -> Traits:
        return _TRAITS

    async def open(self) -> None:
        self._open = True
        self._store.queues.setdefault("default", Queue(name="default"))

    async def close(self) -> None:
        self._open = False
        self._bell.ring()

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        self._check_open()
        checks.check_queue(queue)
        checks.check_dead_queue(queue, self._store.queues)
        if instead_of is not ANY and instead_of != self._store.queues.get(queue.name):
            return False
        self._store.queues[queue.name] = queue
        for row in self._store.waiting.all_of(queue.name):
            row.job = lifecycle.with_queue_expiry(row.job, queue)
        self._store.slots.declared(queue, self._store.queues.values())
        self._bell.announce()
        return True

    async def drop(self, name: str) -> None:
        self._check_open()
        store = self._store
        store.queues.pop(name, None)
        gone = [row for row in store.rows.values() if row.job.queue == name]
        for row in sorted(gone, key=lambda row: row.job.seq):
            store.remove(row)
        store.apply_parent_effects()
        store.tenants.forget(name)
        for held in [held for held in store.keys if held[0] == name]:
            del store.keys[held]
        self._bell.announce()

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        self._check_open()
        known = self._store.queues
        chosen = sorted(known if names is None else known.keys() & set(names))
        found = [QueueView(queue=known[name]) for name in chosen]
        return [count_jobs(self._store, view) for view in found] if counts else found

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        """See `Countable`. All counts of this engine are exact."""
        return await self.queues(names=names)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self._check_open()
        checks.check_batch(len(jobs))
        receipts = self._store.enqueue(jobs)
        self._store.apply_parent_effects()
        self._bell.announce()
        return receipts

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        self._check_open()
        checks.check_request(request)
        return await lease_with_wait(
            request, self._try_lease, self._bell, net_ms=_POLL_NET_MS, open_=lambda: self._open
        )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        self._check_open()
        checks.check_renewals(renewals)
        return [self._store.renew(renewal) for renewal in renewals]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        self._check_open()
        checks.check_batch(len(settlements))
        outcomes = [self._store.settle(settlement) for settlement in settlements]
        self._store.apply_parent_effects()
        self._bell.announce()
        return outcomes

    async def overdue(self, limit: int) -> Overdue:
        self._check_open()
        checks.check_page(limit)
        now = self._clock.boot_ms()
        leased = [row for row in self._store.rows.values() if row.job.state is State.LEASED]
        leased.sort(key=lambda row: (row.deadline, row.job.seq))
        lapsed = [row for row in leased if row.deadline <= now]
        leases = tuple(
            Lease(job=for_reaper(self._with_deadline(row)), token=row.job.token or 0, lease_ms=0)
            for row in lapsed[:limit]
        )
        if len(lapsed) >= limit:
            return Overdue(leases=leases, next_ms=0)
        ahead = leased[len(lapsed) :]
        return Overdue(leases=leases, next_ms=ahead[0].deadline - now if ahead else None)

    async def expired(self, limit: int) -> Expired:
        self._check_open()
        checks.check_page(limit)
        now = self._clock.wall_ms()
        bounded = [
            (row.job.expires_at, row.job.seq, row.job)
            for row in self._store.rows.values()
            if row.job.state is State.WAITING and row.job.expires_at is not None
        ]
        bounded.sort(key=lambda entry: entry[:2])
        past = tuple(for_reaper(job) for at, _, job in bounded if at <= now)
        if len(past) >= limit:
            return Expired(jobs=past[:limit], next_ms=0)
        ahead = bounded[len(past) :]
        return Expired(jobs=past, next_ms=ahead[0][0] - now if ahead else None)

    async def finished(self, limit: int) -> list[Job]:
        self._check_open()
        checks.check_page(limit)
        now = self._clock.wall_ms()
        store = self._store
        past = [row for row in store.rows.values() if self._past_retention(row.job, now)]
        past.sort(key=lambda row: (row.job.finished_at or 0, row.job.seq))
        for held, (id_, until) in list(store.keys.items()):
            row = store.rows.get(id_)
            if until <= now and (row is None or row.job.has_ended):
                del store.keys[held]
        return [self._full_job(row) for row in past[:limit]]

    async def recount(self, limit: int) -> int:
        """Always 0: the counters and the jobs cannot disagree."""
        self._check_open()
        checks.check_page(limit)
        return 0

    async def flow(self, queue: str, *, limit: int) -> Flow:
        self._check_open()
        checks.check_page(limit)
        known = self._store.queues.get(queue)
        if known is None:
            raise checks.unknown_queue(queue)
        return flow_of(self._store, known, limit)

    async def waits(self, id: str) -> Waits | None:
        self._check_open()
        row = self._store.rows.get(id)
        return None if row is None else waits_of(self._store, row)

    async def get(self, id: str) -> Job | None:
        self._check_open()
        row = self._store.rows.get(id)
        return None if row is None else self._full_job(row)

    async def find(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        self._check_open()
        checks.check_page(limit, after)
        checks.check_filter(wanted)
        now = self._clock.wall_ms()
        newest = sorted(self._store.rows.values(), key=lambda row: -row.job.seq)
        found = [
            for_list(self._with_deadline(row))
            for row in newest
            if (after is None or row.job.seq < after) and matches(wanted, row.job, now)
        ]
        page = tuple(found[:limit])
        return Page(jobs=page, after=page[-1].seq if len(found) > limit else None)

    async def find_rows(self, wanted: JobFilter, *, limit: int, after: int | None = None) -> Page:
        """See `ListsRows`."""
        page = await self.find(wanted, limit=limit, after=after)
        return replace(page, jobs=tuple(replace(job, payload=b"") for job in page.jobs))

    async def tally(self, wanted: JobFilter, by: TallyBy, *, limit: int) -> list[Tally]:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        now = self._clock.wall_ms()
        counter: Counter[str | None] = Counter()
        for row in self._store.rows.values():
            if matches(wanted, row.job, now):
                value = getattr(row.job, by)
                counter[None if value is None else str(value)] += 1
        ranked = sorted(counter.items(), key=lambda item: (-item[1], item[0] or ""))
        return [Tally(value=value, count=count) for value, count in ranked[:limit]]

    async def amend(self, wanted: JobFilter, amendment: Amendment, *, limit: int) -> int:
        self._check_open()
        checks.check_page(limit)
        checks.check_filter(wanted)
        checks.check_amendment(amendment)
        if isinstance(amendment, Move) and amendment.queue not in self._store.queues:
            raise checks.unknown_queue(amendment.queue)
        states = amending.amendable(amendment, wanted)
        now = self._clock.wall_ms()
        oldest = sorted(self._store.rows.values(), key=lambda row: row.job.seq)
        chosen = [
            row
            for row in oldest
            if row.job.state in states
            and matches(wanted, row.job, now)
            and not (isinstance(amendment, Cancel) and row.job.cancel_requested)
        ][:limit]
        for row in chosen:
            self._store.amend(row, amendment)
        self._store.apply_parent_effects()
        self._bell.announce()
        return len(chosen)

    async def examine(self, *, deep: bool = False) -> Examination:
        """Reports only the clock."""
        return Examination(now=self._clock.wall_ms())

    def copy(self) -> MemoryEngine:
        """An independent engine with the same jobs, on the same clock: for trying out a call."""
        return deepcopy(self, {id(self._clock): self._clock})

    def wake(self) -> None:
        """Make the waiting leases look again."""
        self._bell.ring()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a call of this engine may have made a job due."""
        self._bell.on_announce(listener)

    def mover(self) -> MemoryMover:
        """Raw access to the stored jobs."""
        self._check_open()
        return MemoryMover(self._store)

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        self._check_open()
        checks.check_load(kind, after, limit)
        # Sorted by bytes, as in every store.
        kept = sorted(self._records[kind].values(), key=lambda each: each[0].key.encode())
        cut = b"" if after is None else after.encode()
        now = self._clock.wall_ms()
        return [
            replace(record, age_ms=max(0, now - saved_at))
            for record, saved_at in kept
            if record.key.encode() > cut
        ][:limit]

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        self._check_open()
        checks.check_batch(len(records))
        for record in records:
            checks.check_record(record)
        return [self._save(record) for record in records]

    async def _try_lease(self, request: LeaseRequest) -> LeaseAttempt:
        selection = LeaseSelection(self._store, request)
        if leases := selection.run():
            return LeaseAttempt(leases)
        return LeaseAttempt([], next_start_ms(self._store, request), len(selection.skipped))

    def _past_retention(self, job: Job, now: int) -> bool:
        if job.finished_at is None or not job.state.finished:
            return False
        return job.finished_at <= now - retry_policy.retention_ms(
            self._store.queues[job.queue], job.state
        )

    def _save(self, record: Record) -> Saved:
        kept = self._records[record.kind]
        current = kept.get(record.key)
        if (current[0].version if current else 0) != record.version:
            return Saved.STALE
        if record.value is None:
            kept.pop(record.key, None)
        else:
            saved = replace(record, version=record.version + 1)
            kept[record.key] = (saved, self._clock.wall_ms())
        return Saved.SAVED

    def _full_job(self, row: JobRow) -> Job:
        return replace(self._with_deadline(row), events=tuple(row.events))

    def _with_deadline(self, row: JobRow) -> Job:
        """The job with its deadline, stored on the boot clock, converted to wall-clock time."""
        if row.job.deadline_at is None:
            return row.job
        ahead_ms = row.deadline - self._clock.boot_ms()
        return replace(row.job, deadline_at=self._clock.wall_ms() + ahead_ms)

    def _check_open(self) -> None:
        if not self._open:
            raise EngineClosed("the memory engine is not open")
