"""Event loops: the fastest there is, and one in a thread of its own for callers that block, which
does not survive a fork."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.errors import EngineClosed, EngineUnavailable, HoldfastError, UsageError

Answer = TypeVar("Answer")

# Closing an engine may need a thread pool, and pools are shut before `atexit` comes: the hook that
# shuts them is the place, and the last to be added is the first to run. So theirs, which importing
# them adds, must come first.
_at_exit: Callable[[Callable[[], None]], object] = getattr(
    threading, "_register_atexit", atexit.register
)


def loop_run() -> Callable[[Coroutine[Any, Any, Answer]], Answer]:
    """`asyncio.run`, or that of the faster loop where it is installed. It starts no children."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


class LoopThread:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        # Held while a call is handed over, so that none comes after the stop and is never answered.
        # A signal's handler may come in between, in the same thread, and close.
        self._guard = threading.RLock()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._kept: list[asyncio.Task[None]] = []
        self._trouble: Exception | None = None

    def start(self, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`at_end` runs last in the loop, whatever ends it."""
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
                trouble, self._trouble = self._trouble, None
                raise EngineUnavailable(f"the loop could not start: {trouble}") from trouble
            _at_exit(functools.partial(_stop_at_exit, weakref.ref(self)))

    @property
    def here(self) -> bool:
        """Whether the caller runs on this loop."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for it; an interrupt, such as Ctrl-C, cancels it."""
        call = _Call(coroutine)
        try:
            return self._hand_over(call).result()
        except concurrent.futures.CancelledError:
            raise EngineClosed("this Holdfast was closed before the call was answered") from None
        except BaseException:
            call.give_up()
            raise

    def begin(self, coroutine: Coroutine[Any, Any, Answer]) -> concurrent.futures.Future[Answer]:
        """Without waiting for it; cancelling the future cancels it."""
        return self._hand_over(_Call(coroutine))

    def keep(self, service: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """Run it in the background until the end."""

        async def begin() -> None:
            assert self._stop is not None
            self._kept.append(asyncio.create_task(service(self._stop)))

        self.run(begin())

    def stop(self) -> None:
        """Raises what went wrong at the end."""
        if os.getpid() != self._process:
            return
        with self._guard:
            thread, loop, stop = self._thread, self._loop, self._stop
            if thread is None or loop is None or stop is None:
                return
            if thread is threading.current_thread():
                raise UsageError("this is Holdfast's own loop: close it from another thread")
            self._thread = self._loop = None
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        thread.join()
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _main(
        self, ready: threading.Event, at_end: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        async def live() -> None:
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            ready.set()
            await self._stop.wait()
            await asyncio.gather(*self._kept, return_exceptions=True)
            self._kept.clear()
            await at_end()

        try:
            asyncio.run(live())
        except Exception as error:  # noqa: BLE001 (raised by whoever starts or stops it)
            self._trouble = error
        finally:
            ready.set()

    def _hand_over(self, call: _Call[Answer]) -> concurrent.futures.Future[Answer]:
        try:
            # First, because a thread that is not in a forked child may hold the guard there.
            self._refuse_fork()
            return self._hand_over_guarded(call)
        except HoldfastError:
            call.coroutine.close()
            raise

    def _hand_over_guarded(self, call: _Call[Answer]) -> concurrent.futures.Future[Answer]:
        with self._guard:
            call.loop = loop = self._usable_loop()
            running = call.run()
            try:
                return asyncio.run_coroutine_threadsafe(running, loop)
            except RuntimeError:
                running.close()
                raise EngineClosed("this Holdfast was closed in the middle of the call") from None

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if self._thread is None or self._loop is None:
            raise EngineClosed("this Holdfast is not open: call open() or use it in a with block")
        if self.here:
            raise UsageError("this is Holdfast's own loop: await the methods of Holdfast instead")
        return self._loop

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise EngineClosed(
                "this Holdfast belongs to the process that this one was forked from: make a new one"
            )


class _Call(Generic[Answer]):
    """A coroutine that can be given up at any instant, even before it is known to have begun."""

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
        """From the caller's thread."""
        self._left = True
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _stop_at_exit(kept: weakref.ref[LoopThread]) -> None:
    loop_thread = kept()
    if loop_thread is not None:
        loop_thread.stop()
