"""Holdfast: an engine as a program embeds it. Enqueue, lease, settle, inspect, keep time.

It turns what people write into what the engine carries, and answers that must not be overlooked
into exceptions. It decides nothing about jobs: that is `core`'s, and the engine's to apply.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack, cast, get_args, overload

from holdfast.core import admission, limits
from holdfast.core.model import (
    Job,
    JobFilter,
    NewJob,
    Page,
    Queue,
    QueueView,
    Receipt,
    Status,
    Tally,
    TallyBy,
)
from holdfast.core.verdict import (
    Amendment,
    Cancel,
    Delete,
    Redrive,
)
from holdfast.durations import Duration, to_ms
from holdfast.engines.base import Engine
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.observed import Observed
from holdfast.engines.url import default_url, open_engine, redacted
from holdfast.errors import (
    BY_CODE,
    EngineClosed,
    InvalidJob,
    Unsupported,
    UsageError,
)
from holdfast.events import Listeners
from holdfast.flows import Flowing
from holdfast.home import Home, closing_unstarted
from holdfast.leasing import Leasing
from holdfast.limiting import change_queue
from holdfast.options import (
    JobOptions,
    QueueOptions,
    changed_queue,
    checked,
    checked_filter,
    expected,
    new_id,
    new_job,
)
from holdfast.tasks import Task, TaskOptions
from holdfast.telemetry import Retention, Telemetry, bookkeepers
from holdfast.tracing import traced, traced_within
from holdfast.upkeep import Redrives, Schedules, Upkeep, wall_ms
from holdfast.worker.handlers import Handler
from holdfast.worker.registry import Workers

Answer = TypeVar("Answer")

ALIVE: weakref.WeakSet[Holdfast] = weakref.WeakSet()
"""Every application of this process: what a test mode is for when it is not told."""

_rehousing = [threading.Lock()]
# A thread that is not in a forked child may have held it.
os.register_at_fork(after_in_child=lambda: _rehousing.__setitem__(0, threading.Lock()))

_PAGE = 100
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""


class Holdfast(Leasing, Flowing):
    """`url` names the engine: HOLDFAST_URL by default, else a file in the current folder.

    Making one touches nothing. Its tasks open the engine when they are first enqueued, on a loop
    in a thread of its own; `async with Holdfast() as app`, or `open` and `close`, do it on the
    program's loop. `listeners` hears of every call and of what upkeep does; `place` says where the
    jobs are, without secrets.
    """

    def __init__(self, url: str | None = None, *, engine: Engine | None = None) -> None:
        if url is not None and engine is not None:
            raise UsageError("give Holdfast a url or an engine, not both")
        url = default_url() if url is None else expected("url", url, str)
        self.url = None if engine else url
        """It may hold a password; `place` does not."""
        store = engine or open_engine(url)
        self.place = store.traits.name if engine else redacted(url)
        self.listeners = Listeners()
        self.tasks: dict[str, Task[Any]] = {}
        self._home = self._housed(store)
        self._telemetry: Telemetry | None = None
        ALIVE.add(self)

    @property
    def home(self) -> Home:
        """Where the engine is open; another one in a process that was forked."""
        if self._home.inherited:
            with _rehousing[0]:
                if self._home.inherited:
                    # Never let go of: the parent still uses what could be closed with it.
                    self._inherited = self._home
                    self._home = self._housed(self._reopened())
        return self._home

    @home.setter
    def home(self, home: Home) -> None:
        self._home = home

    @property
    def engine(self) -> Engine:
        return self.home.engine

    @property
    def schedules(self) -> Schedules:
        return Schedules(self.engine, wall_ms)

    @property
    def redrives(self) -> Redrives:
        """Dead letters that are put back to work bit by bit."""
        return Redrives(self.engine, wall_ms)

    @property
    def telemetry(self) -> Telemetry:
        """What this process does on the store, counted: `await app.telemetry.run(stop)` for one
        that runs no upkeep, which does it too."""
        if self._telemetry is None or self._telemetry.process != os.getpid():
            self._telemetry = Telemetry(
                lambda: self.engine, self.home.store, self.listeners, wall_ms
            )
        return self._telemetry

    async def open(self) -> None:
        """Create or check the store. Idempotent; the queue `default` exists afterwards."""
        await self.home.open()

    async def close(self) -> None:
        """Finish what was asked, then let go of everything. Idempotent."""
        await self.home.close()

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

    @overload
    def task(self, function: Callable[..., Coroutine[Any, Any, Answer]], /) -> Task[Answer]: ...

    @overload
    def task(self, function: Callable[..., Answer], /) -> Task[Answer]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...

    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(queue="mail", …)`."""
        given = cast("TaskOptions", options)
        if function is None:
            return lambda decorated: self._add_task(decorated, given)
        return self._add_task(function, given)

    @property
    def handlers(self) -> dict[str, Handler]:
        """What a worker must know of the tasks, by their names."""
        return {name: task.handler for name, task in self.tasks.items()}

    @property
    def workers(self) -> Workers:
        """The workers on this store, and orders to them."""
        return Workers(self.engine)

    def run_worker(self, /, *, count: int = 1, **options: Any) -> int:
        """Run workers for these tasks until they are told to stop; their exit code.

        It takes over the signals of the process, and so belongs in the main thread of a program
        of its own. The options are those of `WorkerOptions`; without `queues` it serves those
        that the tasks name.
        """
        from holdfast.starting import start_workers

        return start_workers(self, count, options)

    def run(self, coroutine: Coroutine[Any, Any, Answer], *, instead: str = "it") -> Answer:
        """Wait for a coroutine of this Holdfast, blocking: `app.run(app.queues())`."""
        with closing_unstarted(coroutine) as make:
            return self.home.run(make, instead)

    async def arun(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Await it where the engine is open, from any event loop."""
        with closing_unstarted(coroutine) as make:
            return await self.home.arun(make)

    def job(self, task: str, payload: Any = None, **options: Unpack[JobOptions]) -> NewJob:
        """A job for `enqueue_many`, for `complete(then=…)` or for `within`."""
        if options.get("id") is None:
            options["id"] = self.new_id()
        return new_job(task, payload, options)

    def new_id(self) -> str:
        """An id for a job that has none; an engine may have a say where such a job goes."""
        mint: Callable[[], str] = getattr(self.home.store, "mint", new_id)
        return mint()

    async def enqueue(
        self, task: str, payload: Any = None, **options: Unpack[JobOptions]
    ) -> Receipt:
        """Durable on return. What the queue refuses is raised: UnknownQueue, QueueFull, …"""
        [receipt] = await self.engine.enqueue([self.job(task, payload, **options)])
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
        expected("name", name, str)
        return await change_queue(
            self.engine, name, lambda known: changed_queue(known or Queue(name=name), options)
        )

    async def drop(self, name: str) -> None:
        """Remove the queue and its jobs, revoking their leases."""
        await self.engine.drop(expected("name", name, str))

    async def backup(self, path: Path | str) -> None:
        """A consistent copy while work goes on, for engines that are a file."""
        backup = getattr(self.home.store, "backup", None)
        if backup is None:
            raise Unsupported(self.home.store.traits.name, "backup by Holdfast")
        await backup(expected("path", path, Path | str))

    def within(self, connection: Any) -> Any:
        """`enqueue` and `settle` inside the caller's own transaction, which the caller commits."""
        within = getattr(self.home.store, "within", None)
        if within is None:
            raise Unsupported(self.home.store.traits.name, "enqueue within a transaction")
        return traced_within(within(connection))

    def upkeep(
        self, *, archive: Path | str | None = None, history: Retention | None = None
    ) -> Upkeep:
        """The reaper, pruner, scheduler and redriver: `await app.upkeep().run(stop)`.

        It also counts what this process does, and keeps everybody's counts. Some process must run
        it, else lapsed leases do not come back. Any number may. `history` is how long the counts of
        minutes, hours and days are kept.
        """
        expected("archive", archive, Path | str | None)
        expected("history", history, Retention | None)
        return Upkeep(
            self.engine,
            archive=archive,
            tell=self.listeners,
            more=bookkeepers(self.engine, wall_ms, history),
            beside=self.telemetry.run,
        )

    def _add_task(self, function: Callable[..., Any], options: TaskOptions) -> Task[Any]:
        if not callable(function):
            raise UsageError(f"a {type(function).__name__} is no function to make a task of")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{function.__qualname__} is a generator: a task must return")
        task: Task[Any] = Task(self, function, options)
        if task.name in self.tasks:
            raise UsageError(f"there is a task {task.name} already: give one of them a name=")
        self.tasks[task.name] = task
        return task

    def _housed(self, store: Engine) -> Home:
        return Home(store, traced(Coalesced(Observed(store, self.listeners))))

    def _reopened(self) -> Engine:
        """What was opened before a fork stays with the parent."""
        store = self._home.store
        if self.url is not None and store.traits.shared:
            return open_engine(self.url)
        if self._home.used:
            raise EngineClosed(
                "this Holdfast belongs to the process that this one was forked from: make a new one"
            )
        return store

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


class Decorator(Protocol):
    """What `app.task(…)` gives back."""

    @overload
    def __call__(self, function: Callable[..., Coroutine[Any, Any, Answer]], /) -> Task[Answer]: ...

    @overload
    def __call__(self, function: Callable[..., Answer], /) -> Task[Answer]: ...


def accepted(receipt: Receipt) -> Receipt:
    """The receipt, unless it is a refusal: then the error that its code stands for."""
    if receipt.status is not Status.REFUSED:
        return receipt
    error = BY_CODE.get(receipt.code, UsageError)
    # The only error that is not made from its text.
    raise (UsageError if error is Unsupported else error)(receipt.text)
