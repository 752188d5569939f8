"""Runs the calls of one child: takes instructions from the supervisor and sends answers.

`CallRunner` is shared by all runners of calls; `HandlerRunner` runs Python handlers, in the loop or
in threads. Calls start in the order in which they came, and everything but the threads' own work
happens in the loop's thread. Runners do not use sockets: they pass answers to `write`, in one list
for each turn of the loop, or for all calls that end within a millisecond.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from threading import Lock, Thread
from typing import Protocol, assert_never

from holdfast.worker import processes
from holdfast.worker.child.attempt import Attempt, attempt_class
from holdfast.worker.child.handlers import Handler
from holdfast.worker.child.printed import CURRENT
from holdfast.worker.wire import (
    AskedCancel,
    AskedRelease,
    Board,
    CallsEnded,
    CancelCall,
    ChildCalls,
    ChildSetup,
    Ending,
    Finish,
    FrameReader,
    FromChild,
    GivenBack,
    NoteUpdate,
    Recall,
    ToChild,
    decode_to_child,
    encode_frame,
)

_LEASE_CHECK_S = 0.005
_NOTE_S_FIRST = 0.1
"""Most jobs have ended by then, and their endings carry the note."""
_NOTE_S = 0.5
_UNKNOWN_DELAY_MS = 5_000
"""Another process may know the task; without a delay this one would use up all releases at once."""
_LOOK_S = 0.001
_SHORT_S = 0.0002
"""A thread that ends calls faster than this works alone: several would only compete for the
interpreter."""
_GATHER_S = 0.001
_GATHER_MAX = 128
"""While more calls wait, endings are sent together: at most this late, and this many in a frame."""


class CallRunner(ABC):
    """Created in the loop it runs on. `finished` is called when a `Finish` has arrived and no call
    is left.
    """

    def __init__(
        self,
        setup: ChildSetup,
        board: Board,
        write: Callable[[list[FromChild]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """The context of the runner itself, without the variables that handlers set."""
        self._setup = setup
        self._board = board
        self._write = write
        self._finished = finished
        self._finishing = False
        self._flush_handle: asyncio.Handle | None = None
        self._waits_for_renewal = False
        self._unsent: list[FromChild] = []
        self._unsent_calls = 0
        """How many calls the unsent answers end."""
        self._notes = NoteThrottle(self._loop, self._write_soon)

    def receive(self, instructions: list[ToChild]) -> None:
        """Handle instructions from the supervisor."""
        for instruction in instructions:
            match instruction:
                case ChildCalls():
                    self._add_calls(instruction)
                case CancelCall(number=number, lost=lost, force=force):
                    self._cancel(number, lost=lost, force=force)
                case Recall():
                    self._unsent.append(GivenBack(tuple(self._give_back())))
                case Finish():
                    self._finishing = True
                case _:
                    assert_never(instruction)
        self._dispatch()
        if self._flush_handle is None:
            self._flush()

    @abstractmethod
    def stop(self) -> None:
        """Start no more calls, and end running calls as far as possible."""

    @abstractmethod
    def _add_calls(self, calls: ChildCalls) -> None: ...

    @abstractmethod
    def _cancel(self, number: int, *, lost: bool, force: bool) -> None: ...

    @abstractmethod
    def _give_back(self) -> list[int]:
        """Forget the calls that have not started; returns their numbers."""

    @abstractmethod
    def _dispatch(self) -> None:
        """Start calls while there are free slots."""

    @abstractmethod
    def _is_idle(self) -> bool:
        """True if no call is left."""

    def _may_begin(self) -> bool:
        """False if a lease may have expired since the supervisor's last update: it was frozen, or
        the store is unreachable. Waiting calls are checked again soon.
        """
        if self._board.may_begin():
            return True
        if not self._waits_for_renewal:
            self._waits_for_renewal = True
            self._loop.call_later(_LEASE_CHECK_S, self._check_again)
        return False

    def _check_again(self) -> None:
        self._waits_for_renewal = False
        self._dispatch()

    def _add_ended(self, number: int, endings: tuple[Ending, ...]) -> None:
        """Send the endings of a call with the next frame, in one answer with the calls before it
        if they ended alike: most return nothing."""
        last = self._unsent[-1] if self._unsent else None
        if type(last) is CallsEnded and last.endings is endings:
            last.numbers.append(number)
        else:
            self._unsent.append(CallsEnded([number], endings))
        self._unsent_calls += 1

    def _write_soon(self, answer: FromChild) -> None:
        self._unsent.append(answer)
        self._flush_later(0.0)

    def _flush_later(self, seconds: float) -> None:
        """Send everything that gathers until then in one frame."""
        if self._flush_handle is not None:
            return
        if seconds:
            self._flush_handle = self._loop.call_later(seconds, self._flush, context=self._context)
        else:
            self._flush_handle = self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        if self._flush_handle is not None:
            # It may still be pending: fired later, it would send the next answers too early.
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._unsent:
            answers, self._unsent, self._unsent_calls = self._unsent, [], 0
            self._write(answers)
        if self._finishing and self._is_idle():
            self._finished()


class HandlerRunner(CallRunner):
    """`handlers` are by the names of their tasks."""

    def __init__(
        self,
        setup: ChildSetup,
        handlers: Mapping[str, Handler],
        board: Board,
        write: Callable[[list[FromChild]], None],
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(setup, board, write, finished)
        self._handlers = handlers
        self._attempt = attempt_class()
        self._attempts: dict[int, Attempt] = {}
        """Those that have not ended. They keep their asyncio tasks alive."""
        self._ended: deque[tuple[Attempt, tuple[Ending, ...]]] = deque()
        """Those that ended in threads."""
        self._awake = False
        self._stopping = False
        # The lock guards these, which the loop and the threads share.
        self._lock = Lock()
        self._waiting: deque[Attempt] = deque()
        self._free = list(range(setup.slots))
        self._idle: list[HandlerThread] = []
        self._busy = 0
        self._count = 0
        self._looking = False

    def stop(self) -> None:
        """Coroutines are cancelled; threads see it in their Context, and end with the process."""
        self._stopping = True
        self._give_back()
        for attempt in list(self._attempts.values()):
            attempt.cancel(lost=True)

    def run_in_thread(self, thread: HandlerThread, attempt: Attempt, slot: int) -> None:
        """Called in a thread: run this call, and then the calls after it as long as they are for
        threads.
        """
        board = self._board
        if not self._begin(attempt, slot):
            with self._lock:
                self._idle.append(thread)
                self._busy -= 1
            return self._wake_from_thread()
        while True:
            endings = _run_in_own_context(attempt)
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
                    self._idle.append(thread)
                    self._busy -= 1
                    break
            self._wake_from_thread()
        return self._wake_from_thread()

    def _add_calls(self, calls: ChildCalls) -> None:
        handler = self._handlers.get(calls.task)
        if handler is None:
            unknown = AskedRelease(
                f"this process does not know task {calls.task}", _UNKNOWN_DELAY_MS
            )
            for number, jobs in enumerate(calls.calls, calls.first):
                self._add_ended(number, (unknown,) * len(jobs))
            return
        noted, output_max = self._notes.add, self._setup.output_max
        for number, jobs in enumerate(calls.calls, calls.first):
            attempt = self._attempt(
                handler,
                jobs,
                timeout_ms=calls.timeout_ms,
                number=number,
                noted=noted,
                output_max=output_max,
            )
            self._attempts[number] = attempt
            self._waiting.append(attempt)

    def _cancel(self, number: int, *, lost: bool, force: bool) -> None:
        attempt = self._attempts.get(number)
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
            numbers = [attempt.number for attempt in self._waiting]
            self._waiting.clear()
        for number in numbers:
            del self._attempts[number]
        return numbers

    def _is_idle(self) -> bool:
        return not self._attempts

    def _dispatch(self, *, widen: bool = False) -> None:
        """Start calls while there are free slots. Calls for threads are left to a running thread,
        unless that turns out to be slow: then `widen` starts more threads.
        """
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

    def _begin(self, attempt: Attempt, slot: int) -> bool:
        """Called at the very first step, which may come long after `_dispatch` if another handler
        holds the interpreter. A call that must not begin goes back to its place in the queue."""
        if attempt.cancelled or self._board.may_begin():
            self._board.start(slot, attempt.number)
            return True
        with self._lock:
            before = sum(other.number < attempt.number for other in self._waiting)
            self._waiting.insert(before, attempt)
            self._free.append(slot)
        return False

    def _start_task(self, attempt: Attempt, slot: int) -> None:
        attempt.task_handle = self._loop.create_task(
            self._run_task(attempt, slot), name=attempt.task, context=self._context.copy()
        )

    async def _run_task(self, attempt: Attempt, slot: int) -> None:
        following: Attempt | None = None
        if self._begin(attempt, slot):
            CURRENT.set(attempt)
            try:
                endings = await attempt.run_async()
            except BaseException as error:  # noqa: BLE001 (the slot must come back)
                endings = attempt.failed(error)
            self._board.end(slot)
            self._end(attempt, endings)
            following = self._take_coroutine(slot)
        attempt.task_handle = None
        if following is not None:
            self._start_task(following, slot)
        if following is not None and self._unsent_calls < _GATHER_MAX:
            self._flush_later(_GATHER_S)
        elif not self._awake:
            self._awake = True
            self._loop.call_soon(self._collect, context=self._context)

    def _take_coroutine(self, slot: int) -> Attempt | None:
        """The next call for this slot; without one, or if it is for a thread, the slot is free."""
        with self._lock:
            if self._waiting and self._waiting[0].handler.is_async:
                return self._waiting.popleft()
            self._free.append(slot)
            return None

    def _start_thread(self, attempt: Attempt, slot: int) -> None:
        self._busy += 1
        thread = self._idle.pop() if self._idle else HandlerThread(self)
        thread.start_call(attempt, slot)

    def _wake_from_thread(self) -> None:
        if not self._awake:
            self._awake = True
            _wake_loop(self._loop, self._collect)

    def _collect(self) -> None:
        """Send the endings of calls, and start others."""
        # Cleared first, so that a call that ends from now on wakes the loop again.
        self._awake = False
        ended = self._ended
        while ended:
            self._end(*ended.popleft())
        if self._waiting:
            self._dispatch()
        if self._waiting and self._unsent_calls < _GATHER_MAX:
            self._flush_later(_GATHER_S)
        else:
            self._flush()

    def _end(self, attempt: Attempt, endings: tuple[Ending, ...]) -> None:
        if attempt.contexts:
            self._unsent += attempt.take_notes()
        if self._stopping:
            endings = tuple(map(_uncharged, endings))
        self._add_ended(attempt.number, endings)
        del self._attempts[attempt.number]


class HandlerThread:
    """A thread that waits for a call, runs all waiting calls, and waits again. It is a daemon: a
    handler that never ends must not keep the process alive.
    """

    __slots__ = ("_call", "_runner", "_start")

    def __init__(self, runner: HandlerRunner) -> None:
        self._runner = runner
        self._call: tuple[Attempt, int] | None = None
        self._start = Lock()
        self._start.acquire()
        Thread(target=self._main, daemon=True, name="holdfast-handler").start()

    def start_call(self, attempt: Attempt, slot: int) -> None:
        """Only while the thread is idle."""
        self._call = (attempt, slot)
        self._start.release()

    def _main(self) -> None:
        while True:
            self._start.acquire()
            call, self._call = self._call, None
            assert call is not None
            self._runner.run_in_thread(self, *call)
            del call


def _run_in_own_context(attempt: Attempt) -> tuple[Ending, ...]:
    """Context variables that a handler sets must not reach the next one."""
    try:
        return copy_context().run(_run_current, attempt)
    except BaseException as error:  # noqa: BLE001 (the thread must outlive it)
        return attempt.failed(error)


def _run_current(attempt: Attempt) -> tuple[Ending, ...]:
    CURRENT.set(attempt)
    return attempt.run()


def _uncharged(ending: Ending) -> Ending:
    """A call cancelled because the worker stops is released; its job is not cancelled."""
    if isinstance(ending, AskedCancel):
        return AskedRelease("the worker stopped before it ended", output=ending.output)
    return ending


def _wake_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run the callback in the loop, from any thread. Another wake-up may have collected the last
    ending already: then the runner has finished, and a closed loop has nothing left to do."""
    try:  # noqa: SIM105 - suppress() would cost as much as the call
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


class NoteSource(Protocol):
    """A running job that may have a new note."""

    def take_note(self) -> NoteUpdate | None: ...


class NoteThrottle:
    """Sends the notes of running jobs promptly, but at most twice a second for each job.

    `add` may be called from any thread, once for each new note; the rest happens in the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[FromChild], None]) -> None:
        self._loop = loop
        self._write = write
        self._sources: deque[NoteSource] = deque()
        self._awake = False

    def add(self, source: NoteSource) -> None:
        """This job has a new note."""
        self._sources.append(source)
        if not self._awake:
            self._awake = True
            _wake_loop(self._loop, self._wake)

    def _wake(self) -> None:
        self._loop.call_later(_NOTE_S_FIRST, self._write_notes)

    def _write_notes(self) -> None:
        sources = self._sources
        if not sources:
            self._awake = False
            # A source that was added just before did not wake the loop.
            if not sources:
                return
            self._awake = True
        while sources:
            if (note := sources.popleft().take_note()) is not None:
                self._write(note)
        self._loop.call_later(_NOTE_S, self._write_notes)


class SupervisorConnection(asyncio.Protocol):
    """A child's socket to its supervisor. `runner` gets the instructions. When the supervisor
    closes the connection, the child ends at once.
    """

    def __init__(self) -> None:
        self.runner: CallRunner | None = None
        self._frames = FrameReader()
        self._finished = asyncio.Event()
        self._closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(cls, connection: socket.socket) -> SupervisorConnection:
        _, made = await asyncio.get_running_loop().create_connection(cls, sock=connection)
        return made

    async def close_when_finished(self) -> None:
        await self._finished.wait()
        assert self._transport is not None
        # The last answers may still be on their way.
        self._transport.close()
        await self._closed.wait()

    def finish(self) -> None:
        self._finished.set()

    def write(self, answers: list[FromChild]) -> None:
        assert self._transport is not None
        self._transport.write(encode_frame(answers))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.runner is not None
        for body in self._frames.feed(data):
            self.runner.receive(decode_to_child(body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._finished.is_set():
            processes.end_at_once(0 if error is None or isinstance(error, ConnectionError) else 1)
        self._closed.set()
