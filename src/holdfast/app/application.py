"""Holdfast, the application object: enqueue, lease, settle, inspect and run upkeep.

It converts the values people write into those of the engine, and refusals into exceptions. It makes
no decisions about jobs: `core` decides and the engine applies.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

import msgspec

from holdfast.app.batch import Batch, enqueue_batch
from holdfast.app.engine_host import EngineHost, closing_unstarted
from holdfast.app.hooks import HookedTransaction, HookMethods
from holdfast.app.leases import LeaseMethods
from holdfast.app.schedules import ScheduleOptions, TaskSchedule, program_name, task_schedule
from holdfast.app.task import (
    AnyTask,
    ContextCall,
    SingleOptions,
    Task,
    TaskOptions,
    dead_letter_handler,
)
from holdfast.core import bounds, checks
from holdfast.core.checks import accepted
from holdfast.core.limits import Limit
from holdfast.core.model import (
    AfterOn,
    Flow,
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
    Waits,
)
from holdfast.core.text import kind_of
from holdfast.core.verdict import (
    Amendment,
    Cancel,
    Delete,
    Redrive,
)
from holdfast.engines.base import Engine
from holdfast.engines.coalesced import Coalesced, Enqueue
from holdfast.engines.extras import Backable, ServerBacked, Transactional, extra
from holdfast.engines.observed import Observed
from holdfast.engines.registry import (
    default_url,
    namespace_of,
    open_cloudwatch,
    open_engine,
    redacted,
)
from holdfast.errors import (
    EngineClosed,
    InvalidJob,
    Unsupported,
    UsageError,
)
from holdfast.events import Listeners
from holdfast.notation.durations import Duration, to_ms
from holdfast.notation.job import JobOptions
from holdfast.notation.options import (
    QueueOptions,
    changed_queue,
    checked,
    checked_filter,
    expected,
    new_id,
    new_job,
)
from holdfast.notation.policies import RateText, to_rate
from holdfast.ops.dead_letters import DeadLetter
from holdfast.ops.queues import (
    change_queue,
    enqueue_in_new_queues,
    remove_limit,
    set_limit,
)
from holdfast.ops.redrives import Redrives
from holdfast.ops.schedules import ScheduleRule, Schedules
from holdfast.ops.schedules.declared import DeclaredSchedules, ScheduleSync, save_schedules
from holdfast.ops.workers import Workers
from holdfast.process import wall_ms
from holdfast.telemetry import (
    CloudWatchExporter,
    Retention,
    Telemetry,
    bookkeepers,
    is_counted_elsewhere,
)
from holdfast.tracing import traced
from holdfast.worker.child.context import Context
from holdfast.worker.child.handlers import Handler
from holdfast.worker.options import WorkerOptions, numbered

if TYPE_CHECKING:
    from holdfast.upkeep import Upkeep

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Element = TypeVar("Element")
Scheduled = TypeVar("Scheduled", bound=AnyTask)

ALIVE: weakref.WeakSet[Holdfast] = weakref.WeakSet()
"""Every application of this process: the default target of the test modes."""

_reopening = [threading.Lock()]
# Another thread may have held the lock at the fork; that thread does not exist in the child.
os.register_at_fork(after_in_child=lambda: _reopening.__setitem__(0, threading.Lock()))

_PAGE = 100
"""Jobs are read with their payloads: a thousand of them could take a gigabyte."""


class Holdfast(HookMethods, LeaseMethods):
    """A connection to one store of jobs, and the tasks of an application.

    `url` names the engine; the default is HOLDFAST_URL, else a file in the current folder. Creating
    a Holdfast opens nothing. Enqueueing a task opens the engine on a loop in a background thread;
    `async with Holdfast() as app`, or `open` and `close`, use the program's own loop. `listeners`
    receive an event for every engine call and upkeep action; `place` is the URL without secrets.

    `name` is the name of the program, by default that of the module that creates the Holdfast. The
    store keeps it with the schedules that the code declares, and removes those that the code no
    longer declares, unless `keep_schedules` is true.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        name: str | None = None,
        keep_schedules: bool = False,
    ) -> None:
        if url is not None and engine is not None:
            raise UsageError("Holdfast takes a url or an engine, not both")
        super().__init__()
        url = default_url() if url is None else expected("url", url, str)
        self.url: str | None = None if engine else url
        """May contain a password; `place` does not."""
        store = engine or open_engine(url)
        self.place: str = store.traits.name if engine else redacted(url)
        self.listeners: Listeners = Listeners()
        self.name: str = program_name(name)
        self._started_at = wall_ms()
        self._keep_schedules = expected("keep_schedules", keep_schedules, bool)
        self._task_schedules: dict[str, TaskSchedule] = {}
        self.tasks: dict[str, AnyTask] = {}
        self._dead_letter_handlers: dict[str, Handler] = {}
        self._home = self._host(store)
        self._telemetry: Telemetry | None = None
        ALIVE.add(self)

    @property
    def home(self) -> EngineHost:
        """The loop on which the engine is open; a forked process gets its own."""
        if self._home.inherited:
            with _reopening[0]:
                if self._home.inherited:
                    # Referenced forever: collecting it could close descriptors that the parent
                    # still uses.
                    self._inherited = self._home
                    self._home = self._host(self._reopened())
        return self._home

    @home.setter
    def home(self, home: EngineHost) -> None:
        self._home = home

    @property
    def engine(self) -> Engine:
        """The engine with its wrappers: tracing, group commit, events."""
        return self.home.engine

    @property
    def schedules(self) -> Schedules:
        """The schedules of this store."""
        return Schedules(self.engine, self.home.wall_ms)

    @property
    def redrives(self) -> Redrives:
        """The redrives of this store: dead letters that upkeep puts back gradually."""
        return Redrives(self.engine, wall_ms)

    @property
    def telemetry(self) -> Telemetry:
        """Counts of this process's calls, saved in the store. Upkeep runs it; a process without
        upkeep runs `await app.telemetry.run(stop)` itself."""
        if self._telemetry is None or self._telemetry.process != os.getpid():
            self._telemetry = Telemetry(
                lambda: self.engine, self.home.store, self.listeners, wall_ms
            )
        return self._telemetry

    async def open(self) -> None:
        """Create or check the store. Idempotent; the queue `default` exists afterwards."""
        await self.home.open()

    async def close(self) -> None:
        """Finish the pending calls, then close the engine. Idempotent."""
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
    def task(
        self,
        function: Callable[Concatenate[Context, Parameters], Coroutine[Any, Any, Answer]],
        /,
    ) -> Task[Parameters, Answer, ContextCall[Parameters, Coroutine[Any, Any, Answer]]]: ...

    @overload
    def task(
        self, function: Callable[Concatenate[Context, Parameters], Answer], /
    ) -> Task[Parameters, Answer, ContextCall[Parameters, Answer]]: ...

    @overload
    def task(
        self, function: Callable[Parameters, Coroutine[Any, Any, Answer]], /
    ) -> Task[Parameters, Answer, Callable[Parameters, Coroutine[Any, Any, Answer]]]: ...

    @overload
    def task(
        self, function: Callable[Parameters, Answer], /
    ) -> Task[Parameters, Answer, Callable[Parameters, Answer]]: ...

    @overload
    def task(self, /, *, batch: int, **options: Unpack[SingleOptions]) -> BatchDecorator: ...

    @overload
    def task(self, /, **options: Unpack[SingleOptions]) -> Decorator: ...

    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Turn a function into a task: `@app.task`, or `@app.task(queue="mail", …)`."""
        given = cast("TaskOptions", options)
        if function is None:
            return lambda decorated: self._add_task(decorated, given)
        return self._add_task(function, given)

    def schedule(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[Scheduled], Scheduled]:
        """Enqueue a task regularly: `@app.schedule(cron="0 2 * * *")` above `@app.task`.

        Workers store the schedule when they start; so does `sync_schedules`. Its `name` is by
        default that of the task, with a dot for the colon. `arguments` are those of the task, in
        order or by name; `missed`, `missed_max` and `grace` are the policy for missed ticks. The
        other options are those of its jobs.
        """
        rule = ScheduleRule(cron=cron, every=every, zone=expected("timezone", timezone, str))

        def add(task: Scheduled) -> Scheduled:
            if not isinstance(task, Task) or task.app is not self:
                raise UsageError("@app.schedule(…) needs a task: put it above @app.task")
            made = task_schedule(task, rule, options)
            if made.name in self._task_schedules:
                raise UsageError(
                    f"schedule {made.name} already exists: give one of the two another name="
                )
            self._task_schedules[made.name] = made
            return task

        return add

    @property
    def declared_schedules(self) -> DeclaredSchedules:
        """The schedules of the code, as workers store them."""
        return DeclaredSchedules(
            program=self.name,
            schedules=tuple(each.schedule() for each in self._task_schedules.values()),
            keep=self._keep_schedules,
        )

    async def sync_schedules(self) -> ScheduleSync:
        """Store the schedules of the code, and remove those that it no longer declares, as workers
        do when they start. A program that started earlier than another of its name changes nothing.
        """
        return await save_schedules(
            self.engine, self.declared_schedules, self._started_at, self.home.wall_ms
        )

    def on_dead_letter(
        self, queue: str = "default"
    ) -> Callable[[Callable[[DeadLetter], Answer]], Callable[[DeadLetter], Answer]]:
        """Call a function with each dead letter of a queue, in the workers of this application:
        those that died there, and those of other queues whose `dead_queue` it is.

        The dead letter is deleted when the function returns. If it raises, the dead letter stays,
        and is offered again later: see `holdfast.Retry` and `Release` for when.
        """
        checks.check_queue_name(expected("queue", queue, str))

        def add(function: Callable[[DeadLetter], Answer]) -> Callable[[DeadLetter], Answer]:
            if queue in self._dead_letter_handlers:
                raise UsageError(f"queue {queue} already has a handler of its dead letters")
            self._dead_letter_handlers[queue] = dead_letter_handler(queue, function)
            return function

        return add

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handlers of the tasks by name, as a worker runs them, and those of dead letters."""
        found = {name: task.handler for name, task in self.tasks.items()}
        found |= {handler.name: handler for handler in self._dead_letter_handlers.values()}
        return {name: self._with_hooks(handler) for name, handler in found.items()}

    @property
    def workers(self) -> Workers:
        """The workers on this store, and orders to them."""
        return Workers(self.engine)

    def run_worker(self, /, *, count: int = 1, **options: Any) -> int:
        """Run workers for these tasks until they are stopped; returns their exit code.

        It takes over the process's signal handlers, so call it in the main thread of a program of
        its own. The options are those of `WorkerOptions`; without `queues` the workers serve the
        queues that the tasks name.
        """
        from holdfast.worker.launcher import run

        return run(numbered(worker_options(self, options), count))

    def run(self, coroutine: Coroutine[Any, Any, Answer], *, instead: str = "it") -> Answer:
        """Wait for a coroutine of this Holdfast, blocking: `app.run(app.queues())`."""
        with closing_unstarted(coroutine) as make:
            return self.home.run(make, instead)

    async def arun(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a coroutine on the engine's loop, from any event loop."""
        with closing_unstarted(coroutine) as make:
            return await self.home.arun(make)

    def job(self, task: str, payload: Any = None, **options: Unpack[JobOptions]) -> NewJob:
        """A job for `enqueue_many`, for `complete(then=…)` or for `within`."""
        if options.get("id") is None:
            options["id"] = self.new_id()
        return new_job(task, payload, options)

    def new_id(self) -> str:
        """An id for a job that has none. A partitioned engine chooses ids by their partition."""
        return (self.home.mint or new_id)()

    async def enqueue(
        self, task: str, payload: Any = None, **options: Unpack[JobOptions]
    ) -> Receipt:
        """Enqueue one job, durable on return. A refusal is raised: UnknownQueue, QueueFull, …"""
        made = options.get("id") is None
        enqueue = self.home.enqueue_made if made else self.engine.enqueue
        jobs = [self.job(task, payload, **options)]
        [receipt] = await enqueue(self.hooks.prepared(jobs) if self.hooks.enqueue else jobs)
        return accepted(receipt)

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        """Enqueue many jobs and return a receipt for each, in order. A refused job is reported in
        its receipt and does not affect the others.

        Up to 1,000 jobs are one transaction; more are split into batches of 1,000.
        """
        receipts: list[Receipt] = []
        rest = iter(jobs)
        while batch := list(islice(rest, bounds.BATCH_MAX)):
            receipts += await self._enqueue_batch(batch)
        return receipts

    async def get(self, id: str) -> Job | None:
        """The complete job, with its timeline, output and result."""
        return await self.engine.get(expected("id", id, str))

    async def find(self, wanted: JobFilter, *, limit: int = 100, after: int | None = None) -> Page:
        """One page of matching jobs, newest first; continue with its `after` until it is None."""
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
        self, wanted: JobFilter, by: TallyBy, *, limit: int = bounds.PAGE_MAX
    ) -> list[Tally]:
        """Count matching jobs by the values of a field, the most frequent first."""
        if by not in get_args(TallyBy):
            raise UsageError(f"by {by!r} is not valid: use one of {', '.join(get_args(TallyBy))}")
        return await self.engine.tally(checked_filter(wanted), by, limit=limit)

    async def amend(
        self, wanted: JobFilter, amendment: Amendment, *, limit: int = bounds.BATCH_MAX
    ) -> int:
        """Amend at most `limit` matching jobs, oldest first; returns how many were changed."""
        amendment = checked(expected("amendment", amendment, Amendment), UsageError)
        return await self.engine.amend(checked_filter(wanted), amendment, limit=limit)

    async def cancel(self, *ids: str, by: str = "", text: str = "") -> int:
        """Cancel waiting jobs; ask running ones to stop at their next renewal."""
        return await self.amend(JobFilter(ids=ids), Cancel(by=by, text=text))

    async def redrive(self, *ids: str, by: str = "", delay: Duration = 0) -> int:
        """Put dead letters back into their queues."""
        delay_ms = to_ms("delay", delay, UsageError)
        return await self.amend(JobFilter(ids=ids), Redrive(by=by, delay_ms=delay_ms))

    async def delete(self, *ids: str) -> int:
        """Delete waiting and finished jobs; leased jobs stay."""
        return await self.amend(JobFilter(ids=ids), Delete())

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        """All queues by name, or the existing ones of `names`; with counts unless `counts` is
        False."""
        return await self.engine.queues(names=names, counts=counts)

    async def declare(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Create a queue, or change the given settings of an existing one."""
        expected("name", name, str)
        return await change_queue(
            self.engine, name, lambda known: changed_queue(known or Queue(name=name), options)
        )

    async def drop(self, name: str) -> None:
        """Delete a queue and its jobs, revoking their leases."""
        await self.engine.drop(expected("name", name, str))

    async def batch(
        self, jobs: Iterable[NewJob], *, then: NewJob, after_on: AfterOn = "either"
    ) -> Batch:
        """Enqueue up to 10,000 jobs, and one more that starts when all of them have ended."""
        expected("then", then, NewJob)
        return await enqueue_batch(self, jobs, then, after_on)

    async def limit(
        self,
        queue: str,
        name: str,
        *,
        concurrency: int | None = None,
        rate: RateText | None = None,
        key: str = "",
        task: str | None = None,
    ) -> Queue:
        """Limit how many jobs of a queue, or of one task in it, are leased at a time or per period.

        With a `key` template such as "{tenant}" each key has a limit of its own. Queues whose
        limits have the same name share its slots. It applies at once, also to waiting jobs.
        """
        wanted = Limit(
            name=expected("name", name, str),
            task=task,
            key=expected("key", key, str),
            concurrency=concurrency,
            rate=None if rate is None else to_rate("rate", rate),
        )
        return await set_limit(self.engine, expected("queue", queue, str), wanted)

    async def unlimit(self, queue: str, name: str) -> Queue:
        """Remove a limit; a missing one is not an error."""
        return await remove_limit(self.engine, expected("queue", queue, str), name)

    async def flow(self, queue: str, *, limit: int = bounds.PAGE_MAX) -> Flow:
        """The current state of a queue's limits and tenants, with the jobs that hold its slots."""
        return await self.engine.flow(expected("queue", queue, str), limit=limit)

    async def waits(self, id: str) -> Waits | None:
        """Why a due job still waits: parents, group, limits, tenant; None if no such job waits."""
        return await self.engine.waits(expected("id", id, str))

    async def backup(self, path: Path | str) -> None:
        """Copy the store consistently while it is in use, for engines that are a file."""
        backable = extra(self.engine, Backable)
        if backable is None:
            remedy = "back up its store with the tools of the store, such as pg_dump"
            raise Unsupported(self.engine.traits.name, "backup by Holdfast", remedy)
        await backable.backup(expected("path", path, Path | str))

    def within(self, connection: Any) -> Any:
        """`enqueue` and `settle` inside the caller's own transaction; the caller commits."""
        transactional = extra(self.engine, Transactional)
        if transactional is None:
            remedy = "enqueue after the commit, or use SQLite or PostgreSQL"
            raise Unsupported(self.engine.traits.name, "enqueue within a transaction", remedy)
        transaction = transactional.within(connection)
        return HookedTransaction(transaction, self.hooks) if self.hooks.enqueue else transaction

    def upkeep(
        self,
        *,
        archive: Path | str | None = None,
        history: Retention | None = None,
        brokers: Mapping[str, str] | None = None,
        cloudwatch: str | None = None,
    ) -> Upkeep:
        """The reaper, pruner, scheduler and redriver: `await app.upkeep().run(stop)`.

        At least one process must run it, or jobs with overdue leases never run again; any number
        may. It also maintains the counts of all processes. `history` is how long counts per minute,
        hour and day are stored. `brokers` maps names of brokers to their URLs: upkeep runs the
        gates that use them. `cloudwatch` is a CloudWatch namespace: upkeep publishes Ready,
        OldestAge and DesiredWorkers of each queue there.
        """
        # Most processes run no upkeep: they start sooner without these modules.
        from holdfast.gates import GateRunner
        from holdfast.upkeep import Upkeep

        expected("archive", archive, Path | str | None)
        expected("history", history, Retention | None)
        expected("cloudwatch", cloudwatch, str | None)
        background = [self.telemetry.run]
        if brokers:
            background.append(GateRunner(self.engine, brokers, tell=self.listeners).run)
        if cloudwatch is not None:
            background.append(self._exporter(cloudwatch).run)
        return Upkeep(
            self.engine,
            archive=archive,
            tell=self.listeners,
            more=bookkeepers(self.engine, wall_ms, history),
            background=background,
        )

    def _exporter(self, cloudwatch: str) -> CloudWatchExporter:
        """Each namespace but `default` has its own in CloudWatch, e.g. Holdfast/shop."""
        if is_counted_elsewhere(self.engine):
            raise UsageError("the server publishes to CloudWatch: give it the option --cloudwatch")
        own = "default" if self.url is None else namespace_of(self.url)
        name = cloudwatch if own == "default" else f"{cloudwatch}/{own}"
        return self.telemetry.exporter(open_cloudwatch(name))

    def _add_task(self, function: Callable[..., Any], options: TaskOptions) -> AnyTask:
        if not callable(function):
            raise UsageError(f"a task must be a function, not {kind_of(function)}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{function.__qualname__} is a generator: a task must return a value instead"
            )
        task: AnyTask = Task(self, function, options)
        if task.name in self.tasks:
            raise UsageError(f"task {task.name} already exists: give one of the two another name=")
        self.tasks[task.name] = task
        return task

    def _with_hooks(self, handler: Handler) -> Handler:
        hooks = self.hooks.for_task(handler.name, "async" if handler.is_async else "sync")
        prepare = self.hooks.prepared if self.hooks.enqueue else None
        if hooks is None and prepare is None:
            return handler
        return replace(handler, hooks=hooks, prepare=prepare)

    def _host(self, store: Engine) -> EngineHost:
        engine = Observed(store, self.listeners)
        # A server creates queues for its clients, as its own settings say.
        is_local = extra(store, ServerBacked) is None
        enqueue = creating_queues(engine) if is_local else None
        return EngineHost(store, traced(Coalesced(engine, enqueue)))

    def _reopened(self) -> Engine:
        """An engine for this forked process; the one opened before the fork is the parent's."""
        store = self._home.store
        if self.url is not None and store.traits.shared:
            return open_engine(self.url)
        if self._home.used:
            raise EngineClosed(
                "this Holdfast belongs to the process that this one was forked from: create a"
                " new one"
            )
        return store

    async def _enqueue_batch(self, batch: list[NewJob]) -> list[Receipt]:
        """Enqueue one batch; a job with values of wrong types is refused in its receipt."""
        refused: dict[int, Receipt] = {}
        for at, new in enumerate(batch):
            if not isinstance(new, NewJob):
                raise InvalidJob(f"job {at} is {kind_of(new)}: make it with app.job(…)")
            try:
                checked(new, InvalidJob)
            except InvalidJob as error:
                refused[at] = checks.refusal(str(new.id), error)
        good = [new for at, new in enumerate(batch) if at not in refused]
        good = self.hooks.prepared(good) if self.hooks.enqueue else good
        answers = iter(await self.engine.enqueue(good)) if good else iter(())
        return [refused[at] if at in refused else next(answers) for at in range(len(batch))]


def creating_queues(engine: Engine) -> Enqueue:
    """The engine's `enqueue`, which creates queues that do not exist if the setting `create-queues`
    says so."""

    async def enqueue(jobs: Sequence[NewJob]) -> list[Receipt]:
        receipts = await engine.enqueue(jobs)
        for receipt in receipts:
            if receipt.status is Status.REFUSED:
                return await enqueue_in_new_queues(engine, jobs, receipts)
        return receipts

    return enqueue


class Decorator(Protocol):
    """The decorator returned by `app.task(…)`. A Context that is the first parameter is not one of
    the job's: type checkers cannot leave out any other."""

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[Context, Parameters], Coroutine[Any, Any, Answer]],
        /,
    ) -> Task[Parameters, Answer, ContextCall[Parameters, Coroutine[Any, Any, Answer]]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, Parameters], Answer], /
    ) -> Task[Parameters, Answer, ContextCall[Parameters, Answer]]: ...

    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Answer]], /
    ) -> Task[Parameters, Answer, Callable[Parameters, Coroutine[Any, Any, Answer]]]: ...

    @overload
    def __call__(
        self, function: Callable[Parameters, Answer], /
    ) -> Task[Parameters, Answer, Callable[Parameters, Answer]]: ...


class BatchDecorator(Protocol):
    """The decorator returned by `app.task(batch=…)`: the parameter of a job is an element of the
    function's list, and its result an element of the list that the function returns."""

    @overload
    def __call__(
        self,
        function: Callable[
            Concatenate[list[Context], list[Element], ...], Coroutine[Any, Any, list[Answer]]
        ],
        /,
    ) -> Task[[Element], Answer, Callable[..., Coroutine[Any, Any, list[Answer]]]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Context], list[Element], ...], list[Answer]], /
    ) -> Task[[Element], Answer, Callable[..., list[Answer]]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Context], list[Element], ...], Answer], /
    ) -> Task[[Element], Any, Callable[..., Answer]]: ...

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[list[Element], ...], Coroutine[Any, Any, list[Answer]]],
        /,
    ) -> Task[
        [Element],
        Answer,
        Callable[Concatenate[list[Element], ...], Coroutine[Any, Any, list[Answer]]],
    ]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Element], ...], list[Answer]], /
    ) -> Task[[Element], Answer, Callable[Concatenate[list[Element], ...], list[Answer]]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Element], ...], Answer], /
    ) -> Task[[Element], Any, Callable[Concatenate[list[Element], ...], Answer]]: ...


def worker_options(app: Holdfast, options: dict[str, Any]) -> WorkerOptions:
    """The options of a worker for this application, checked."""
    if app.url is None or not app.engine.traits.shared:
        raise UsageError(
            "a worker is a separate process and opens the store by its URL: create the Holdfast"
            " with a URL, such as sqlite:///work.db"
        )
    unknown = sorted(set(options).difference(WorkerOptions.__struct_fields__))
    if unknown:
        known = ", ".join(WorkerOptions.__struct_fields__)
        raise UsageError(f"run_worker: a worker has no {', '.join(unknown)}; it has {known}")
    given = {"url": app.url, "target": target_of(app), "queues": {}, **options}
    try:
        return msgspec.convert(given, WorkerOptions, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"run_worker: {error}") from None


def target_of(app: object) -> str:
    """`module:attribute`, or `path.py:attribute` if the application is in the main script."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app or _facade_app(value) is app:
                return f"{_module_path(name, module)}:{attribute}"
    raise UsageError("the application has no name in any module: assign it, as in app = Holdfast()")


def _facade_app(value: object) -> object:
    """The application of a BlockingHoldfast. A proxy, such as Flask's `current_app`, is not asked
    for attributes: outside of a request it raises."""
    try:
        return object.__getattribute__(value, "_app")
    except AttributeError:
        return None


def _module_path(name: str, module: Any) -> str:
    if name != "__main__":
        return name
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(module, "__file__", None)
    if file is None:
        raise UsageError("a worker cannot import an interactive session: put the tasks in a file")
    return str(Path(file).resolve())
