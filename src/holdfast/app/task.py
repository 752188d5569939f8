"""Task: the object that `@app.task` makes from a function, and JobHandle, an enqueued job of it.

Calling a task runs it here; enqueueing it runs it in a worker. Arguments are checked before they
are enqueued. `BoundTask` adds options for the jobs. Workers use the task's `handler`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec
from msgspec.structs import replace

from holdfast.app.signature import BatchSignature, Signature
from holdfast.core import bounds, checks, codec, failures
from holdfast.core.backoff import Backoff
from holdfast.core.breaker import Breaker
from holdfast.core.limits import Limit
from holdfast.core.model import Job, NewJob, Queue, Receipt, State, Status
from holdfast.core.text import kind_of
from holdfast.core.workers import TaskRecord
from holdfast.errors import (
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobGone,
    ResultTimeout,
    UnknownQueue,
    UsageError,
)
from holdfast.notation.durations import Duration, to_ms
from holdfast.notation.job import JobOptions
from holdfast.notation.options import expected, new_id, new_job, unknown_names
from holdfast.notation.policies import BreakerText, RateText, task_limits, to_breaker
from holdfast.ops.dead_letters import DeadLetter, dead_letter_task
from holdfast.process import wall_ms
from holdfast.worker.child.context import CallState, Context
from holdfast.worker.child.handlers import Handler
from holdfast.worker.wire import CallJob

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast

Parameters = ParamSpec("Parameters")
"""The parameters of a job: those of the function, without its Context."""
Answer = TypeVar("Answer")
Own_co = TypeVar("Own_co", covariant=True)
Call = TypeVar("Call", bound=Callable[..., Any])
"""The type of the function itself, for direct calls."""
AnyTask: TypeAlias = "Task[..., Any, Any]"
Errors = type[BaseException] | tuple[type[BaseException], ...]
Arguments = Iterable[tuple[Any, ...] | Mapping[str, Any]]


class SingleOptions(TypedDict, total=False):
    """The options of `@app.task` for a function that takes one job at a time."""

    name: str | None
    """Name of the task; by default `module:function`."""
    queue: str | None
    max_attempts: int | None
    max_crashes: int | None
    backoff: Backoff | str | None
    timeout: Duration | None
    lease: Duration | None
    priority: int | None
    expires: Duration | None
    retry_on: Errors | None
    """Retry only these errors."""
    give_up_on: Errors
    """Never retry these errors: the job becomes a dead letter at once."""
    isolated: bool
    """Run the task in a process of its own."""
    rate: RateText | tuple[RateText, str] | None
    """Start at most this many jobs per period, e.g. "100/m", or by key, ("100/m", "{tenant}")."""
    concurrency: int | tuple[int, str] | None
    """Run at most this many jobs at a time, or by key, (10, "{tenant}")."""
    breaker: BreakerText | None
    """Pause the task while it keeps failing, e.g. "5 failures, 30s"."""


class TaskOptions(SingleOptions, total=False):
    """The options of `@app.task`: defaults for every job of the task, which `using` can override,
    and how the task runs.

    `rate` and `concurrency` limit all jobs of the task together or, with a key template such as
    "{tenant}", the jobs that share a key.
    """

    batch: int
    """Call the function with a list of up to this many jobs."""


class ContextCall(Protocol[Parameters, Own_co]):
    """A direct call of a task with a Context, which may be left out."""

    @overload
    def __call__(
        self, ctx: Context, /, *args: Parameters.args, **named: Parameters.kwargs
    ) -> Own_co: ...

    @overload
    def __call__(self, *args: Parameters.args, **named: Parameters.kwargs) -> Own_co: ...


_PAUSE_S, _PAUSE_GROWTH, _PAUSE_S_MAX = 0.01, 1.5, 1.0
_OF_JOBS = (
    "queue",
    "max_attempts",
    "max_crashes",
    "backoff",
    "timeout",
    "lease",
    "priority",
    "expires",
)


class Task(Generic[Parameters, Answer, Call]):
    """A function that can be called here, and enqueued to run in a worker. `@app.task` makes it."""

    def __init__(self, app: Holdfast, function: Callable[..., Any], options: TaskOptions) -> None:
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        self.app = app
        self.function = function
        self.name: str = _checked_name(given.pop("name", None), function)
        _check_options(self.name, given)
        self.defaults: JobOptions = cast(
            "JobOptions", {key: given.pop(key) for key in _OF_JOBS if key in given}
        )
        self.retry_on: tuple[type[BaseException], ...] | None = _errors(
            "retry_on", given.get("retry_on")
        )
        self.give_up_on: tuple[type[BaseException], ...] | tuple[()] = (
            _errors("give_up_on", given.get("give_up_on")) or ()
        )
        self.batch: int = given.get("batch", 1)
        self.isolated: bool = given.get("isolated", False)
        self.limits: tuple[Limit, ...] = task_limits(
            self.name, given.get("rate"), given.get("concurrency")
        )
        breaker = given.get("breaker")
        name = f"breaker of task {self.name}"
        self.breaker: Breaker | None = None if breaker is None else to_breaker(name, breaker)
        self._plain: BoundTask[Parameters, Answer] = BoundTask(self, {})
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless `using` names another."""
        return self.defaults.get("queue") or "default"

    @functools.cached_property
    def signature(self) -> Signature:
        """Computed on first use: a type hint may name something defined later in the module."""
        kind = BatchSignature if self.batch > 1 else Signature
        return kind(self.name, self.function)

    @functools.cached_property
    def handler(self) -> Handler:
        return Handler(
            name=self.name,
            function=self.function,
            is_async=_is_async(self.function),
            arguments=self.signature.arguments,
            result=self.signature.result,
            context=self.signature.context,
            queue=self.queue,
            batch=self.batch,
            isolated=self.isolated,
            limits=self.limits,
            breaker=self.breaker,
            declared=self._declared(),
            retry_on=self.retry_on,
            give_up_on=self.give_up_on,
        )

    if TYPE_CHECKING:

        @property
        def __call__(self) -> Call:
            """Run the function here and now."""

    else:

        def __call__(self, *args: Any, **named: Any) -> Any:
            """Run the function here and now."""
            context = self.signature.context
            if context is not None and context not in named and not _has_context(args):
                placed = self.signature.placed(args, named)
                if placed is not None:
                    args, named = placed[0], {**placed[1], context: self._contexts(args)}
            return self.function(*args, **named)

    def using(self, **options: Unpack[JobOptions]) -> BoundTask[Parameters, Answer]:
        """The same task with these options for its jobs."""
        return BoundTask(self, options)

    def within(self, connection: Any) -> BoundTask[Parameters, Answer]:
        """Enqueue inside the caller's own transaction, which the caller commits."""
        return BoundTask(self, {}, connection)

    def job(self, *args: Parameters.args, **named: Parameters.kwargs) -> NewJob:
        """A job for `app.enqueue_many`, for `then` or for a schedule."""
        return self._plain.job(*args, **named)

    def enqueue(self, *args: Parameters.args, **named: Parameters.kwargs) -> JobHandle[Answer]:
        """Enqueue one job, durable on return. It blocks; async code awaits `aenqueue`."""
        return self._plain.enqueue(*args, **named)

    delay = enqueue

    async def aenqueue(
        self, *args: Parameters.args, **named: Parameters.kwargs
    ) -> JobHandle[Answer]:
        """Enqueue one job, durable on return."""
        return await self._plain.aenqueue(*args, **named)

    def enqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        """Enqueue one job per tuple or dict of arguments; none if one of them is invalid."""
        return self._plain.enqueue_many(calls)

    async def aenqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        """The async form of `enqueue_many`."""
        return await self._plain.aenqueue_many(calls)

    def _contexts(self, args: tuple[Any, ...]) -> Context | list[Context]:
        """Contexts for a direct call: they work, but store nothing."""
        count = len(args[0]) if self.batch > 1 and args else 1
        state = CallState(self.name)
        item = CallJob("inline", self.queue, b"", codec.JSON, 1, 0, wall_ms(), last=True)
        contexts = [Context(item, state, index) for index in range(count)]
        return contexts if self.batch > 1 else contexts[0]

    def _declared(self) -> TaskRecord | None:
        """The options for jobs that the code declares, for jobs that are enqueued elsewhere."""
        if not self.defaults:
            return None
        template = self._plain.template
        return TaskRecord(
            queue=self.defaults.get("queue"),
            priority=self.defaults.get("priority"),
            expires_ms=template.expires_ms,
            overrides=template.overrides,
        )

    def handle(self, id: str) -> JobHandle[Answer]:
        """The handle of a job that was enqueued before, by its id."""
        return JobHandle(self, expected("id", id, str))


class BoundTask(Generic[Parameters, Answer]):
    """A task with options, and possibly a connection, for the jobs enqueued through it. Made by
    `task.using` and `task.within`."""

    def __init__(
        self, task: Task[Parameters, Answer, Any], options: JobOptions, connection: Any = None
    ) -> None:
        if options.get("content_type") is not None:
            raise InvalidJob("the payload of a task is JSON: leave content_type out")
        self._task = task
        self._options = options
        self._connection = connection
        self.template: NewJob = self._make()

    def using(self, **options: Unpack[JobOptions]) -> BoundTask[Parameters, Answer]:
        """The same task with more options."""
        return BoundTask(self._task, {**self._options, **options}, self._connection)

    def within(self, connection: Any) -> BoundTask[Parameters, Answer]:
        """The same task, enqueueing inside the caller's own transaction."""
        return BoundTask(self._task, self._options, connection)

    def job(self, *args: Parameters.args, **named: Parameters.kwargs) -> NewJob:
        """See `Task.job`."""
        return self._job(args, named, self._mint())

    def _mint(self) -> Callable[[], str]:
        """The function that makes ids; see `Holdfast.new_id`."""
        return self._task.app.home.mint or new_id

    def _job(
        self, args: tuple[Any, ...], named: Mapping[str, Any], mint: Callable[[], str]
    ) -> NewJob:
        payload = self._task.signature.payload(args, named)
        # Options are converted and checked once, except `run_at`: the delay to it changes.
        template = self.template if self._options.get("run_at") is None else self._make()
        return replace(template, id=self._options.get("id") or mint(), payload=payload)

    def enqueue(self, *args: Parameters.args, **named: Parameters.kwargs) -> JobHandle[Answer]:
        """See `Task.enqueue`."""
        return self._put([self.job(*args, **named)])[0]

    delay = enqueue

    async def aenqueue(
        self, *args: Parameters.args, **named: Parameters.kwargs
    ) -> JobHandle[Answer]:
        """The async form of `enqueue`."""
        return (await self._aput([self.job(*args, **named)]))[0]

    def enqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        """See `Task.enqueue_many`."""
        return self._put(self._jobs(calls))

    async def aenqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        """The async form of `enqueue_many`."""
        return await self._aput(self._jobs(calls))

    def _make(self) -> NewJob:
        options: dict[str, Any] = {**self._task.defaults, **self._options}
        if self._options.get("to") is not None and self._options.get("queue") is None:
            options.pop("queue", None)
        template = new_job(self._task.name, None, cast("JobOptions", options))
        checks.check_job(template)
        return template

    def _jobs(self, calls: Arguments) -> list[NewJob]:
        jobs = []
        mint = self._mint()
        for at, call in enumerate(calls):
            args, named = _arguments(at, call)
            try:
                jobs.append(self._job(args, named, mint))
            except InvalidJob as error:
                raise InvalidJob(f"call {at}: {error}") from None
        if len(jobs) > 1 and self._options.get("id") is not None:
            raise InvalidJob(f"id {jobs[0].id} cannot be used for {len(jobs)} jobs: leave it out")
        return jobs

    def _put(self, jobs: list[NewJob]) -> list[JobHandle[Answer]]:
        app = self._task.app
        if self._connection is None:
            jobs = app.hooks.prepared(jobs) if app.hooks.enqueue else jobs
            receipts = self._enqueue_blocking(jobs)
        else:
            app.run(_nothing(), instead="task.within(connection).aenqueue(…)")
            receipts = []
            for answer in self._enqueue_within(jobs):
                if inspect.iscoroutine(answer):
                    answer.close()
                    raise UsageError(
                        "this connection is async: await task.within(connection).aenqueue(…)"
                    )
                receipts += answer
        handles = self._handles(receipts)
        app.home.enqueued(receipts)
        return handles

    async def _aput(self, jobs: list[NewJob]) -> list[JobHandle[Answer]]:
        app = self._task.app
        if self._connection is None:
            jobs = app.hooks.prepared(jobs) if app.hooks.enqueue else jobs
            receipts = await app.home.arun(lambda: self._enqueue(jobs))
        else:
            await app.arun(_nothing())
            receipts = []
            for answer in self._enqueue_within(jobs):
                receipts += await answer if inspect.isawaitable(answer) else answer
        handles = self._handles(receipts)
        await app.home.aenqueued(receipts)
        return handles

    def _enqueue_blocking(self, jobs: list[NewJob]) -> list[Receipt]:
        app, instead = self._task.app, "task.aenqueue(…)"
        if len(jobs) > bounds.BATCH_MAX or self._options.get("id") is not None:
            return app.run(self._enqueue(jobs), instead=instead)
        receipts = app.home.enqueue(jobs, instead) if jobs else []
        if _names_unknown_queue(receipts):
            return app.run(self._declare_and_enqueue(jobs, receipts), instead=instead)
        return receipts

    async def _enqueue(self, jobs: list[NewJob]) -> list[Receipt]:
        return await self._declare_and_enqueue(jobs, await self._enqueue_batches(jobs))

    async def _declare_and_enqueue(
        self, jobs: list[NewJob], receipts: list[Receipt]
    ) -> list[Receipt]:
        """Declare the queues that tasks name if they do not exist, and enqueue those jobs again."""
        if not _names_unknown_queue(receipts):
            return receipts
        app = self._task.app
        named = {task.queue for task in app.tasks.values()}
        again = [
            at
            for at, receipt in enumerate(receipts)
            if receipt.code == UnknownQueue.code and jobs[at].queue in named
        ]
        for queue in sorted({jobs[at].queue for at in again}):
            await app.engine.declare(Queue(name=queue), instead_of=None)
        answers = await self._enqueue_batches([jobs[at] for at in again])
        for at, receipt in zip(again, answers, strict=True):
            receipts[at] = receipt
        return receipts

    async def _enqueue_batches(self, jobs: list[NewJob]) -> list[Receipt]:
        app = self._task.app
        if self._options.get("id") is not None:
            return await app.engine.enqueue(jobs) if jobs else []
        receipts: list[Receipt] = []
        for at in range(0, len(jobs), bounds.BATCH_MAX):
            receipts += await app.home.enqueue_made(jobs[at : at + bounds.BATCH_MAX])
        return receipts

    def _enqueue_within(self, jobs: list[NewJob]) -> Iterator[Any]:
        """Receipts, or awaitables of receipts, batch by batch, in the caller's transaction."""
        within = self._task.app.within(self._connection)
        for at in range(0, len(jobs), bounds.BATCH_MAX):
            yield within.enqueue(jobs[at : at + bounds.BATCH_MAX])

    def _handles(self, receipts: list[Receipt]) -> list[JobHandle[Answer]]:
        refused = [each for each in receipts if each.status is Status.REFUSED]
        if refused:
            one = refused[0]
            if len(receipts) > 1:
                text = f"{len(refused)} of {len(receipts)} jobs were refused, the first: {one.text}"
                one = replace(one, text=text)
            checks.accepted(one)
        return [
            JobHandle(self._task, each.id, duplicate=each.status is Status.DUPLICATE)
            for each in receipts
        ]


class JobHandle(Generic[Answer]):
    """A job that was enqueued: wait for its result, or look at it. `id` is that of the job.
    `duplicate` is true if an earlier job has the same key or id; then this is its handle."""

    def __init__(self, task: Task[..., Answer, Any], id: str, *, duplicate: bool = False) -> None:
        self._task = task
        self.id = id
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of {self._task.name}>"

    def job(self) -> Job | None:
        """The current state of the job; None if it was deleted."""
        return self._task.app.run(self._task.app.get(self.id), instead="handle.ajob()")

    async def ajob(self) -> Job | None:
        """The async form of `job`."""
        return await self._task.app.arun(self._task.app.get(self.id))

    def result(self, timeout: Duration | None = None) -> Answer:
        """Wait for the job and return the value of its handler.

        Raises JobFailed, JobCancelled or JobGone if there will never be a result,
        ResultMismatch if it does not fit the return annotation, and ResultTimeout, a
        TimeoutError, if `timeout` passes; the job then continues.
        """
        return self._task.app.run(self._wait(timeout), instead="handle.aresult()")

    # A parameter as in `result`, because its error names the job.
    async def aresult(self, timeout: Duration | None = None) -> Answer:  # noqa: ASYNC109
        """The async form of `result`."""
        return await self._task.app.arun(self._wait(timeout))

    async def _wait(self, most: Duration | None) -> Answer:
        until = None
        if most is not None:
            until = time.monotonic() + to_ms("timeout", most, UsageError) / 1000
        pause_s = _PAUSE_S
        while True:
            job = await self._task.app.get(self.id)
            if is_over(job, self.id):
                assert job is not None
                answer: Answer = self._task.signature.read_result(job)
                return answer
            left_s = _PAUSE_S_MAX if until is None else until - time.monotonic()
            if left_s <= 0:
                raise ResultTimeout(f"job {self.id} is still {job.state if job else 'unknown'}")
            await self._task.app.home.pause(min(pause_s, left_s))
            pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_S_MAX)


def _arguments(at: int, given: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of one call of `enqueue_many`, by place and by name."""
    if isinstance(given, tuple | list):
        return tuple(given), {}
    if isinstance(given, Mapping):
        return (), given
    raise InvalidJob(f"call {at} is {kind_of(given)}: give a tuple or dict of arguments")


def _has_context(args: tuple[Any, ...]) -> bool:
    """True if a direct call passes its Context, or the list of them, by position."""
    first = args[0] if args else None
    return isinstance(first[0] if isinstance(first, list) and first else first, Context)


def is_over(job: Job | None, id: str) -> bool:
    """Whether the job is done; raises if it never will be."""
    if job is None:
        raise JobGone(f"job {id} no longer exists: it was deleted, or its retention has ended")
    if job.state is State.DONE:
        return True
    if job.state is State.CANCELLED:
        raise JobCancelled(f"job {id} was cancelled", job)
    if job.is_dead_letter:
        raise JobFailed(f"job {id} is dead ({job.reason}){_last_error(job)}", job)
    return False


def dead_letter_handler(queue: str, function: Callable[[DeadLetter], Any]) -> Handler:
    """The handler that calls `function` with each dead letter of a queue."""
    if not callable(function):
        raise UsageError(f"a handler must be a function, not {kind_of(function)}")
    return Handler(
        name=dead_letter_task(queue),
        function=function,
        is_async=_is_async(function),
        arguments=lambda payload, _: ((_DEAD_LETTER.decode(payload),), {}),
        result=lambda _: None,
        queue=queue,
        dead=True,
    )


_DEAD_LETTER = msgspec.msgpack.Decoder(DeadLetter)


def _last_error(job: Job) -> str:
    failure = job.failures[-1].failure if job.failures else None
    return "" if failure is None else f": {failures.line(failure)}"


def _names_unknown_queue(receipts: list[Receipt]) -> bool:
    return any(receipt.code == UnknownQueue.code for receipt in receipts)


async def _nothing() -> None:
    """Does nothing; running it opens the engine."""


def _checked_name(given: object, function: Callable[..., Any]) -> str:
    name = default_name(function) if given is None else expected("name", given, str)
    if not bounds.TASK_NAME.match(name):
        raise UsageError(
            f"task name {name[:80]!r} is not valid: use 1 to 200 characters of A-Z a-z 0-9 _ . :"
            " / -; set name="
        )
    return str(name)


def default_name(function: Callable[..., Any]) -> str:
    """`module:function`. For a script, its file name replaces `__main__`, which is ambiguous."""
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = module_name(getattr(function, "__module__", ""))
    return f"{module}:{qualname.replace('<locals>.', '')}"


def module_name(module: str) -> str:
    """The name of a module; for the main script, that of its file."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec else Path(getattr(main, "__file__", None) or "main").stem


def _check_options(name: str, given: dict[str, Any]) -> None:
    unknown = sorted(set(given).difference(TaskOptions.__annotations__))
    if unknown:
        raise UsageError(unknown_names("a task", unknown, TaskOptions.__annotations__))
    batch = given.get("batch", 1)
    if type(batch) is not int or not 1 <= batch <= bounds.BATCH_MAX:
        raise UsageError(f"batch of task {name} is {batch!r}; use 1 to {bounds.BATCH_MAX}")
    expected("isolated", given.get("isolated", False), bool)


def _errors(name: str, given: Any) -> tuple[type[BaseException], ...] | None:
    if given is None:
        return None
    errors = given if isinstance(given, tuple) else (given,)
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise UsageError(
                f"{name} has {error!r}: give exception classes, as `except` takes them"
            )
    return errors


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (the method itself is inspected)
    )
