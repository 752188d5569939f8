"""Hooks and middleware of an application: they run when a job is enqueued and around each attempt.

`Hooks` collects them; `AttemptHooks` are those of one task, and `HookedCall` runs them around one
call of its handler. A handler without hooks never gets here.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never, cast

from msgspec.structs import replace

from holdfast.core.model import Failure, NewJob
from holdfast.core.text import kind_of
from holdfast.errors import UsageError
from holdfast.worker.child.context import Context
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    Raised,
    Returned,
)

_log = logging.getLogger("holdfast.hooks")

AttemptOutcome: TypeAlias = Literal["done", "retried", "dead", "released", "cancelled"]
FunctionKind: TypeAlias = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended. `outcome` is what the worker is about to report to the store: the job
    is done, will be retried, is dead, was released with its attempt refunded, or was cancelled.
    `failure` is stored with the job; `error` is the exception, if the handler raised one."""

    context: Context
    """The Context that the handler had."""
    outcome: AttemptOutcome
    seconds: float
    """How long the attempt took."""
    failure: Failure | None = None
    error: BaseException | None = None


EnqueueHook: TypeAlias = Callable[[NewJob], Mapping[str, str] | None]
StartHook: TypeAlias = Callable[[Context], object]
EndHook: TypeAlias = Callable[[AttemptEnd], object]
MiddlewareFunction: TypeAlias = (
    Callable[[Context], Iterator[None]] | Callable[[Context], AsyncIterator[None]]
)


class Middleware(NamedTuple):
    """A generator that runs around handlers: of all tasks, or `only` of one kind."""

    function: MiddlewareFunction
    only: FunctionKind | None

    @property
    def is_async(self) -> bool:
        return inspect.isasyncgenfunction(self.function)


class Hooks:
    """The hooks of an application, each kind in the order in which it was added."""

    def __init__(self) -> None:
        self.enqueue: list[EnqueueHook] = []
        self.before: list[StartHook] = []
        self.after: list[EndHook] = []
        self.failure: list[EndHook] = []
        self.death: list[EndHook] = []
        self.middleware: list[Middleware] = []

    def add_middleware(self, function: MiddlewareFunction, only: FunctionKind | None) -> None:
        """UsageError if it is not a generator function, or async for plain tasks."""
        added = Middleware(function, only)
        if not added.is_async and not inspect.isgeneratorfunction(function):
            raise UsageError(
                f"middleware {_name(function)} is not a generator function: write `yield` where"
                " the handler runs"
            )
        if added.is_async and only == "sync":
            raise UsageError(
                f"middleware {_name(function)} is async: only async tasks can wait for it"
            )
        self.middleware.append(added)

    def prepared(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """The jobs with the headers that enqueue hooks return. A header of the job itself stays.
        A hook refuses a job by raising."""
        return [self._prepared(job) for job in jobs]

    def for_task(self, task: str, kind: FunctionKind) -> AttemptHooks | None:
        """The hooks around attempts of a task; None if there are none. UsageError if a middleware
        is async and the task is a plain function."""
        wrapping = [each for each in self.middleware if each.only in (None, kind)]
        for each in wrapping:
            if each.is_async and kind == "sync":
                raise UsageError(
                    f"middleware {_name(each.function)} is async, and task {task} is a plain"
                    " function: make the middleware a plain generator, or use"
                    ' @app.middleware(only="async") to leave such tasks out'
                )
        if not (wrapping or self.before or self.after or self.failure or self.death):
            return None
        return AttemptHooks(
            before=tuple(self.before),
            after=tuple(self.after),
            failure=tuple(self.failure),
            death=tuple(self.death),
            middleware=tuple(_context_manager(each) for each in wrapping),
        )

    def _prepared(self, job: NewJob) -> NewJob:
        for hook in self.enqueue:
            added = hook(job)
            if added:
                _check_headers(hook, added)
                job = replace(job, headers={**added, **job.headers})
        return job


_Enter: TypeAlias = (
    Callable[[Context], AbstractContextManager[None]]
    | Callable[[Context], AbstractAsyncContextManager[None]]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHooks:
    """The hooks around attempts of one task."""

    before: tuple[StartHook, ...]
    after: tuple[EndHook, ...]
    failure: tuple[EndHook, ...]
    death: tuple[EndHook, ...]
    middleware: tuple[_Enter, ...]


class HookedCall:
    """The hooks around one call of a function, for the jobs of `contexts`. `is_dead` if it handles
    dead letters, which cannot die. A middleware gets the first Context."""

    __slots__ = ("_contexts", "_function", "_hooks", "_is_dead", "_started_at", "started")

    def __init__(
        self,
        hooks: AttemptHooks,
        function: Callable[..., Any],
        contexts: Sequence[Context],
        *,
        is_dead: bool,
    ) -> None:
        self._hooks = hooks
        self._function = function
        self._contexts = contexts
        self.started: Sequence[Context] = contexts
        """Without the jobs of a batch whose payloads do not fit."""
        self._is_dead = is_dead
        self._started_at = time.monotonic()

    def call(self, *positional: Any, **named: Any) -> Any:
        """Call a plain function. None if a middleware caught its exception."""
        self._begin()
        stack: ExitStack[bool] = ExitStack()
        with stack:
            for enter in self._hooks.middleware:
                stack.enter_context(cast("Any", enter(self.started[0])))
            return self._function(*positional, **named)
        return None

    async def call_async(self, *positional: Any, **named: Any) -> Any:
        """Await a coroutine function. None if a middleware caught its exception."""
        self._begin()
        stack: AsyncExitStack[bool] = AsyncExitStack()
        async with stack:
            for enter in self._hooks.middleware:
                entered: Any = enter(self.started[0])
                if isinstance(entered, AbstractAsyncContextManager):
                    await stack.enter_async_context(entered)
                else:
                    stack.enter_context(entered)
            return await self._function(*positional, **named)
        return None

    def ended(self, endings: Sequence[Ending], errors: Mapping[int, BaseException]) -> None:
        """Tell the hooks how the jobs ended. Their exceptions are logged and change nothing."""
        seconds = time.monotonic() - self._started_at
        for index, (context, ending) in enumerate(zip(self._contexts, endings, strict=True)):
            outcome = outcome_of(ending, context, is_dead=self._is_dead)
            end = AttemptEnd(
                context=context,
                outcome=outcome,
                seconds=seconds,
                failure=getattr(ending, "failure", None),
                error=errors.get(index),
            )
            if end.failure is not None:
                _tell(self._hooks.failure, end)
            if outcome == "dead":
                _tell(self._hooks.death, end)
            _tell(self._hooks.after, end)

    def _begin(self) -> None:
        for context in self.started:
            for hook in self._hooks.before:
                hook(context)


def outcome_of(ending: Ending, context: Context, *, is_dead: bool = False) -> AttemptOutcome:
    """The outcome that the worker will report: see `retry_policy`, which decides in the end."""
    match ending:
        case Returned():
            return "done"
        case Raised(fatal=True) | AskedBury():
            return "dead"
        case Raised() | AskedRetry():
            if context.cancelled and not context.lost:
                return "cancelled"
            return "dead" if context.last and not is_dead else "retried"
        case AskedRelease():
            return "released"
        case AskedCancel():
            return "released" if context.lost else "cancelled"
        case never:
            assert_never(never)


def check_hook(function: Callable[..., object]) -> None:
    """UsageError unless it is a plain function: hooks run for sync and async tasks alike."""
    if not callable(function):
        raise UsageError(f"a hook must be a function, not {kind_of(function)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"hook {_name(function)} is async: hooks are plain functions; to await something"
            " around async tasks, write an async @app.middleware"
        )


def _tell(hooks: Iterable[EndHook], end: AttemptEnd) -> None:
    for hook in hooks:
        try:
            hook(end)
        except BaseException:  # noqa: BLE001 (whatever it raises, the attempt has ended)
            _log.exception("hook %s failed after job %s", _name(hook), end.context.id)


def _context_manager(middleware: Middleware) -> _Enter:
    wrap: Any = asynccontextmanager if middleware.is_async else contextmanager
    return cast("_Enter", wrap(middleware.function))


def _check_headers(hook: EnqueueHook, added: object) -> None:
    if not isinstance(added, Mapping):
        raise UsageError(
            f"enqueue hook {_name(hook)} returned {kind_of(added)}: return a dict of"
            " headers, or None"
        )
    for name, value in added.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(
                f"enqueue hook {_name(hook)} returned the header {name!r}: {value!r}: names and"
                " values are text"
            )


def _name(function: object) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
