"""Lease, renew and settle, for programs that lease jobs themselves. Workers do not use this: they
call the engine in batches."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core import checks, codec, retry_policy
from holdfast.core.model import Failure, Lease, LeaseRequest, NewJob, Note, Queue, Reason, Renewal
from holdfast.core.text import kind_of
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.errors import InvalidJob, LeaseLost, UnknownQueue, UsageError
from holdfast.notation.durations import Duration, to_ms
from holdfast.notation.options import checked, checked_all, expected
from holdfast.worker.child.hooks import Hooks


class LeaseMethods:
    """The lease methods of `Holdfast`."""

    hooks: Hooks

    @property
    def engine(self) -> Engine:
        raise NotImplementedError

    async def lease(
        self,
        *queues: str,
        limit: int = 1,
        wait: Duration = 0,
        lease: Duration | None = None,
        tasks: Iterable[str] | None = None,
        worker: str = "",
        dead: bool = False,
    ) -> list[Lease]:
        """Lease up to `limit` due jobs of the queues, in that order; `wait` is how long to wait for
        the first one.

        Without a queue it leases from `default`. `lease` is the time until the deadline, by default
        the job's or the queue's own; renew before it ends. With `dead` it leases dead letters
        instead: `complete` deletes one, and after any other end of the lease it is dead again.
        """
        if isinstance(tasks, str):
            raise UsageError(f"tasks is the text {tasks[:80]!r}: give a list of names")
        try:
            wanted = None if tasks is None else frozenset(tasks)
        except TypeError:
            raise UsageError(f"tasks is {kind_of(tasks)}: give a list of names") from None
        request = LeaseRequest(
            queues=queues or ("default",),
            limit=limit,
            worker=worker,
            wait_ms=to_ms("wait", wait, UsageError),
            lease_ms=None if lease is None else to_ms("lease", lease, UsageError),
            tasks=wanted,
            dead=dead,
        )
        return await self.engine.lease(checked(request, UsageError))

    async def renew(
        self, lease: Lease, *, lease_for: Duration | None = None, note: Note | None = None
    ) -> Lease:
        """Extend the deadline and store the note. LeaseLost means: stop working on the job.

        Check `cancel_requested` of the lease it returns.
        """
        lease_ms = None if lease_for is None else to_ms("lease_for", lease_for, UsageError)
        expected("lease", lease, Lease)
        [renewed] = await self.renew_many([Renewal(lease=lease, lease_ms=lease_ms, note=note)])
        if renewed is None:
            raise _lost(lease)
        return renewed

    async def renew_many(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """Renew many leases in one call; None stands for each lost lease."""
        return await self.engine.renew(checked_all("renewal", renewals, Renewal))

    async def complete(
        self, lease: Lease, result: Any = None, *, then: Iterable[NewJob] = ()
    ) -> None:
        """End the lease with success. The follow-up jobs are enqueued in the same transaction."""
        raw = result is None or isinstance(result, bytes)
        follow_ups = checked_all("follow-up job", then, NewJob, InvalidJob)
        follow_ups = self.hooks.prepared(follow_ups) if self.hooks.enqueue else follow_ups
        done = Complete(result if raw else codec.encode(result), tuple(follow_ups))
        await self._end(lease, done)

    async def fail(self, lease: Lease, error: BaseException | str) -> None:
        """End the lease with a failure; the queue's policy decides on a retry or a dead letter."""
        queue = await self._queue(expected("lease", lease, Lease).job.queue)
        verdict = retry_policy.after_failure(queue, lease.job, _failure(error), random.random())
        await self._end(lease, verdict)

    async def retry(
        self,
        lease: Lease,
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Run the job again after `delay`, or by its backoff if `delay` is None. After the last
        attempt it becomes a dead letter.
        """
        delay_ms = None if delay is None else to_ms("delay", delay, UsageError)
        failure = None if error is None else _failure(error)
        queue = await self._queue(expected("lease", lease, Lease).job.queue)
        draw = random.random()
        await self._end(
            lease, retry_policy.after_retry_request(queue, lease.job, failure, delay_ms, draw)
        )

    async def bury(self, lease: Lease, error: BaseException | str = "") -> None:
        """Give the job up: it becomes a dead letter."""
        await self._end(lease, Bury(Reason.EXPLICIT, _failure(error)))

    async def release(self, lease: Lease, text: str = "", *, delay: Duration = 0) -> None:
        """Return the job through no fault of its own; the attempt is refunded."""
        await self._end(lease, Release(text, to_ms("delay", delay, UsageError)))

    async def forward(self, lease: Lease, queue: str) -> None:
        """Move the job to another queue, where it starts with fresh counters."""
        await self._end(lease, Forward(queue))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """End many leases in one transaction; returns an outcome for each."""
        return await self.engine.settle(checked_all("settlement", settlements, Settlement))

    async def _end(self, lease: Lease, verdict: Verdict) -> None:
        expected("lease", lease, Lease)
        settlement = Settlement(lease=lease, verdict=verdict)
        [outcome] = await self.settle([settlement])
        if outcome is Outcome.LOST:
            raise _lost(lease)
        if outcome is Outcome.REFUSED:
            checks.check_settlement(settlement)
            raise UnknownQueue(
                f"the verdict on job {lease.id} names a queue that does not exist: declare it "
                "first; the lease continues"
            )

    async def _queue(self, name: str) -> Queue:
        for view in await self.engine.queues(names=[name], counts=False):
            return view.queue
        raise UnknownQueue(f"queue {name} no longer exists; its jobs were deleted with it")


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease on job {lease.id} is lost: stop working on the job")


def _failure(error: BaseException | str) -> Failure:
    if isinstance(error, str):
        return Failure(message=error)
    expected("error", error, BaseException | str)
    # TracebackException also handles exceptions whose __str__ raises.
    report = traceback.TracebackException.from_exception(error)
    trace = "".join(report.format())
    return Failure(type=type(error).__qualname__, message=str(report), trace=trace)
