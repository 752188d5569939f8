"""Holdfast: an engine as a program embeds it. Enqueue, lease, settle, inspect, keep time.

It turns what people write into what the engine carries, and answers that must not be overlooked
into exceptions. It decides nothing about jobs: that is `core`'s, and the engine's to apply.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, get_args

from holdfast.core import admission, checks, codec, lifecycle, limits
from holdfast.core.model import (
    Failure,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Page,
    Queue,
    QueueView,
    Reason,
    Receipt,
    Renewal,
    Status,
    Tally,
    TallyBy,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Cancel,
    Complete,
    Delete,
    Forward,
    Outcome,
    Redrive,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.durations import Duration, to_ms
from holdfast.engines.base import Engine
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.observed import Observed
from holdfast.engines.url import default_url, open_engine, redacted
from holdfast.errors import (
    BY_CODE,
    InvalidJob,
    LeaseLost,
    UnknownQueue,
    Unsupported,
    UsageError,
)
from holdfast.events import Listeners
from holdfast.options import (
    JobOptions,
    QueueOptions,
    changed_queue,
    checked,
    checked_all,
    checked_filter,
    expected,
    new_job,
)
from holdfast.upkeep import Schedules, Upkeep, wall_ms

_PAGE = 100
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""


class Holdfast:
    """`url` names the engine: HOLDFAST_URL by default, else a file in the current folder.

    Use it as `async with Holdfast() as app`, or call `open` and `close`. `listeners` hears of
    every call and of what upkeep does; `place` says where the jobs are, without secrets.
    """

    def __init__(self, url: str | None = None, *, engine: Engine | None = None) -> None:
        if url is not None and engine is not None:
            raise UsageError("give Holdfast a url or an engine, not both")
        url = default_url() if url is None else expected("url", url, str)
        self._store = engine or open_engine(url)
        self.place = self._store.traits.name if engine else redacted(url)
        self.listeners = Listeners()
        self.engine: Engine = Coalesced(Observed(self._store, self.listeners))
        self.schedules = Schedules(self.engine, wall_ms)

    async def open(self) -> None:
        """Create or check the store. Idempotent; the queue `default` exists afterwards."""
        await self.engine.open()

    async def close(self) -> None:
        """Finish what was asked, then let go of everything. Idempotent."""
        await self.engine.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def job(self, task: str, payload: Any = None, **options: Unpack[JobOptions]) -> NewJob:
        """A job for `enqueue_many`, for `complete(then=…)` or for `within`."""
        return new_job(task, payload, options)

    async def enqueue(
        self, task: str, payload: Any = None, **options: Unpack[JobOptions]
    ) -> Receipt:
        """Durable on return. What the queue refuses is raised: UnknownQueue, QueueFull, …"""
        [receipt] = await self.engine.enqueue([new_job(task, payload, options)])
        return accepted(receipt)

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        """A receipt for each, in order; a refused job is a receipt too and harms no neighbour.

        Up to 1,000 jobs are one transaction; more are split into batches of 1,000, one each.
        """
        receipts: list[Receipt] = []
        rest = iter(jobs)
        while batch := list(islice(rest, limits.BATCH_MAX)):
            receipts += await self._enqueue_batch(batch)
        return receipts

    async def lease(
        self,
        *queues: str,
        limit: int = 1,
        wait: Duration = 0,
        lease: Duration | None = None,
        tasks: Iterable[str] | None = None,
        worker: str = "",
    ) -> list[Lease]:
        """Up to `limit` due jobs of the queues, in that order; waits for the first if asked to.

        Without a queue it is `default`. `lease` is the time until the deadline, else the job's or
        the queue's own; renew before it is over.
        """
        if isinstance(tasks, str):
            raise UsageError(f"tasks is the text {tasks[:80]!r}: give a list of names")
        try:
            wanted = None if tasks is None else frozenset(tasks)
        except TypeError:
            raise UsageError(f"tasks is a {type(tasks).__name__}: give a list of names") from None
        request = LeaseRequest(
            queues=queues or ("default",),
            limit=limit,
            worker=worker,
            wait_ms=to_ms("wait", wait, UsageError),
            lease_ms=None if lease is None else to_ms("lease", lease, UsageError),
            tasks=wanted,
        )
        return await self.engine.lease(checked(request, UsageError))

    async def renew(
        self, lease: Lease, *, lease_for: Duration | None = None, note: Note | None = None
    ) -> Lease:
        """Push the deadline, and keep what the note says. LeaseLost: stop working on the job.

        Look at `cancel_requested` of the lease that comes back.
        """
        lease_ms = None if lease_for is None else to_ms("lease_for", lease_for, UsageError)
        expected("lease", lease, Lease)
        [renewed] = await self.renew_many([Renewal(lease=lease, lease_ms=lease_ms, note=note)])
        if renewed is None:
            raise _lost(lease)
        return renewed

    async def renew_many(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """None for each lease that is lost."""
        return await self.engine.renew(checked_all("renewal", renewals, Renewal))

    async def complete(
        self, lease: Lease, result: Any = None, *, then: Iterable[NewJob] = ()
    ) -> None:
        """Done. The follow-up jobs go in together with it, or not at all."""
        raw = result is None or isinstance(result, bytes)
        follow_ups = checked_all("follow-up job", then, NewJob, InvalidJob)
        done = Complete(result if raw else codec.encode(result), tuple(follow_ups))
        await self._end(lease, done)

    async def fail(self, lease: Lease, error: BaseException | str) -> None:
        """The attempt failed: the queue's policy decides between another one and a dead letter."""
        queue = await self._queue(expected("lease", lease, Lease).job.queue)
        verdict = lifecycle.after_failure(queue, lease.job, _failure(error), random.random())
        await self._end(lease, verdict)

    async def retry(
        self, lease: Lease, *, delay: Duration = 0, error: BaseException | str | None = None
    ) -> None:
        """Run it again, whatever the queue's policy says."""
        failure = None if error is None else _failure(error)
        await self._end(lease, Retry(to_ms("delay", delay, UsageError), failure))

    async def bury(self, lease: Lease, error: BaseException | str = "") -> None:
        """It cannot be done: a dead letter."""
        await self._end(lease, Bury(Reason.EXPLICIT, _failure(error)))

    async def release(self, lease: Lease, text: str = "", *, delay: Duration = 0) -> None:
        """Not now, through no fault of the job: the attempt is given back."""
        await self._end(lease, Release(text, to_ms("delay", delay, UsageError)))

    async def forward(self, lease: Lease, queue: str) -> None:
        """Hand the job on to another queue, where it starts afresh."""
        await self._end(lease, Forward(queue))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """End many leases in one transaction, with an answer for each."""
        return await self.engine.settle(checked_all("settlement", settlements, Settlement))

    async def get(self, id: str) -> Job | None:
        """The whole job, with its timeline rows, output and result."""
        return await self.engine.get(expected("id", id, str))

    async def find(self, wanted: JobFilter, *, limit: int = 100, after: int | None = None) -> Page:
        """One page, newest first; go on with its `after` while that is not None."""
        return await self.engine.find(checked_filter(wanted), limit=limit, after=after)

    async def jobs(self, wanted: JobFilter | None = None) -> AsyncIterator[Job]:
        """Every matching job, newest first, read in pages."""
        after: int | None = None
        while True:
            page = await self.find(wanted or JobFilter(), limit=_PAGE, after=after)
            for job in page.jobs:
                yield job
            after = page.after
            if after is None:
                return

    async def tally(
        self, wanted: JobFilter, by: TallyBy, *, limit: int = limits.PAGE_MAX
    ) -> list[Tally]:
        """How many by value, most first."""
        if by not in get_args(TallyBy):
            raise UsageError(f"by {by!r} is not one of {', '.join(get_args(TallyBy))}")
        return await self.engine.tally(checked_filter(wanted), by, limit=limit)

    async def amend(
        self, wanted: JobFilter, amendment: Amendment, *, limit: int = limits.BATCH_MAX
    ) -> int:
        """Act on at most `limit` matching jobs, oldest first; how many were changed."""
        act = checked(expected("amendment", amendment, Amendment), UsageError)
        return await self.engine.amend(checked_filter(wanted), act, limit=limit)

    async def cancel(self, *ids: str, by: str = "", text: str = "") -> int:
        """Waiting jobs are cancelled; running ones are asked to stop at their next renewal."""
        return await self.amend(JobFilter(ids=ids), Cancel(by=by, text=text))

    async def redrive(self, *ids: str, by: str = "", delay: Duration = 0) -> int:
        """Put dead letters back to work."""
        delay_ms = to_ms("delay", delay, UsageError)
        return await self.amend(JobFilter(ids=ids), Redrive(by=by, delay_ms=delay_ms))

    async def delete(self, *ids: str) -> int:
        """Remove waiting and finished jobs; one that is leased stays."""
        return await self.amend(JobFilter(ids=ids), Delete())

    async def queues(self, *, counts: bool = True) -> list[QueueView]:
        """Every queue by name, with how it stands unless `counts` is False."""
        return await self.engine.queues(counts=counts)

    async def declare(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Create the queue, or change the settings that are given and keep the others."""
        queues = {view.queue.name: view.queue for view in await self.queues(counts=False)}
        known = queues.get(expected("name", name, str))
        queue = changed_queue(known or Queue(name=name), options)
        if queue != known:
            await self.engine.declare(queue)
        return queue

    async def drop(self, name: str) -> None:
        """Remove the queue and its jobs, revoking their leases."""
        await self.engine.drop(expected("name", name, str))

    async def backup(self, path: Path | str) -> None:
        """A consistent copy while work goes on, for engines that are a file."""
        backup = getattr(self._store, "backup", None)
        if backup is None:
            raise Unsupported(self._store.traits.name, "backup by Holdfast")
        await backup(expected("path", path, Path | str))

    def within(self, connection: Any) -> Any:
        """`enqueue` and `settle` inside the caller's own transaction, which the caller commits."""
        within = getattr(self._store, "within", None)
        if within is None:
            raise Unsupported(self._store.traits.name, "enqueue within a transaction")
        return within(connection)

    def upkeep(self, *, archive: Path | str | None = None) -> Upkeep:
        """The reaper, the pruner and the scheduler: `await app.upkeep().run(stop)`.

        Some process must run them, else lapsed leases do not come back. Any number may.
        """
        expected("archive", archive, Path | str | None)
        return Upkeep(self.engine, archive=archive, tell=self.listeners)

    async def _enqueue_batch(self, batch: list[NewJob]) -> list[Receipt]:
        """A job of wrong types is refused like any other bad one, beside its neighbours."""
        refused: dict[int, Receipt] = {}
        for at, new in enumerate(batch):
            if not isinstance(new, NewJob):
                raise InvalidJob(f"job {at} is a {type(new).__name__}: make it with app.job(…)")
            try:
                checked(new, InvalidJob)
            except InvalidJob as error:
                refused[at] = admission.refused(str(new.id), error)
        good = [new for at, new in enumerate(batch) if at not in refused]
        answers = iter(await self.engine.enqueue(good)) if good else iter(())
        return [refused[at] if at in refused else next(answers) for at in range(len(batch))]

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
                "first; the lease goes on"
            )

    async def _queue(self, name: str) -> Queue:
        for view in await self.queues(counts=False):
            if view.queue.name == name:
                return view.queue
        raise UnknownQueue(f"queue {name} does not exist any more, and its jobs went with it")


def accepted(receipt: Receipt) -> Receipt:
    """The receipt, unless it is a refusal: then the error that its code stands for."""
    if receipt.status is not Status.REFUSED:
        return receipt
    error = BY_CODE.get(receipt.code, UsageError)
    # The only error that is not made from its text.
    raise (UsageError if error is Unsupported else error)(receipt.text)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"the lease on job {lease.id} is lost: the job goes on without you")


def _failure(error: BaseException | str) -> Failure:
    if isinstance(error, str):
        return Failure(message=error)
    expected("error", error, BaseException | str)
    # Copes with exceptions that cannot even say what they are.
    told = traceback.TracebackException.from_exception(error)
    return Failure(type=type(error).__qualname__, message=str(told), trace="".join(told.format()))
