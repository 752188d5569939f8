"""A bounded pool of daemon threads for blocking calls, awaited from an event loop.

The standard pool joins its threads when the process exits: an idle long poll would delay that by
twenty seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class ThreadCall(Generic[Result]):
    """One call in a pool. `abandon` takes a callback for a result that nobody awaits any more."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._lock = threading.Lock()
        self._leftover: Callable[[Result], None] | None = None
        self._ended = False
        self.future: asyncio.Future[Result] = self._loop.create_future()

    def abandon(self, leftover: Callable[[Result], None]) -> bool:
        """Call `leftover` with the result, in the pool's thread; False if it has already ended, and
        the result is in `future`, or about to be."""
        with self._lock:
            if not self._ended:
                self._leftover = leftover
            return not self._ended

    def run(self) -> None:
        """In the pool's thread."""
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._work()
        except BaseException as raised:  # noqa: BLE001 (the caller gets it)
            error = raised
        with self._lock:
            self._ended = True
            leftover = self._leftover
        if leftover is None:
            self._post(result, error)
        elif error is None:
            leftover(result)

    def _post(self, result: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:
            # The event loop was closed.
            return

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.future.cancelled():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class ThreadPool:
    """At most `size` threads, started when needed. After `stop` they end once idle, and the last
    one calls `at_end`."""

    def __init__(self, name: str, size: int, at_end: Callable[[], object]) -> None:
        self._name = name
        self._size = size
        self._at_end = at_end
        self._changed = threading.Condition()
        self._waiting: deque[ThreadCall[Any]] = deque()
        self._threads = 0
        self._idle = 0
        self._stopped = False

    def submit(self, work: Callable[[], Result]) -> ThreadCall[Result]:
        """Run `work` in a thread, after those that came before it."""
        call = ThreadCall(work)
        with self._changed:
            assert not self._stopped, "the pool is stopped"
            self._waiting.append(call)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._main, name=self._name, daemon=True).start()
        return call

    def stop(self) -> None:
        """Let the threads end. Calls that were submitted still run."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            is_empty = self._threads == 0
        if is_empty:
            self._at_end()

    def _main(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            del call

    def _next(self) -> ThreadCall[Any] | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._stopped:
                self._changed.wait()
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            is_last = self._threads == 0
        if is_last:
            self._at_end()
        return None
