"""Python handlers in one process: calls wait in line, run in the loop or in threads, and end.

All but the threads' own work happens in the loop's thread. Calls start in the order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock

from holdfast import tracing
from holdfast.worker.attempt import Attempt
from holdfast.worker.board import Board
from holdfast.worker.handlers import Handler
from holdfast.worker.hands import Hands
from holdfast.worker.threads import Lane
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Call,
    ChildSetup,
    Ended,
    Ending,
    Up,
)

_UNKNOWN_DELAY_MS = 5_000
"""Another process may know it; this one would use up all its releases at once."""
_LOOK_S = 0.001
_SHORT_S = 0.0002
"""A thread that ends calls faster than this is left to work alone: several would only take the
interpreter from each other."""


class Runner(Hands):
    """`handlers` by the names of their tasks."""

    def __init__(
        self,
        setup: ChildSetup,
        handlers: Mapping[str, Handler],
        board: Board,
        say: Callable[[list[Up]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(setup, board, say, finished)
        self._handlers = handlers
        self._attempt = _attempt_class()
        self._in_hand: dict[int, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: deque[tuple[Attempt, tuple[Ending, ...]]] = deque()
        self._waking = False
        self._stopping = False
        # The lock guards these, which the loop and the threads share.
        self._lock = Lock()
        self._waiting: deque[Attempt] = deque()
        self._free = list(range(setup.slots))
        self._idle: list[Lane] = []
        self._busy = 0
        self._count = 0
        self._looking = False

    def stop(self) -> None:
        """What runs in the loop is cancelled; threads are told, and end with the process."""
        self._stopping = True
        self._give_back()
        for attempt in list(self._in_hand.values()):
            attempt.cancel(lost=True)

    def _take_call(self, call: Call) -> None:
        handler = self._handlers.get(call.task)
        if handler is None:
            text = f"this process does not know task {call.task}"
            unknown = AskedRelease(text, _UNKNOWN_DELAY_MS)
            self._words.append(Ended(call.number, (unknown,) * len(call.jobs)))
            return
        attempt = self._attempt(
            handler,
            call.jobs,
            timeout_ms=call.timeout_ms,
            number=call.number,
            hear=self._teller.hear,
            output_max=self._setup.output_max,
        )
        self._in_hand[call.number] = attempt
        self._waiting.append(attempt)

    def _cancel(self, number: int, *, lost: bool) -> None:
        attempt = self._in_hand.get(number)
        if attempt is None:
            return
        attempt.cancel(lost=lost)
        with self._lock:
            if attempt not in self._waiting:
                return
            self._waiting.remove(attempt)
        unstarted = AskedCancel("it was cancelled before it started")
        self._end(attempt, (unstarted,) * len(attempt.jobs))

    def _give_back(self) -> list[int]:
        with self._lock:
            back = [attempt.number for attempt in self._waiting]
            self._waiting.clear()
        for number in back:
            del self._in_hand[number]
        return back

    def _is_idle(self) -> bool:
        return not self._in_hand

    def _dispatch(self, *, widen: bool = False) -> None:
        """Start what there is room for. Calls for threads are left to a thread that is at work
        already, unless it turns out to be slow."""
        with self._lock:
            waiting, free = self._waiting, self._free
            if waiting and not self._may_begin():
                return
            while waiting and free:
                if waiting[0].handler.is_async:
                    self._start_task(waiting.popleft(), free.pop())
                elif self._busy and not widen:
                    break
                else:
                    self._start_thread(waiting.popleft(), free.pop())
            if waiting and free and not self._looking:
                self._looking = True
                self._loop.call_later(_LOOK_S, self._look, self._loop.time(), self._count)

    def _look(self, since: float, count: int) -> None:
        self._looking = False
        slow = (self._count - count) * _SHORT_S < self._loop.time() - since
        self._dispatch(widen=slow)

    def _begins(self, attempt: Attempt, slot: int) -> bool:
        """Asked at the very first step, which may come long after `_dispatch` if another handler
        holds the interpreter. If it must not begin, it is back in line, in its place."""
        if attempt.cancelled or self._board.may_begin():
            self._board.start(slot, attempt.number)
            return True
        with self._lock:
            before = sum(other.number < attempt.number for other in self._waiting)
            self._waiting.insert(before, attempt)
            self._free.append(slot)
        return False

    def _start_task(self, attempt: Attempt, slot: int) -> None:
        task = self._loop.create_task(self._run_task(attempt, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_task(self, attempt: Attempt, slot: int) -> None:
        if not self._begins(attempt, slot):
            return self._wake()
        try:
            endings = await attempt.run_async()
        except BaseException as error:  # noqa: BLE001 (the slot must come back)
            endings = attempt.broke(error)
        self._board.end(slot)
        self._ended.append((attempt, endings))
        self._free.append(slot)
        return self._wake()

    def _start_thread(self, attempt: Attempt, slot: int) -> None:
        self._busy += 1
        lane = self._idle.pop() if self._idle else Lane(self._work)
        lane.give((attempt, slot))

    def _work(self, lane: Lane, given: tuple[Attempt, int]) -> None:
        """In a thread: this call, and then those behind it until another kind is next."""
        attempt, slot = given
        board = self._board
        if not self._begins(attempt, slot):
            with self._lock:
                self._idle.append(lane)
                self._busy -= 1
            return self._wake_from_thread()
        while True:
            endings = lane.run(attempt)
            board.end(slot)
            self._ended.append((attempt, endings))
            with self._lock:
                self._count += 1
                waiting = self._waiting
                if waiting and not waiting[0].handler.is_async and board.may_begin():
                    attempt = waiting.popleft()
                    board.start(slot, attempt.number)
                else:
                    self._free.append(slot)
                    self._idle.append(lane)
                    self._busy -= 1
                    break
            self._wake_from_thread()
        return self._wake_from_thread()

    def _wake_from_thread(self) -> None:
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._collect)

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._collect)

    def _collect(self) -> None:
        # First, so that what ends from now on wakes the loop again.
        self._waking = False
        ended = self._ended
        while ended:
            self._end(*ended.popleft())
        if self._waiting:
            self._dispatch()
        self._flush()

    def _end(self, attempt: Attempt, endings: tuple[Ending, ...]) -> None:
        if attempt.handler.context is not None:
            self._words += attempt.told()
        if self._stopping:
            endings = tuple(map(_uncharged, endings))
        self._words.append(Ended(attempt.number, endings))
        del self._in_hand[attempt.number]


def _uncharged(ending: Ending) -> Ending:
    """It was cancelled because the worker stops: nobody meant the job."""
    if isinstance(ending, AskedCancel):
        return AskedRelease("the worker stopped before it ended", output=ending.output)
    return ending


def _attempt_class() -> type[Attempt]:
    if not tracing.is_on():
        return Attempt
    from holdfast.worker.tracing import TracedAttempt

    return TracedAttempt
