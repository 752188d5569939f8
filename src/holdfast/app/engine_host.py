"""EngineHost: the event loop on which an application's engine is open, and calls to it from
anywhere.

It is the loop on which the program opened the engine, or else one in a background thread
(`LoopThread`), started on first use and stopped at exit. There is never more than one.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.model import NewJob, Receipt
from holdfast.engines.base import Engine
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.extras import IdMinting, extra
from holdfast.errors import (
    EngineClosed,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    UsageError,
)
from holdfast.process import wall_ms

Answer = TypeVar("Answer")
Make = Callable[[], Coroutine[Any, Any, Answer]]


class EngineHost:
    """Runs calls on the loop of one engine in one process; a forked child needs another host.
    `store` is the engine without its wrappers."""

    def __init__(self, store: Engine, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self.wall_ms: Callable[[], int] = wall_ms
        """The wall clock that schedules go by."""
        self._minting = extra(engine, IdMinting)
        self.mint: Callable[[], str] | None = None if self._minting is None else self._minting.mint
        """The engine's own function for new job ids, if it has one."""
        # A job of an engine with ids of its own may have to go to another partition.
        shared = engine if isinstance(engine, Coalesced) and self._minting is None else None
        self._coalesced: Coalesced | None = shared
        self._bound: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._guard = threading.Lock()
        self._opening = asyncio.Lock()
        self._opened = False
        self._process = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the parent process, before a fork."""
        return os.getpid() != self._process

    @property
    def used(self) -> bool:
        """Whether the engine was opened here."""
        return self._bound is not None or self._thread is not None

    async def open(self) -> None:
        """Open the engine on the running loop, to which it belongs from now on. Idempotent."""
        self._check_free()
        await self._leave_thread()
        await self.engine.open()
        self._bound = asyncio.get_running_loop()

    async def close(self) -> None:
        """Close the engine, wherever it was opened."""
        self._check_free()
        await self._leave_thread()
        self._bound = None
        await self.engine.close()

    def run(self, make: Make[Answer], instead: str) -> Answer:
        """Run a coroutine and block until it ends. `instead` names the async form for the error
        raised on the engine's own loop, where blocking would deadlock."""
        if self._bound is None:
            return self._started().run(self._first_opened(make))
        if self._bound is _running():
            raise UsageError(f"this call would block its own event loop: await {instead} instead")
        call = self._submit(make, self._bound)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise _closed() from None
        except BaseException:
            call.cancel()
            raise

    def enqueue(
        self, jobs: Sequence[NewJob], instead: str, thread: LoopThread | None = None
    ) -> list[Receipt]:
        """Enqueue one batch, with ids made for this call, and block until it is durable. Small
        batches of several threads share commits. `thread` runs the loop on which the engine is
        open, if it is not this host's.
        """
        coalesced, loop = self._coalesced, self._bound
        thread = thread or (self._thread if loop is None and self._opened else None)
        if coalesced is not None and coalesced.shares(jobs):
            if thread is not None:
                return coalesced.enqueue_blocking(jobs, thread.use_loop)
            if loop is not None and loop.is_running() and loop is not _running():
                return coalesced.enqueue_blocking(jobs, lambda use: use(loop))
        if thread is not None:
            return thread.run(self.enqueue_made(jobs))
        return self.run(lambda: self.enqueue_made(jobs), instead)

    async def arun(self, make: Make[Answer]) -> Answer:
        """Await a coroutine on the engine's loop, from any loop."""
        if self._bound is _running() or (self._thread is not None and self._thread.is_current):
            return await make()
        if self._bound is None:
            call = self._started().begin(self._first_opened(make))
        else:
            call = self._submit(make, self._bound)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _closed() from None

    async def enqueue_made(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Enqueue jobs whose ids were made for this call. One whose partition is shut out gets
        another id, once, and so another partition."""
        try:
            receipts = await self.engine.enqueue(jobs)
        except EngineUnavailable:
            moved = self._elsewhere(enumerate(jobs))
            if not moved:
                raise
            return await self.engine.enqueue([moved.get(at, job) for at, job in enumerate(jobs)])
        out = [at for at, each in enumerate(receipts) if each.code == EngineUnavailable.code]
        moved = self._elsewhere((at, jobs[at]) for at in out)
        if not moved:
            return receipts
        answers = dict(enumerate(receipts))
        try:
            answers |= zip(moved, await self.engine.enqueue(list(moved.values())), strict=True)
        except EngineUnavailable:
            return receipts
        except OutcomeUnknown as error:
            known = {at: answers[at] for at in answers if at not in moved}
            raise OutcomeUnknown(str(error), known=known) from error
        return list(answers.values())

    def _elsewhere(self, jobs: Iterable[tuple[int, NewJob]]) -> dict[int, NewJob]:
        """The jobs that may be stored in another partition, with new ids. Keys, groups and parents
        have a partition of their own."""
        if self._minting is None:
            return {}
        moved = {}
        for at, job in jobs:
            is_bound = job.key is not None or job.group is not None or job.after
            id_ = None if is_bound else self._minting.mint_instead(job.id)
            if id_ is not None:
                moved[at] = replace(job, id=id_)
        return moved

    async def pause(self, seconds: float) -> None:
        """Sleep between two polls of a job. A test mode runs due jobs instead."""
        await asyncio.sleep(seconds)

    def enqueued(self, receipts: list[Receipt]) -> None:
        """Called after an enqueue; a test mode runs the jobs at once."""

    async def aenqueued(self, receipts: list[Receipt]) -> None:
        """The async form of `enqueued`."""

    def _check_free(self) -> None:
        if self._bound not in (None, _running()) and self._bound.is_running():
            raise UsageError("this Holdfast is open on another event loop: close it there")

    def _started(self) -> LoopThread:
        with self._guard:
            if self._thread is None:
                self._thread = LoopThread()
                self._opening = asyncio.Lock()
            self._thread.start(self._close_thread)
            return self._thread

    async def _first_opened(self, make: Make[Answer]) -> Answer:
        """Open the engine before the first call; if that fails, the next call tries again."""
        async with self._opening:
            if not self._opened:
                await self.engine.open()
                self._opened = True
        return await make()

    async def _close_thread(self) -> None:
        self._opened = False
        await self.engine.close()

    async def _leave_thread(self) -> None:
        """Stop the background thread after its pending calls."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.stop)

    @staticmethod
    def _submit(
        make: Make[Answer], loop: asyncio.AbstractEventLoop
    ) -> concurrent.futures.Future[Answer]:
        if not loop.is_running():
            raise UsageError(
                "the event loop on which this Holdfast was opened has stopped: close it before the "
                "loop ends, best with `async with`"
            )
        coroutine = make()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            coroutine.close()
            raise _closed() from None


@contextlib.contextmanager
def closing_unstarted(coroutine: Coroutine[Any, Any, Answer]) -> Iterator[Make[Answer]]:
    """Close the coroutine if it was never started, to avoid a warning."""
    begun = False

    def make() -> Coroutine[Any, Any, Answer]:
        nonlocal begun
        begun = True
        return coroutine

    try:
        yield make
    finally:
        if not begun:
            coroutine.close()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _closed() -> EngineClosed:
    return EngineClosed("this Holdfast was closed before the call was answered")


# Closing an engine may need a thread pool, and pools are shut down before `atexit` handlers run. So
# this uses the hook that shuts them down. The last hook added runs first; importing
# `concurrent.futures.thread` above has added that of the pools.
_at_exit: Callable[[Callable[[], None]], object] = getattr(
    threading, "_register_atexit", atexit.register
)


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        # Held while a call is submitted, so that none is submitted after the stop and never
        # answered. Reentrant: a signal handler in the same thread may close meanwhile.
        self._guard = threading.RLock()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._services: list[asyncio.Task[None]] = []
        self._error: Exception | None = None

    def start(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the thread. `at_end` runs last in the loop, however it stops."""
        self._refuse_fork()
        with self._guard:
            if self._thread is not None:
                return
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._main, args=(ready, at_end), name="holdfast-loop", daemon=True
            )
            self._thread.start()
            ready.wait()
            if self._loop is None:
                self._thread = None
                error, self._error = self._error, None
                raise EngineUnavailable(f"the loop could not start: {error}") from error
            _at_exit(functools.partial(_stop_at_exit, weakref.ref(self)))

    @property
    def is_current(self) -> bool:
        """Whether the caller is running on this loop."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine and wait for it; an interrupt, such as Ctrl-C, cancels it."""
        call = _LoopCall(coroutine)
        try:
            return self._submit(call).result()
        except concurrent.futures.CancelledError:
            raise EngineClosed("this Holdfast was closed before the call was answered") from None
        except BaseException:
            call.give_up()
            raise

    def use_loop(self, use: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Call `use` with the loop, in this thread; the loop does not stop meanwhile."""
        # Checked first, as in `_submit`.
        self._refuse_fork()
        with self._guard:
            use(self._usable_loop())

    def begin(self, coroutine: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        """Start a coroutine without waiting; cancelling the future cancels it."""
        return self._submit(_LoopCall(coroutine))

    def run_service(self, service: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """Run a service in the background until the loop stops."""

        async def begin() -> None:
            assert self._stop is not None
            self._services.append(asyncio.create_task(service(self._stop)))

        self.run(begin())

    def stop(self) -> None:
        """Stop the loop and wait for it; raises an error from `at_end`."""
        if os.getpid() != self._process:
            return
        with self._guard:
            thread, loop, stop = self._thread, self._loop, self._stop
            if thread is None or loop is None or stop is None:
                return
            if thread is threading.current_thread():
                raise UsageError(
                    "close() was called on Holdfast's own loop: call it from another thread"
                )
            self._thread = self._loop = None
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _main(
        self, ready: threading.Event, at_end: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async def run_until_stopped() -> None:
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            ready.set()
            await self._stop.wait()
            await asyncio.gather(*self._services, return_exceptions=True)
            self._services.clear()
            await at_end()

        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(run_until_stopped())
        except Exception as error:  # noqa: BLE001 (raised again by `start` or `stop`)
            self._error = error
        finally:
            ready.set()

    def _submit(self, call: _LoopCall[Answer]) -> concurrent.futures.Future[Answer]:
        try:
            # Checked first: in a forked child the guard may be held by a thread that does not exist
            # there.
            self._refuse_fork()
            return self._submit_guarded(call)
        except HoldfastError:
            call.coroutine.close()
            raise

    def _submit_guarded(self, call: _LoopCall[Answer]) -> concurrent.futures.Future[Answer]:
        with self._guard:
            call.loop = loop = self._usable_loop()
            running = call.run()
            try:
                return asyncio.run_coroutine_threadsafe(running, loop)
            except RuntimeError:
                running.close()
                raise EngineClosed("this Holdfast was closed during the call") from None

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if self._thread is None or self._loop is None:
            raise EngineClosed("this Holdfast is not open: call open() or use it in a with block")
        if self.is_current:
            raise UsageError(
                "a blocking call on Holdfast's own loop would deadlock: await the methods instead"
            )
        return self._loop

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise EngineClosed(
                "this Holdfast belongs to the process that this one was forked from: create a"
                " new one"
            )


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that needs no new thread to stop: Python 3.12 starts none while the interpreter
    exits."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="holdfast")
        self.set_default_executor(self._pool)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for the calls in other threads. Nothing else runs on this loop by then."""
        self._pool.shutdown()


class _LoopCall(Generic[Answer]):
    """A coroutine that can be abandoned at any instant, even before it has started."""

    def __init__(self, coroutine: Coroutine[Any, Any, Answer]) -> None:
        self.coroutine = coroutine
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._left = False

    async def run(self) -> Answer:
        self._task = asyncio.current_task()
        if self._left:
            self.coroutine.close()
            raise asyncio.CancelledError
        return await self.coroutine

    def give_up(self) -> None:
        """Cancel the call, from the caller's thread."""
        self._left = True
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _stop_at_exit(reference: weakref.ref[LoopThread]) -> None:
    loop_thread = reference()
    if loop_thread is not None:
        loop_thread.stop()
