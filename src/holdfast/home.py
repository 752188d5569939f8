"""Which event loop an application's engine is open on, and how to get there from anywhere.

It is the loop on which the program opened it; else one in a thread of its own, which is started
when first needed and closed at exit. There is never more than one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.core.model import Receipt
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, UsageError
from holdfast.loops import LoopThread

Answer = TypeVar("Answer")
Make = Callable[[], Coroutine[Any, Any, Answer]]


class Home:
    """Of one engine in one process: after a fork, the child needs another. `store` is the engine
    without what is wrapped around it."""

    def __init__(self, store: Engine, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self._bound: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._guard = threading.Lock()
        self._opening = asyncio.Lock()
        self._opened = False
        self._process = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return os.getpid() != self._process

    @property
    def used(self) -> bool:
        return self._bound is not None or self._thread is not None

    async def open(self) -> None:
        """Open the engine on the running loop, which is its home from now on. Idempotent there."""
        self._check_free()
        await self._leave_thread()
        await self.engine.open()
        self._bound = asyncio.get_running_loop()

    async def close(self) -> None:
        self._check_free()
        await self._leave_thread()
        self._bound = None
        await self.engine.close()

    def run(self, make: Make[Answer], instead: str) -> Answer:
        """Wait, blocking; `instead` is what to await where that would wait for itself."""
        if self._bound is None:
            return self._started().run(self._first_opened(make))
        if self._bound is _running():
            raise UsageError(f"this would block the event loop that it waits for: await {instead}")
        call = self._hand_over(make, self._bound)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise _closed() from None
        except BaseException:
            call.cancel()
            raise

    async def arun(self, make: Make[Answer]) -> Answer:
        """Await it on the engine's own loop, from any loop."""
        if self._bound is _running() or (self._thread is not None and self._thread.here):
            return await make()
        if self._bound is None:
            call = self._started().begin(self._first_opened(make))
        else:
            call = self._hand_over(make, self._bound)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _closed() from None

    async def pause(self, seconds: float) -> None:
        """Between two looks at a job that is not over yet."""
        await asyncio.sleep(seconds)

    def enqueued(self, receipts: list[Receipt]) -> None:
        """A test mode may run them at once."""

    async def aenqueued(self, receipts: list[Receipt]) -> None:
        """The same, awaited."""

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
        """Opened by the first call there, and again by the next when that failed."""
        async with self._opening:
            if not self._opened:
                await self.engine.open()
                self._opened = True
        return await make()

    async def _close_thread(self) -> None:
        self._opened = False
        await self.engine.close()

    async def _leave_thread(self) -> None:
        """What was asked there is answered first."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.stop)

    @staticmethod
    def _hand_over(
        make: Make[Answer], loop: asyncio.AbstractEventLoop
    ) -> concurrent.futures.Future[Answer]:
        if not loop.is_running():
            raise UsageError(
                "the event loop that this Holdfast was opened on is not running: close it before "
                "the loop ends, best with `async with`"
            )
        coroutine = make()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            coroutine.close()
            raise _closed() from None


@contextlib.contextmanager
def closing_unstarted(coroutine: Coroutine[Any, Any, Answer]) -> Iterator[Make[Answer]]:
    """One that was refused is closed; one that has begun belongs to the loop it runs on."""
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
