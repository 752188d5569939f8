"""Leases the messages of one queue for ReceiveMessage, in short and in long polls.

A message past the maxReceiveCount of its queue is buried and one past its retention is deleted;
neither is delivered. From a dead-letter queue, it leases both dead letters and messages that were
sent to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import Failure, Job, JobFilter, Lease, LeaseRequest, Reason
from holdfast.core.text import counted
from holdfast.core.verdict import Bury, Complete, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.server.http import bounded_reply
from holdfast.server.sqs.catalog import KnownQueue

WORKER: Final = "sqs"
"""The worker that holds the leases of all SQS clients."""
IN_FLIGHT_MAX: Final = 120_000
BRIEF_LEASE_MS: Final = 5 * bounds.SECOND_MS
"""The lease of a message that is received with a visibility timeout of 0, until it is given back
together with the answer."""

_ROUNDS_MAX: Final = 20
_GONE_POLL_S: Final = 1.0
_COUNT_AGE_S_MAX: Final = 5.0
_COUNTS_MAX: Final = 1_000
_RETENTION: Final = "MessageRetentionPeriod"

FindQueue = Callable[[], Awaitable[KnownQueue | None]]


class MessageLeaser:
    """Leases the messages of one queue with one visibility timeout. The queue is read again for
    each lease, because its attributes may change during a long poll."""

    def __init__(
        self,
        app: Holdfast,
        known: KnownQueue,
        find_queue: FindQueue,
        counts: MessageCounts,
        *,
        visibility_s: int,
    ) -> None:
        self._app = app
        self._queue = known.queue
        self._find_queue = find_queue
        self._counts = counts
        self._lease_ms = visibility_s * bounds.SECOND_MS or BRIEF_LEASE_MS
        self.in_groups: bool = known.is_fifo

    async def lease(self, most: int, wait_ms: int) -> list[Lease]:
        """Lease at most `most` messages, and wait `wait_ms` for the first; less if there is no such
        queue."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        for _ in range(_ROUNDS_MAX):
            known = await self._find_queue()
            left_ms = max(0, round((end - loop.time()) * 1000))
            if known is None:
                # Not for longer: if the queue is created again, its pollers share this wait.
                await asyncio.sleep(min(left_ms / 1000, _GONE_POLL_S))
                return []
            leases = await self._lease_once(known, most, left_ms)
            if not leases:
                return []
            try:
                if left_ms:
                    known = await self._find_queue() or known
                kept = await self._deliverable(leases, known)
            except BaseException:
                await asyncio.shield(self.give_back(leases))
                raise
            if kept:
                return kept
        return []

    async def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that no client received. They do not count as receives."""
        await bounded_reply.release_undelivered(self._app.engine, leases)

    async def _lease_once(self, known: KnownQueue, most: int, wait_ms: int) -> list[Lease]:
        request = LeaseRequest(
            queues=(self._queue,), limit=most, worker=WORKER, lease_ms=self._lease_ms
        )
        if not self._counts.has_dead_letters(known):
            return await self._leased(replace(request, wait_ms=wait_ms))
        # In random order, so that neither kind keeps the other from being received.
        requests = random.sample([request, replace(request, dead=True)], 2)
        leases = await self._leased(requests[0])
        if len(leases) < most:
            try:
                leases += await self._leased(replace(requests[1], limit=most - len(leases)))
            except BaseException:
                await asyncio.shield(self.give_back(leases))
                raise
        if leases or not wait_ms:
            return leases
        return await self._first_of([replace(each, wait_ms=wait_ms) for each in requests])

    async def _leased(self, request: LeaseRequest) -> list[Lease]:
        sizes = bounded_reply.lease_sizes(self._app)
        return await bounded_reply.lease(self._app.engine, request, sizes)

    async def _first_of(self, requests: Sequence[LeaseRequest]) -> list[Lease]:
        """The leases of the requests that are answered first; the others are cancelled."""
        tasks = [asyncio.ensure_future(self._leased(each)) for each in requests]
        try:
            running = set(tasks)
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() is not None or task.result() for task in done):
                    break
        except asyncio.CancelledError:
            leases, _ = await asyncio.shield(_cancel_rest(tasks))
            await asyncio.shield(self.give_back(leases))
            raise
        leases, error = await _cancel_rest(tasks)
        if error is not None and not leases:
            raise error
        return leases

    async def _deliverable(self, leases: Sequence[Lease], known: KnownQueue) -> list[Lease]:
        """The leases to deliver. The others are settled."""
        if known.is_fifo:
            leases = await self._with_burial_time(leases)
        if known.attributes.redrive_policy is None and _RETENTION not in known.record.attributes:
            return list(leases)
        verdicts = [(lease, undeliverable(lease.job, known)) for lease in leases]
        ends = [Settlement(lease=lease, verdict=verdict) for lease, verdict in verdicts if verdict]
        if ends:
            await self._app.engine.settle(ends)
        return [lease for lease, verdict in verdicts if verdict is None]

    async def _with_burial_time(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Add the time of burial to dead letters, which a lease does not have: their retention in a
        FIFO queue counts from it."""
        ids = tuple(each.id for each in leases if each.job.is_dead_letter)
        if not ids:
            return leases
        page = await self._app.engine.find(JobFilter(ids=ids), limit=len(ids))
        buried_at = {job.id: job.finished_at for job in page.jobs}
        return [
            replace(each, job=replace(each.job, finished_at=buried_at.get(each.id)))
            for each in leases
        ]


async def _cancel_rest(
    tasks: Sequence[asyncio.Task[list[Lease]]],
) -> tuple[list[Lease], BaseException | None]:
    """Cancel the tasks that still run. Returns the leases of the others, and the first error."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    leases = [lease for each in results if isinstance(each, list) for lease in each]
    errors = [each for each in results if isinstance(each, Exception)]
    return leases, errors[0] if errors else None


def undeliverable(job: Job, known: KnownQueue) -> Verdict | None:
    """The verdict for a leased message that must not be delivered; None for one to deliver. Only a
    queue with a retention of its own deletes by age: jobs of other programs are never lost."""
    now = job.leased_at or 0
    retention_ms = known.attributes.message_retention_period * bounds.SECOND_MS
    if _RETENTION in known.record.attributes and sent_at(job, known) + retention_ms <= now:
        return Complete()
    policy = known.attributes.redrive_policy
    if job.is_dead_letter or policy is None or known.settings.dead_queue is None:
        return None
    if job.attempt <= policy.max_receive_count:
        return None
    often = counted(policy.max_receive_count, "time")
    return Bury(Reason.ATTEMPTS, Failure(message=f"received {often} and not deleted"))


def sent_at(job: Job, known: KnownQueue) -> int:
    """The time from which the retention counts. That of a dead letter in a FIFO queue begins with
    its burial."""
    if known.is_fifo and job.is_dead_letter and job.finished_at is not None:
        return job.finished_at
    return job.created_at


def receive_count(job: Job) -> int:
    """The number of receives of a message. The lease that found it past its limit counts as the
    first receive of the dead letter, and `releases` counts the later ones."""
    return job.attempt + (job.releases if job.is_dead_letter else 0)


class MessageCounts:
    """Approximate counts of each queue's messages in flight and of its dead letters: the counts of
    the store, at most a few seconds old while the queue is in use, plus the messages that this
    server has delivered since, minus those it has deleted."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._counts: OrderedDict[str, _QueueCount] = OrderedDict()

    def is_full(self, queue: str) -> bool:
        """True if no more messages may be received."""
        return self._count(queue).in_flight >= IN_FLIGHT_MAX

    def has_dead_letters(self, known: KnownQueue) -> bool:
        """True if clients may find dead letters in the queue: other queues send them there, or did
        before."""
        if known.holds_dead_letters:
            return True
        return known.shows_dead_letters and self._count(known.queue).dead > 0

    def add(self, queue: str, change: int) -> None:
        """Count messages that were delivered, or that ended if `change` is negative."""
        count = self._counts.get(queue)
        if count is not None:
            count.since += change

    async def refreshed(self) -> None:
        """Wait for the reads that are running."""
        reads = [count.read for count in self._counts.values() if count.read is not None]
        if reads:
            await asyncio.wait(reads)

    def _count(self, queue: str) -> _QueueCount:
        count = self._counts.get(queue)
        if count is None:
            count = self._counts[queue] = _QueueCount()
            if len(self._counts) > _COUNTS_MAX:
                self._counts.popitem(last=False)
        count.refresh(self._engine, queue)
        return count


class _QueueCount:
    """Counts of one queue. `since` is the change in messages in flight since the last read."""

    __slots__ = ("_read_at", "dead", "leased", "read", "since")

    def __init__(self) -> None:
        self.leased = 0
        self.dead = 0
        self.since = 0
        self.read: asyncio.Task[None] | None = None
        self._read_at = float("-inf")

    @property
    def in_flight(self) -> int:
        return self.leased + self.since

    def refresh(self, engine: Callable[[], Engine], queue: str) -> None:
        """Read the counts in the background if the last ones are too old."""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _COUNT_AGE_S_MAX and (self.read is None or self.read.done()):
            self._read_at = now
            self.read = asyncio.create_task(self._refresh(engine(), queue))

    async def _refresh(self, engine: Engine, queue: str) -> None:
        before = self.since
        # Counts that cannot be read limit nothing: the receive itself reports the error.
        with contextlib.suppress(HoldfastError):
            views = await engine.queues(names=[queue])
            self.leased = views[0].leased if views else 0
            self.dead = views[0].dead if views else 0
            self.since -= before
