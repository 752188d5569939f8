"""Task: what `@app.task` makes of a function. Calling it runs it here; enqueueing it, elsewhere.

Arguments are checked before they are enqueued. What a worker needs of it is its `handler`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from holdfast.breakers import BreakerText, to_breaker
from holdfast.core import codec, limits
from holdfast.core.backoff import Backoff
from holdfast.core.model import NewJob
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.handles import JobHandle
from holdfast.options import JobOptions, expected
from holdfast.rates import RateText, task_limits
from holdfast.signatures import BatchSignature, Signature
from holdfast.upkeep import wall_ms
from holdfast.using import Arguments, Using
from holdfast.worker.context import Context, Standing
from holdfast.worker.handlers import Handler
from holdfast.worker.wire import Given

if TYPE_CHECKING:
    from holdfast.app import Holdfast

Answer = TypeVar("Answer")
Errors = type[BaseException] | tuple[type[BaseException], ...]


class TaskOptions(TypedDict, total=False):
    """What every job of a task carries, unless `using` says otherwise; and how it is run.

    `retry_on` names the only failures that get another attempt, `give_up_on` those that do not.
    `batch` jobs make one call, `isolated` ones run in a process of their own. `rate` and
    `concurrency` bound all its jobs together, or with a key template those that share a key:
    `concurrency=(10, "{tenant}")`. With a `breaker`, a task that keeps failing is left alone for a
    while: "5 failures, 30s".
    """

    name: str | None
    queue: str | None
    max_attempts: int | None
    max_crashes: int | None
    backoff: Backoff | str | None
    timeout: Duration | None
    lease: Duration | None
    priority: int | None
    expires: Duration | None
    retry_on: Errors | None
    give_up_on: Errors
    batch: int
    isolated: bool
    rate: RateText | tuple[RateText, str] | None
    concurrency: int | tuple[int, str] | None
    breaker: BreakerText | None


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


class Task(Generic[Answer]):
    """A function that can be called here, and enqueued to run in a worker."""

    def __init__(self, app: Holdfast, function: Callable[..., Any], options: TaskOptions) -> None:
        given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
        self.app = app
        self.function = function
        self.name: str = _checked_name(given.pop("name", None), function)
        _check_options(self.name, given)
        self.defaults = cast(
            "JobOptions", {key: given.pop(key) for key in _OF_JOBS if key in given}
        )
        self.retry_on = _errors("retry_on", given.get("retry_on"))
        self.give_up_on = _errors("give_up_on", given.get("give_up_on")) or ()
        self.batch: int = given.get("batch", 1)
        self.isolated: bool = given.get("isolated", False)
        self.limits = task_limits(self.name, given.get("rate"), given.get("concurrency"))
        breaker = given.get("breaker")
        name = f"breaker of task {self.name}"
        self.breaker = None if breaker is None else to_breaker(name, breaker)
        self._plain: Using[Answer] = Using(self, {})
        functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @property
    def queue(self) -> str:
        return self.defaults.get("queue") or "default"

    @functools.cached_property
    def signature(self) -> Signature:
        """Read when first needed: a type hint may name what comes later in the module."""
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
            retry_on=self.retry_on,
            give_up_on=self.give_up_on,
        )

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run it here and now, as the plain function that it is."""
        context = self.signature.context
        if context is not None and context not in named:
            placed = self.signature.placed(args, named)
            if placed is not None:
                args, named = placed[0], {**placed[1], context: self._contexts(args)}
        return self.function(*args, **named)

    def using(self, **options: Unpack[JobOptions]) -> Using[Answer]:
        """The same task with these options for its jobs."""
        return Using(self, options)

    def within(self, connection: Any) -> Using[Answer]:
        """Enqueue inside the caller's own transaction, which the caller commits."""
        return Using(self, {}, connection)

    def job(self, *args: Any, **named: Any) -> NewJob:
        """A job for `app.enqueue_many`, for `then` or for a schedule."""
        return self._plain.job(*args, **named)

    def enqueue(self, *args: Any, **named: Any) -> JobHandle[Answer]:
        """Durable on return. Blocks; in async code, await `aenqueue`."""
        return self._plain.enqueue(*args, **named)

    delay = enqueue

    async def aenqueue(self, *args: Any, **named: Any) -> JobHandle[Answer]:
        return await self._plain.aenqueue(*args, **named)

    def enqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        """One job for each tuple or dict of arguments; nothing is enqueued if one is wrong."""
        return self._plain.enqueue_many(calls)

    async def aenqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        return await self._plain.aenqueue_many(calls)

    def _contexts(self, args: tuple[Any, ...]) -> Context | list[Context]:
        """For a run that is no job: it works, and nothing is kept of it."""
        count = len(args[0]) if self.batch > 1 and args else 1
        standing = Standing(self.name)
        item = Given("inline", self.queue, b"", codec.JSON, 1, 0, wall_ms(), last=True)
        contexts = [Context(item, standing, index) for index in range(count)]
        return contexts if self.batch > 1 else contexts[0]

    def handle(self, id: str) -> JobHandle[Answer]:
        """Of a job that was enqueued before, by its id."""
        return JobHandle(self, expected("id", id, str))


def _checked_name(given: object, function: Callable[..., Any]) -> str:
    name = default_name(function) if given is None else expected("name", given, str)
    if not limits.TASK_NAME.match(name):
        raise UsageError(
            f"task name {name[:80]!r} is not 1 to 200 of A-Z a-z 0-9 _ . : / -: give it a name="
        )
    return str(name)


def default_name(function: Callable[..., Any]) -> str:
    """`module:function`. A script is known by its own name, because `__main__` is every script."""
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", "")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec else Path(getattr(main, "__file__", None) or "main").stem
    return f"{module}:{qualname.replace('<locals>.', '')}"


def _check_options(name: str, given: dict[str, Any]) -> None:
    unknown = sorted(set(given).difference(TaskOptions.__annotations__))
    if unknown:
        known = ", ".join(sorted(TaskOptions.__annotations__))
        raise UsageError(f"a task has no {', '.join(unknown)}; it has {known}")
    batch = given.get("batch", 1)
    if type(batch) is not int or not 1 <= batch <= limits.BATCH_MAX:
        raise UsageError(f"batch of task {name} is {batch!r}; use 1 to {limits.BATCH_MAX}")
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
        getattr(function, "__call__", None)  # noqa: B004 (its kind is asked, not whether it is there)
    )
