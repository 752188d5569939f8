"""One thread that does one thing after another for an event loop: the writer, or the reader.

SQLite calls block, and a connection belongs to one thread. A call that waits for its turn too
long is withdrawn and answered; one that has begun is always waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import EngineClosed, EngineUnavailable

Result = TypeVar("Result")

PATIENCE_S = 15.0
"""How long a call waits for its turn: for those before it, and for other processes' locks."""


class Turn:
    """Whoever takes it first decides: the thread that begins the work, or the caller who left."""

    def __init__(self) -> None:
        self._taken = threading.Lock()

    def take(self) -> bool:
        return self._taken.acquire(blocking=False)


Work = Callable[[Turn], Any]
_Call = tuple[Work, Turn, asyncio.Future[Any], Callable[[Any], None] | None]


class Worker:
    def __init__(self, name: str) -> None:
        self._calls: deque[_Call] = deque()
        # One entry for each call, which may have been overtaken, and False for the end.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopping = False
        self._last: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def call(
        self,
        work: Callable[[Turn], Result],
        *,
        urgent: bool = False,
        orphan: Callable[[Result], None] | None = None,
    ) -> Result:
        """Run `work` in the thread. It takes its turn when it can no longer be withdrawn.

        `orphan` is told a result whose caller was cancelled and so never sees it.
        """
        if self._stopping:
            raise EngineClosed("the engine is closed: open it again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        turn = Turn()
        # A late renewal is a lost lease, so it goes before everything that only waits.
        add = self._calls.appendleft if urgent else self._calls.append
        add((work, turn, future, orphan))
        self._signals.put(True)
        timer = loop.call_later(PATIENCE_S, _give_up, turn, future)
        try:
            return await future
        except asyncio.CancelledError:
            # The answer may be there already, if only its caller has not yet run again.
            answered = future.done() and not future.cancelled() and future.exception() is None
            if answered and orphan is not None:
                orphan(future.result())
            raise
        finally:
            timer.cancel()
            if not future.done() or future.cancelled():
                turn.take()

    def stop(self, last: Callable[[], None] | None = None) -> None:
        """Take no more calls; do those that wait, then `last`, however long a lock takes."""
        self._stopping = True
        self._last = last
        self._signals.put(False)

    def join(self, patience_s: float | None = None) -> bool:
        """Block until the thread is gone; False when it does not come back from a lock."""
        self._thread.join(PATIENCE_S if patience_s is None else patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._signals.get():
            _do(*self._calls.popleft())
        if self._last is not None:
            self._last()


def _do(
    work: Work, turn: Turn, future: asyncio.Future[Any], orphan: Callable[[Any], None] | None
) -> None:
    try:
        result, error = work(turn), None
    except BaseException as raised:  # noqa: BLE001 - it is the caller's to see
        result, error = None, raised
    # A loop that is closed has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(_resolve, future, result, error, orphan)


def _give_up(turn: Turn, future: asyncio.Future[Any]) -> None:
    if turn.take() and not future.done():
        text = f"no turn to write within {PATIENCE_S:.0f} s: another process holds the lock"
        future.set_exception(EngineUnavailable(f"{text}; nothing was changed"))


def _resolve(
    future: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
    orphan: Callable[[Any], None] | None,
) -> None:
    if future.done():
        if error is None and orphan is not None:
            orphan(result)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
