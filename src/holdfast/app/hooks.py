"""The decorators of `Holdfast` that add hooks and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, overload

from holdfast.core.model import NewJob
from holdfast.errors import UsageError
from holdfast.worker.child.context import Context
from holdfast.worker.child.hooks import AttemptEnd, FunctionKind, Hooks, check_hook

OnEnqueue = TypeVar("OnEnqueue", bound=Callable[[NewJob], Mapping[str, str] | None])
OnStart = TypeVar("OnStart", bound=Callable[[Context], object])
OnEnd = TypeVar("OnEnd", bound=Callable[[AttemptEnd], object])
Around = TypeVar("Around", bound=Callable[[Context], Iterator[None] | AsyncIterator[None]])
AroundAsync = TypeVar("AroundAsync", bound=Callable[[Context], AsyncIterator[None]])


class HookMethods:
    """The hook methods of `Holdfast`. Each adds a function and returns it unchanged."""

    def __init__(self) -> None:
        self.hooks: Hooks = Hooks()

    def on_enqueue(self, function: OnEnqueue, /) -> OnEnqueue:
        """Call a function with each job before it is enqueued, in the caller's thread. It returns
        headers to add, or None, and refuses the job by raising."""
        check_hook(function)
        self.hooks.enqueue.append(function)
        return function

    def before_attempt(self, function: OnStart, /) -> OnStart:
        """Call a function with the Context before each call of a handler. If it raises, the attempt
        ends as if the handler had raised."""
        check_hook(function)
        self.hooks.before.append(function)
        return function

    def after_attempt(self, function: OnEnd, /) -> OnEnd:
        """Call a function after each attempt, however it ended."""
        check_hook(function)
        self.hooks.after.append(function)
        return function

    def on_failure(self, function: OnEnd, /) -> OnEnd:
        """Call a function after each failed attempt, also after the last one."""
        check_hook(function)
        self.hooks.failure.append(function)
        return function

    def on_death(self, function: OnEnd, /) -> OnEnd:
        """Call a function when a failed attempt was the job's last. It does not see jobs that die
        elsewhere: `on_dead_letter` sees every dead letter."""
        check_hook(function)
        self.hooks.death.append(function)
        return function

    @overload
    def middleware(self, function: Around, /) -> Around: ...

    @overload
    def middleware(self, /, *, only: Literal["async"]) -> Callable[[Around], Around]: ...

    @overload
    def middleware(
        self, /, *, only: Literal["sync"]
    ) -> Callable[[Callable[[Context], Iterator[None]]], Callable[[Context], Iterator[None]]]: ...

    def middleware(self, function: Any = None, /, *, only: FunctionKind | None = None) -> Any:
        """Run a generator function around each call of a handler: `@app.middleware`. The handler
        runs at its `yield`. With `only="async"` or `only="sync"` it leaves out the other tasks."""
        if only not in (None, "sync", "async"):
            raise UsageError(f'only {only!r} is not valid: use "sync" or "async"')

        def add(added: Any) -> Any:
            self.hooks.add_middleware(added, only)
            return added

        return add if function is None else add(function)


class HookedTransaction:
    """Enqueues inside a transaction of the caller, after the enqueue hooks."""

    def __init__(self, transaction: Any, hooks: Hooks) -> None:
        self._transaction = transaction
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        # The methods differ by engine and driver: some are awaitable, some block.
        return getattr(self._transaction, name)

    def enqueue(self, jobs: Iterable[NewJob]) -> Any:
        """See `Engine.enqueue`."""
        return self._transaction.enqueue(self._hooks.prepared(jobs))
