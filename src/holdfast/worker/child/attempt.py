"""One call of a handler: payloads → arguments → the function → one ending for each job.

It never raises what a handler raised, and holds no thread, slot or socket. `Attempt.run` is for
functions that block, `Attempt.run_async` for coroutines. Exceptions become failures; their texts
are hostile, so they are bounded, and `str` may raise.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

from holdfast import tracing
from holdfast.core import bounds
from holdfast.core.checks import clean_failure, clean_text
from holdfast.core.model import Failure, FailureKind, NewJob
from holdfast.core.text import counted
from holdfast.errors import UsageError
from holdfast.worker.child.context import OUTPUT_MAX, CallState, Context
from holdfast.worker.child.handlers import Arguments, Handler
from holdfast.worker.child.hooks import HookedCall
from holdfast.worker.outcomes import (
    BuryRequest,
    Cancelled,
    HandlerOutcome,
    ReleaseRequest,
    RetryRequest,
)
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    CallJob,
    Ending,
    NoteUpdate,
    Raised,
    Returned,
)

if TYPE_CHECKING:
    from holdfast.tracing.spans import RunSpan

_RETURNED_NOTHING = (Returned(),)
_NONE_REFUSED: Mapping[int, Ending] = {}
_FRAMES_MAX = 64
_MAKING = Lock()
_OWN = ("holdfast.worker.", "importlib.")


class Attempt(CallState):
    """`number` is the call's; `noted` is called with the Context of a job that has a new note.
    `task_handle` is the asyncio task that runs it; without one, the current task is looked up,
    which takes longer."""

    __slots__ = (
        "_decided",
        "_hooked",
        "_interruptible",
        "_refused",
        "contexts",
        "handler",
        "jobs",
        "task_handle",
        "timer",
    )

    def __init__(
        self,
        handler: Handler,
        jobs: tuple[CallJob, ...],
        *,
        timeout_ms: int | None = None,
        number: int = 0,
        noted: Callable[[Context], None] | None = None,
        output_max: int = OUTPUT_MAX,
    ) -> None:
        self.task: str = handler.name
        self.number = number
        self.noted = noted
        self.output_max = output_max
        self.cancelled: bool = False
        self.lost: bool = False
        self.ends_at = None
        self.handler: Handler = handler
        self.jobs: tuple[CallJob, ...] = jobs
        self.timeout_ms = timeout_ms
        self.task_handle: asyncio.Task[Any] | None = None
        self.timer: tuple[asyncio.AbstractEventLoop, asyncio.Timeout] | None = None
        """The timeout of a coroutine that runs."""
        self.contexts: tuple[Context, ...] = ()
        """One for each job, if the handler takes them or printed something."""
        self._decided: tuple[Ending, ...] = ()
        self._hooked: HookedCall | None = None
        self._interruptible = False
        self._refused = _NONE_REFUSED

    def run(self) -> tuple[Ending, ...]:
        """Call a blocking function. The supervisor enforces its timeout."""
        arguments = self._prepare()
        if arguments is None:
            return self._unstarted()
        positional, named = arguments
        function = self.handler.function if self._hooked is None else self._hooked.call
        try:
            value = function(*positional, **named)
        except BaseException as error:  # noqa: BLE001 (also SystemExit is the job's failure alone)
            value = error
        try:
            return self._endings(value)
        finally:
            # An error refers to this frame; a reference back would keep both alive.
            del value

    async def run_async(self) -> tuple[Ending, ...]:
        """Await a coroutine, at most until its timeout. Raises CancelledError only if `cancel`
        did not cause it."""
        arguments = self._prepare()
        if arguments is None:
            return self._unstarted()
        positional, named = arguments
        function = self.handler.function if self._hooked is None else self._hooked.call_async
        if self.task_handle is None:
            self.task_handle = asyncio.current_task()
        self._interruptible = True
        limit = None
        try:
            if self.timeout_ms is None:
                value = await function(*positional, **named)
            else:
                async with asyncio.timeout(self.timeout_ms / 1000) as limit:
                    self.timer = asyncio.get_running_loop(), limit
                    value = await function(*positional, **named)
        except asyncio.CancelledError as error:
            if self.cancelled:
                value = Cancelled("it was cancelled while it ran")
            elif self.task_handle is not None and self.task_handle.cancelling():
                raise
            else:
                value = error
        except BaseException as error:  # noqa: BLE001 (also SystemExit is the job's failure alone)
            value = error
        finally:
            self._interruptible = False
            self.timer = None
        try:
            # The timeout is the outcome, however the handler reacts to the interruption.
            if limit is not None and limit.expired() and _is_failure(value):
                return self._timed_out(value)
            return self._endings(value)
        finally:
            del value

    def add_time(self, ms: int) -> int | None:
        """See `CallState.add_time`; from any thread."""
        extended_ms = super().add_time(ms)
        timer = self.timer
        if extended_ms is not None and timer is not None:
            with suppress(RuntimeError):
                # The event loop may be closed: then nothing waits for the timeout any more.
                timer[0].call_soon_threadsafe(self._reschedule)
        return extended_ms

    def _reschedule(self) -> None:
        if self.timer is not None and self.ends_at is not None and not self.timer[1].expired():
            loop, limit = self.timer
            limit.reschedule(loop.time() + self.ends_at - time.monotonic())

    def cancel(self, *, lost: bool = False) -> None:
        """Called in the loop's thread. A coroutine is interrupted; a function must check its
        Context.
        """
        self.cancelled = True
        self.lost = self.lost or lost
        if self._interruptible and self.task_handle is not None:
            self.task_handle.cancel()

    def failed(self, error: BaseException) -> tuple[Ending, ...]:
        """The endings after a failure of the code around the handler."""
        return (Raised(failure_of(error)),) * len(self.jobs)

    def take_notes(self) -> list[NoteUpdate]:
        """Notes of its jobs that were not sent yet; the caller sends them before the endings."""
        notes = (context.take_note(ending=True) for context in self.contexts)
        return [note for note in notes if note is not None]

    def write_output(self, data: bytes) -> None:
        """Add text that the handler printed, from any thread. The jobs of a batch share it."""
        with _MAKING:
            if not self.contexts:
                self.contexts = self._make_contexts()
        for context in self.contexts:
            context.write_output(data)

    def prepared(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        prepare = self.handler.prepare
        return jobs if prepare is None else prepare(jobs)

    def _make_contexts(self) -> tuple[Context, ...]:
        return tuple(Context(job, self, index) for index, job in enumerate(self.jobs))

    def _prepare(self) -> Arguments | None:
        """Arguments of the function; None if the endings are already decided and it must not be
        called.
        """
        if self.cancelled:
            unstarted = AskedCancel("it was cancelled before it started")
            self._decided = (unstarted,) * len(self.jobs)
            return None
        if self.timeout_ms is not None:
            self.ends_at = time.monotonic() + self.timeout_ms / 1000
        handler = self.handler
        if handler.context is not None or handler.hooks is not None:
            self.contexts = self._make_contexts()
            if handler.hooks is not None:
                self._hooked = HookedCall(
                    handler.hooks, handler.function, self.contexts, is_dead=handler.dead
                )
        if handler.batch > 1:
            return self._prepare_batch()
        job = self.jobs[0]
        try:
            arguments = handler.arguments(job.payload, job.content_type)
        except Exception as error:  # noqa: BLE001 (the payload is hostile)
            self._decided = (_payload_refused(handler, error),)
            return None
        if handler.context is not None:
            positional, named = arguments
            return positional, {**named, handler.context: self.contexts[0]}
        return arguments

    def _prepare_batch(self) -> Arguments | None:
        handler = self.handler
        values: list[Any] = []
        self._refused = refused = dict[int, Ending]()
        for index, job in enumerate(self.jobs):
            try:
                (value,), _ = handler.arguments(job.payload, job.content_type)
                values.append(value)
            except Exception as error:  # noqa: BLE001 (the payload is hostile)
                refused[index] = _payload_refused(handler, error)
        if not values:
            self._decided = tuple(refused.values())
            return None
        named: dict[str, Any] = {}
        kept = [each for index, each in enumerate(self.contexts) if index not in refused]
        if handler.context is not None:
            named[handler.context] = kept
        if self._hooked is not None:
            self._hooked.started = kept
        return (values,), named

    def _unstarted(self) -> tuple[Ending, ...]:
        """The endings of jobs whose handler is not called; a refused payload is a failure."""
        return self._decided if self._hooked is None else self._told(self._decided, None)

    def _told(self, endings: tuple[Ending, ...], value: Any) -> tuple[Ending, ...]:
        """The endings, once the hooks know of them."""
        if self._hooked is not None:
            self._hooked.ended(endings, self._errors(value))
        return endings

    def _errors(self, value: Any) -> dict[int, BaseException]:
        """The exceptions of the jobs, by their place in the call."""
        if self.handler.batch == 1:
            return {0: value} if isinstance(value, BaseException) else {}
        indexes = [index for index in range(len(self.jobs)) if index not in self._refused]
        values = zip(indexes, _split(self.handler, value, len(indexes)), strict=True)
        return {index: each for index, each in values if isinstance(each, BaseException)}

    def _endings(self, value: Any) -> tuple[Ending, ...]:
        """The endings of all jobs, from the value that the function returned or raised."""
        if self.handler.batch == 1:
            if value is None and not self.contexts:
                return _RETURNED_NOTHING
            return self._told((self._ending(0, value),), value)
        refused = self._refused
        indexes = [index for index in range(len(self.jobs)) if index not in refused]
        values = _split(self.handler, value, len(indexes))
        endings = dict(refused)
        for index, one in zip(indexes, values, strict=True):
            endings[index] = self._ending(index, one)
        return self._told(tuple(endings[index] for index in range(len(self.jobs))), value)

    def _ending(self, index: int, value: Any) -> Ending:
        output, then = self.contexts[index].take_rest() if self.contexts else (None, ())
        if isinstance(value, BaseException):
            return _raised(self.handler, value, output)
        try:
            result = self.handler.result(value)
        except Exception as error:  # noqa: BLE001 (the value is whatever the handler made)
            return Raised(_unstorable(self.handler, str(error)), fatal=True, output=output)
        if result is not None and len(result) > bounds.RESULT_MAX:
            why = f"it is {len(result)} bytes; the maximum is {bounds.RESULT_MAX}"
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
        endings = tuple(
            Raised(failure, output=self.contexts[index].take_rest()[0] if self.contexts else None)
            for index in range(len(self.jobs))
        )
        return self._told(endings, error)


def attempt_class() -> type[Attempt]:
    """The class of attempts: with spans if tracing is on."""
    return TracedAttempt if tracing.is_on() else Attempt


class TracedAttempt(Attempt):
    """Runs inside a span. Jobs that the handler enqueues, and follow-up jobs, are part of its
    trace."""

    __slots__ = ()

    def run(self) -> tuple[Ending, ...]:
        from holdfast.tracing.spans import run_span

        with run_span(self.task, self.jobs) as run:
            return record_endings(run, super().run())

    async def run_async(self) -> tuple[Ending, ...]:
        from holdfast.tracing.spans import run_span

        with run_span(self.task, self.jobs) as run:
            return record_endings(run, await super().run_async())


def record_endings(run: RunSpan, endings: tuple[Ending, ...]) -> tuple[Ending, ...]:
    """Mark the span as failed if a job did; returns the endings, with its trace in follow-up
    jobs."""
    for ending in endings:
        if isinstance(ending, Raised | AskedRetry | AskedBury):
            run.failed(ending.failure.type or ending.failure.kind)
            break
    return tuple(_with_trace(ending) for ending in endings)


def _with_trace(ending: Ending) -> Ending:
    from holdfast.tracing.spans import with_current_trace

    if not isinstance(ending, Returned) or not ending.then:
        return ending
    return Returned(ending.result, tuple(with_current_trace(ending.then)), ending.output)


def _split(handler: Handler, value: Any, count: int) -> Sequence[Any]:
    """The value of a batch task, one for each job."""
    if value is None or isinstance(value, BaseException):
        return [value] * count
    if isinstance(value, list | tuple) and len(value) == count:
        return value
    many = isinstance(value, list | tuple)
    what = counted(len(value), "result") if many else type(value).__name__
    return [
        BuryRequest(
            f"batch task {handler.name} returned {what} for {counted(count, 'job')}:"
            " return None, or a list with one value for each"
        )
    ] * count


def _is_failure(value: Any) -> TypeGuard[BaseException]:
    return isinstance(value, BaseException) and not isinstance(value, HandlerOutcome)


def _payload_refused(handler: Handler, error: Exception) -> Ending:
    if isinstance(error, UsageError):
        text = f"the payload does not fit task {handler.name}: {error}"
        return Raised(plain_failure(type(error).__name__, text), fatal=True)
    return Raised(failure_of(error), fatal=True)


def _unstorable(handler: Handler, why: str) -> Failure:
    return plain_failure(
        "ResultError", f"the result of task {handler.name} cannot be stored: {why}"
    )


def _raised(handler: Handler, error: BaseException, output: bytes | None) -> Ending:
    match error:
        case RetryRequest(after_ms=after_ms):
            return AskedRetry(failure_of(error), after_ms, output)
        case BuryRequest():
            return AskedBury(failure_of(error), output)
        case ReleaseRequest(text=text, after_ms=after_ms):
            return AskedRelease(clean_text(str(text)), after_ms, output)
        case Cancelled(text=text):
            return AskedCancel(clean_text(str(text)), output)
        case _:
            return Raised(failure_of(error), handler.gives_up(error), output)


def failure_of(error: BaseException) -> Failure:
    """Type, message and traceback of an exception, without the frames of the worker itself."""
    trace = "" if isinstance(error, HandlerOutcome) and error.__cause__ is None else _trace(error)
    return clean_failure(Failure(type=_name(type(error)), message=_text(error), trace=trace))


def plain_failure(type_name: str, text: str) -> Failure:
    """A failure that the worker found itself, where no traceback would help."""
    return clean_failure(Failure(type=type_name, message=text))


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    plain = module in ("builtins", "__main__") or module.startswith("holdfast.")
    return kind.__qualname__ if plain else f"{module}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 (whatever its __str__ does)
        return f"(its text cannot be shown: {type(another).__name__})"


def _trace(error: BaseException) -> str:
    try:
        trace = traceback.TracebackException(
            type(error), error, _without_own(error.__traceback__), limit=-_FRAMES_MAX
        )
        return "".join(trace.format())
    except Exception as another:  # noqa: BLE001 (whatever its __repr__ or __notes__ do)
        return f"(its trace cannot be shown: {type(another).__name__})"


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Skip the outermost frames that are the worker's own, unless there are no others."""
    at = trace
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith(_OWN):
        at = at.tb_next
    return at or trace
