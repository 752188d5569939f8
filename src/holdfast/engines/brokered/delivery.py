"""Deliveries: a message for each job that begins to wait in a worker's own queue.

The message expires with the job. An expiry that the caller did not give is read from the ledger
after the call has returned; a read that fails is ignored, because the worker and the reaper poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from time import monotonic

from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, NewJob, State
from holdfast.core.workers import addressee
from holdfast.engines.base import Engine
from holdfast.engines.broker import Broker, JobMessage
from holdfast.engines.extras import Examinable, extra
from holdfast.errors import HoldfastError

CLOSE_S_MAX = 1.0
CLOCK_S_MAX = 60.0


class Deliveries:
    """Tells the broker about addressed jobs. Reads run in the background."""

    def __init__(self, ledger: Engine, broker: Broker) -> None:
        self._ledger = ledger
        self._broker = broker
        self._clock = LedgerClock(ledger)
        self._reading: set[asyncio.Task[None]] = set()

    def enqueued(self, jobs: Sequence[NewJob]) -> None:
        """These jobs were enqueued, or may have been."""
        addressed = [job for job in jobs if addressee(job.queue) is not None]
        known = [job for job in addressed if job.expires_ms is not None]
        if known:
            self._broker.deliver(
                [JobMessage(id=job.id, queue=job.queue, expires_ms=job.expires_ms) for job in known]
            )
        # The others may expire by a setting of their queue.
        unknown = [job.id for job in addressed if job.expires_ms is None]
        for start in range(0, len(unknown), bounds.BATCH_MAX):
            ids = tuple(unknown[start : start + bounds.BATCH_MAX])
            self.waiting(JobFilter(ids=ids, states=(State.WAITING,)))

    def waiting(self, wanted: JobFilter, limit: int = bounds.PAGE_MAX) -> None:
        """Deliver a message for each of these jobs that is in a worker's queue."""
        task = asyncio.create_task(self._deliver(wanted, min(limit, bounds.PAGE_MAX)))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def close(self) -> None:
        """Finish the reads, for a moment."""
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()

    async def _deliver(self, wanted: JobFilter, limit: int) -> None:
        with contextlib.suppress(HoldfastError):
            page = await self._ledger.find(wanted, limit=limit)
            jobs = [job for job in page.jobs if addressee(job.queue) is not None]
            if jobs:
                now = await self._clock.now()
                self._broker.deliver([_message(job, now) for job in jobs])


class LedgerClock:
    """The ledger's time, read at most once a minute. An error of it is harmless: the dead-letter
    handler asks the ledger again."""

    def __init__(self, ledger: Engine, seconds: Callable[[], float] = monotonic) -> None:
        self._examinable = extra(ledger, Examinable)
        self._seconds = seconds
        self._read_at = -CLOCK_S_MAX
        self._now = 0

    async def now(self) -> int | None:
        """The ledger's time; None if the ledger cannot tell it."""
        if self._examinable is None:
            return None
        began = self._seconds()
        if began - self._read_at >= CLOCK_S_MAX:
            self._now = (await self._examinable.examine()).now
            self._read_at = began
        return self._now + int((self._seconds() - self._read_at) * 1000)


def _message(job: Job, now: int | None) -> JobMessage:
    left_ms = None if job.expires_at is None or now is None else max(1, job.expires_at - now)
    return JobMessage(id=job.id, queue=job.queue, expires_ms=left_ms)
