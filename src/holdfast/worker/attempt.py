"""One call of a handler: payloads → arguments → the function → one ending for each job.

It never raises what a handler raised, and holds no thread, slot or socket: whoever runs it says
where. `Attempt.run` is for functions that block, `Attempt.run_async` for coroutines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from holdfast.core import limits
from holdfast.core.checks import clean_text
from holdfast.core.model import Failure, FailureKind
from holdfast.core.text import counted
from holdfast.errors import UsageError
from holdfast.outcomes import Bury, Cancelled, Outcome, Release, Retry
from holdfast.worker.context import OUTPUT_MAX, Context, Standing
from holdfast.worker.failures import failure_of, plain_failure
from holdfast.worker.handlers import Handler
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    Given,
    Raised,
    Returned,
    Told,
)


class Attempt(Standing):
    """`number` is the call's; `hear` is told of a job's Context that has something to say."""

    __slots__ = ("_contexts", "_task", "handler", "jobs", "timeout_ms")

    def __init__(
        self,
        handler: Handler,
        jobs: tuple[Given, ...],
        *,
        timeout_ms: int | None = None,
        number: int = 0,
        hear: Callable[[Context], None] | None = None,
        output_max: int = OUTPUT_MAX,
    ) -> None:
        self.task = handler.name
        self.number = number
        self.hear = hear
        self.output_max = output_max
        self.cancelled = self.lost = False
        self.ends_at = None
        self.handler = handler
        self.jobs = jobs
        self.timeout_ms = timeout_ms
        self._contexts: tuple[Context, ...] = ()
        self._task: asyncio.Task[Any] | None = None

    def run(self) -> tuple[Ending, ...]:
        """Call a function that blocks; a timeout is somebody else's to keep."""
        prepared = self._prepare()
        if not isinstance(prepared, _Ready):
            return prepared
        try:
            value = self.handler.function(*prepared.positional, **prepared.named)
        except BaseException as error:  # noqa: BLE001 (also SystemExit is the job's failure alone)
            value = error
        try:
            return self._endings(prepared, value)
        finally:
            # An error knows this frame, which must not know it in turn: each would keep the other.
            del value

    async def run_async(self) -> tuple[Ending, ...]:
        """Await a coroutine, no longer than its timeout. Only a cancellation that `cancel` did
        not ask for comes through."""
        prepared = self._prepare()
        if not isinstance(prepared, _Ready):
            return prepared
        self._task = asyncio.current_task()
        limit = None
        try:
            if self.timeout_ms is None:
                value = await self.handler.function(*prepared.positional, **prepared.named)
            else:
                async with asyncio.timeout(self.timeout_ms / 1000) as limit:
                    value = await self.handler.function(*prepared.positional, **prepared.named)
        except asyncio.CancelledError as error:
            if self.cancelled:
                value = Cancelled("it was cancelled while it ran")
            elif self._task is not None and self._task.cancelling():
                raise
            else:
                value = error
        except BaseException as error:  # noqa: BLE001 (also SystemExit is the job's failure alone)
            value = error
        finally:
            self._task = None
        try:
            # Whatever a handler makes of being interrupted, its time was over.
            if limit is not None and limit.expired() and _is_failure(value):
                return self._timed_out(value)
            return self._endings(prepared, value)
        finally:
            del value

    def cancel(self, *, lost: bool = False) -> None:
        """From the loop's thread. A coroutine is interrupted; a function is only told."""
        self.cancelled = True
        self.lost = self.lost or lost
        if self._task is not None:
            self._task.cancel()

    def broke(self, error: BaseException) -> tuple[Ending, ...]:
        """The endings when not the handler but what ran it failed."""
        return self._all(Raised(failure_of(error)))

    def told(self) -> list[Told]:
        """What its jobs left behind and did not say yet; to be passed on before the endings."""
        said = (context.told(ending=True) for context in self._contexts)
        return [told for told in said if told is not None]

    def _prepare(self) -> _Ready | tuple[Ending, ...]:
        if self.cancelled:
            return self._all(AskedCancel("it was cancelled before it started"))
        if self.timeout_ms is not None:
            self.ends_at = time.monotonic() + self.timeout_ms / 1000
        handler = self.handler
        if handler.context is not None:
            self._contexts = tuple(Context(job, self, index) for index, job in enumerate(self.jobs))
        if handler.batch > 1:
            return self._prepare_batch()
        job = self.jobs[0]
        try:
            positional, named = handler.arguments(job.payload, job.content_type)
        except Exception as error:  # noqa: BLE001 (the payload is hostile)
            return (_refused(handler, error),)
        if handler.context is not None:
            named = {**named, handler.context: self._contexts[0]}
        return _Ready(positional, named)

    def _prepare_batch(self) -> _Ready | tuple[Ending, ...]:
        handler = self.handler
        values: list[Any] = []
        refused: dict[int, Ending] = {}
        for index, job in enumerate(self.jobs):
            try:
                (value,), _ = handler.arguments(job.payload, job.content_type)
                values.append(value)
            except Exception as error:  # noqa: BLE001 (the payload is hostile)
                refused[index] = _refused(handler, error)
        if not values:
            return tuple(refused.values())
        named: dict[str, Any] = {}
        if handler.context is not None:
            kept = [each for index, each in enumerate(self._contexts) if index not in refused]
            named[handler.context] = kept
        return _Ready((values,), named, refused)

    def _endings(self, prepared: _Ready, value: Any) -> tuple[Ending, ...]:
        if self.handler.batch == 1:
            return (self._ending(0, value),)
        refused = prepared.refused
        indexes = [index for index in range(len(self.jobs)) if index not in refused]
        values = _each(self.handler, value, len(indexes))
        endings = dict(refused)
        for index, one in zip(indexes, values, strict=True):
            endings[index] = self._ending(index, one)
        return tuple(endings[index] for index in range(len(self.jobs)))

    def _ending(self, index: int, value: Any) -> Ending:
        output, then = self._contexts[index].remains() if self._contexts else (None, ())
        if isinstance(value, BaseException):
            return _raised(self.handler, value, output)
        try:
            result = self.handler.result(value)
        except Exception as error:  # noqa: BLE001 (the value is whatever the handler made)
            return Raised(_unstorable(self.handler, str(error)), fatal=True, output=output)
        if result is not None and len(result) > limits.RESULT_MAX:
            why = f"it is {len(result)} bytes and the bound is {limits.RESULT_MAX}"
            return Raised(_unstorable(self.handler, why), fatal=True, output=output)
        return Returned(result, then, output)

    def _timed_out(self, error: BaseException) -> tuple[Ending, ...]:
        assert self.timeout_ms is not None
        failure = failure_of(error.__cause__ or error)
        failure = Failure(
            kind=FailureKind.TIMEOUT,
            type="AttemptTimeout",
            message=f"it ran longer than its timeout of {self.timeout_ms / 1000:g} s",
            trace=failure.trace,
        )
        return tuple(
            Raised(failure, output=self._contexts[index].remains()[0] if self._contexts else None)
            for index in range(len(self.jobs))
        )

    def _all(self, ending: Ending) -> tuple[Ending, ...]:
        return (ending,) * len(self.jobs)


class _Ready:
    """What the function is called with, and the endings of jobs it will not be given."""

    __slots__ = ("named", "positional", "refused")

    def __init__(
        self,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        refused: dict[int, Ending] | None = None,
    ) -> None:
        self.positional = positional
        self.named = named
        self.refused = refused or {}


def _each(handler: Handler, value: Any, count: int) -> Sequence[Any]:
    """What a batch task returned, taken apart: one for each job."""
    if value is None or isinstance(value, BaseException):
        return [value] * count
    if isinstance(value, list | tuple) and len(value) == count:
        return value
    many = isinstance(value, list | tuple)
    what = counted(len(value), "result") if many else type(value).__name__
    return [
        Bury(
            f"batch task {handler.name} returned {what} for {counted(count, 'job')}:"
            " return None, or a list with one for each"
        )
    ] * count


def _is_failure(value: Any) -> TypeGuard[BaseException]:
    return isinstance(value, BaseException) and not isinstance(value, Outcome)


def _refused(handler: Handler, error: Exception) -> Ending:
    if isinstance(error, UsageError):
        text = f"the payload does not fit task {handler.name}: {error}"
        return Raised(plain_failure(type(error).__name__, text), fatal=True)
    return Raised(failure_of(error), fatal=True)


def _unstorable(handler: Handler, why: str) -> Failure:
    return plain_failure("ResultError", f"the result of task {handler.name} cannot be kept: {why}")


def _raised(handler: Handler, error: BaseException, output: bytes | None) -> Ending:
    if _is_failure(error):
        return Raised(failure_of(error), handler.gives_up(error), output)
    match error:
        case Retry(after_ms=after_ms):
            return AskedRetry(failure_of(error), after_ms, output)
        case Bury():
            return AskedBury(failure_of(error), output)
        case Release(text=text, after_ms=after_ms):
            return AskedRelease(clean_text(str(text)), after_ms, output)
        case Cancelled(text=text):
            return AskedCancel(clean_text(str(text)), output)
        case _:
            return Raised(failure_of(error), handler.gives_up(error), output)
