"""Group commit: calls that arrive while one of their kind is in flight share the next one.

An idle engine is called at once. A caller's batch is never split, so one call is still one
transaction. Cancelling a caller does not affect others: its enqueue or settle may still happen, and
jobs leased for it are released. Blocking callers in other threads join the same commits without a
task of their own; one with no other beside it goes past the loop, if the engine can.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from time import monotonic
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.model import Lease, LeaseRequest, NewJob, Receipt, Renewal, Status
from holdfast.core.verdict import Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.lease import LeaseReturns
from holdfast.engines.wrapper import EnqueuesDirectly, Wrapper
from holdfast.errors import EngineClosed, HoldfastError, OutcomeUnknown, UsageError

_log = logging.getLogger("holdfast.coalesced")

_MERGED_MAX = 100
"""A batch of this size gains nothing from being merged; on its own it may use another
connection.
"""

_REGROUP_S_MAX = 0.005
"""Enough for a hundred threads to call again."""

_CALLS_AFTER_MEETING = 20
"""After two calls of threads have met, so many go over the loop: others will meet there and share
commits."""

Enqueue = Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]]

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")
OnLoop = Callable[[Callable[[asyncio.AbstractEventLoop], None]], None]
"""Calls a function with the engine's loop, in the caller's thread, while that loop is running."""


class Coalesced(Wrapper):
    """See `Engine`. Batches enqueue, lease, renew and settle; every other call passes through.
    `enqueue` is called for merged batches instead of the engine's own."""

    def __init__(self, engine: Engine, enqueue: Enqueue | None = None) -> None:
        super().__init__(engine)
        batch_max = engine.traits.batch_max
        self._enqueues = _Merged[NewJob, Receipt](enqueue or self._engine.enqueue, batch_max)
        inner = self._engine
        self._direct = inner if isinstance(inner, EnqueuesDirectly) else None
        self._direct_thread: int | None = None
        """The thread whose call goes past the loop. Not a lock, which an interrupted thread might
        keep: at worst two calls go there and commit in turn."""
        self._calls_over_loop = 0
        """The number of blocking calls that go over the loop although they seem to be alone."""
        self._settles = _Merged[Settlement, Outcome](self._engine.settle, batch_max)
        self._renews = _Merged[Renewal, Lease | None](self._engine.renew, batch_max)
        self._leases: dict[LeaseRequest, _SharedLeases] = {}
        self._apart: set[LeaseRequest] = set()
        """Requests that got a batch of a strict group, which must not be shared between callers."""
        self._returns = LeaseReturns(self._settles.submit, log=_log)

    async def close(self) -> None:
        """Answer all pending calls, then close the engine."""
        for drain in (
            self._enqueues.drain,
            self._renews.drain,
            *(pending.drain for pending in self._leases.values()),
        ):
            await drain()
        await self._returns.ended()
        await self._settles.drain()
        await self._engine.close()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._enqueues.submit(jobs)

    def enqueue_blocking(self, jobs: Sequence[NewJob], on_loop: OnLoop) -> list[Receipt]:
        """Enqueue from a thread that may block, not the loop's own. For small batches: see
        `shares`."""
        receipts = self._enqueue_alone(jobs, on_loop)
        if receipts is not None:
            return receipts
        call: _ThreadCall[NewJob, Receipt] = _ThreadCall(jobs)
        try:
            on_loop(lambda loop: self._enqueues.add(call, loop))
            return call.wait()
        except BaseException:
            if not call.is_over:
                # An interrupt, such as Ctrl-C: a call that was not sent yet is left out. It may
                # not have woken the loop, and others rely on it.
                call.is_over = True
                with contextlib.suppress(HoldfastError, RuntimeError):
                    on_loop(self._enqueues.wake)
            raise

    def _enqueue_alone(self, jobs: Sequence[NewJob], on_loop: OnLoop) -> list[Receipt] | None:
        """Enqueue past the loop if no other call could share the commit. None if it must go over
        the loop: nothing was stored then."""
        direct, me = self._direct, threading.get_ident()
        # One job, because the answer of a neighbour that was stored must not be asked for again.
        if direct is None or len(jobs) != 1 or not direct.is_direct:
            return None
        if not self._enqueues.is_idle or self._direct_thread not in (None, me):
            self._calls_over_loop = _CALLS_AFTER_MEETING
            return None
        if self._calls_over_loop > 0:
            self._calls_over_loop -= 1
            return None
        on_loop(_ignore)
        self._direct_thread = me
        try:
            receipts = direct.enqueue_directly(jobs)
        finally:
            self._direct_thread = None
        # The `enqueue` for merged batches may create the queue that was unknown.
        return None if receipts[0].status is Status.REFUSED else receipts

    @staticmethod
    def shares(jobs: Sequence[NewJob]) -> bool:
        """True if a batch of this size is merged with others."""
        return len(jobs) < _MERGED_MAX

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """Equal requests that do not wait share one call, and its leases in order of arrival."""
        if request.wait_ms or request.ids:
            return await self._engine.lease(request)
        checks.check_request(request)
        alike = replace(request, limit=1)
        pending = self._leases.get(alike)
        if pending is None:
            pending = self._leases[alike] = _SharedLeases(
                self._engine,
                alike,
                self._apart,
                self._returns.begin,
                lambda: self._leases.pop(alike),
            )
        return await pending.submit([None] * request.limit)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        return await self._renews.submit(renewals)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        return await self._settles.submit(settlements)


class _BatchedCall(Protocol[Entry, Answer]):
    """One caller's batch."""

    entries: Sequence[Entry]

    @property
    def is_over(self) -> bool:
        """True if it was answered, or its caller was cancelled."""

    def fail(self, error: Exception) -> None: ...

    def succeed(self, answers: list[Answer]) -> None: ...

    def drop(self) -> None:
        """The loop ends without an answer."""


class _PendingCall(Generic[Entry, Answer]):
    """A batch of a caller on the loop, and the future of its answers."""

    __slots__ = ("answer", "entries")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.answer.done()

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self.answer.set_exception(error)

    def succeed(self, answers: list[Answer]) -> None:
        if not self.is_over:
            self.answer.set_result(answers)

    def drop(self) -> None:
        self.answer.cancel()


class _ThreadCall(Generic[Entry, Answer]):
    """A batch of a caller that blocks in another thread, until it is answered and woken."""

    __slots__ = ("_answers", "_error", "_woken", "entries", "is_over", "next")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.is_over = False
        self._answers: list[Answer] = []
        self._error: Exception | None = None
        self.next: _ThreadCall[Entry, Answer] | None = None
        """The call that this one wakes when it is woken itself."""
        self._woken = threading.Lock()
        self._woken.acquire()

    def wait(self) -> list[Answer]:
        """Block until the answers are there."""
        self._woken.acquire()
        if self.next is not None:
            self.next.wake()
        if self._error is not None:
            raise self._error
        return self._answers

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self._error = error
            self.is_over = True

    def succeed(self, answers: list[Answer]) -> None:
        if not self.is_over:
            self._answers = answers
            self.is_over = True

    def drop(self) -> None:
        self.fail(EngineClosed("this Holdfast was closed before the call was answered"))
        self.wake()

    def wake(self) -> None:
        """Unblock the caller. Idempotent."""
        try:  # noqa: SIM105 - suppress() would cost more than the call
            self._woken.release()
        except RuntimeError:
            pass  # It was released before.


class _PendingCalls(Generic[Entry, Answer]):
    """Calls of one kind: at most one in flight, the others wait to share the next."""

    def __init__(self, batch_max: int) -> None:
        self._batch_max = batch_max
        self._waiting: list[_BatchedCall[Entry, Answer]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, entries: Sequence[Entry]) -> list[Answer]:
        call: _PendingCall[Entry, Answer] = _PendingCall(entries)
        self._waiting.append(call)
        self._begin()
        try:
            return await call.answer
        except asyncio.CancelledError:
            answer = call.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The answer arrived, but the caller was cancelled before it could take it.
                self._discard(answer.result())
            raise

    async def drain(self) -> None:
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            # A separate task: cancelling one caller must not cancel the shared call.
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        group: list[_BatchedCall[Entry, Answer]] = []
        try:
            while group := self._take():
                await self._serve(group)
                await self._regroup(group)
        except BaseException:
            # The event loop is shutting down.
            for call in (*group, *self._take_all()):
                call.drop()
            raise
        finally:
            self._task = None
            self._became_idle()

    def _take(self) -> list[_BatchedCall[Entry, Answer]]:
        """The next calls in order, as many as fit into one batch; a call is never split."""
        waiting = [call for call in self._waiting if not call.is_over]
        total, count = 0, 0
        for call in waiting:
            total += len(call.entries)
            if count and total > self._batch_max:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    def _take_all(self) -> list[_BatchedCall[Entry, Answer]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _serve(self, group: list[_BatchedCall[Entry, Answer]]) -> None:
        """Answer every call of the group."""
        raise NotImplementedError

    async def _regroup(self, group: list[_BatchedCall[Entry, Answer]]) -> None:
        """Called when a group was answered, before the next is taken."""

    def _discard(self, answers: list[Answer]) -> None:
        """Discard answers whose caller was cancelled."""

    def _became_idle(self) -> None:
        """Called when no call is in flight or pending."""


class _Merged(_PendingCalls[Entry, Answer]):
    """Concatenates batches, and splits the answers again.

    Other threads add calls without a lock, because a signal handler may close the engine in the
    middle. They wake the loop only if it is not going to look for calls anyway.
    """

    def __init__(
        self, send: Callable[[Sequence[Entry]], Awaitable[list[Answer]]], batch_max: int
    ) -> None:
        super().__init__(batch_max)
        self._send = send
        self._sent_s = 0.0
        self._arrived: deque[_BatchedCall[Entry, Answer]] = deque()
        self._is_awake = False
        """Calls that have arrived will be taken, by a running task or one that is about to."""
        self._wanted = 0
        """The number of arrived calls that completes a group, while one is awaited."""
        self._regrouped: asyncio.Future[None] | None = None

    def add(self, call: _BatchedCall[Entry, Answer], loop: asyncio.AbstractEventLoop) -> None:
        """Add a call from another thread."""
        self._arrived.append(call)
        if not self._is_awake:
            self._is_awake = True
            wake = self._begin
        elif 0 < self._wanted <= len(self._arrived):
            wake = self._end_regroup
        else:
            return
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            for lost in self._take_all():
                lost.drop()

    @property
    def is_idle(self) -> bool:
        """True if no call is in flight or pending, as far as another thread can tell."""
        return self._task is None and not self._is_awake

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the loop look for calls, from another thread."""
        loop.call_soon_threadsafe(self._begin)

    def _take(self) -> list[_BatchedCall[Entry, Answer]]:
        while True:
            arrived = self._take_arrived()
            self._waiting += arrived
            group = super()._take()
            # All that arrived may be cancelled. Without a group the next call must wake the loop.
            if group or not arrived:
                return group

    def _take_all(self) -> list[_BatchedCall[Entry, Answer]]:
        calls = super()._take_all()
        while arrived := self._take_arrived():
            calls += arrived
        return calls

    def _take_arrived(self) -> list[_BatchedCall[Entry, Answer]]:
        """The calls of other threads; after an empty answer, the next one wakes the loop."""
        taken: list[_BatchedCall[Entry, Answer]] = []
        while self._arrived:
            taken.append(self._arrived.popleft())
        if not taken:
            self._is_awake = False
            # A thread may have added a call just before, and not woken the loop.
            while self._arrived:
                self._is_awake = True
                taken.append(self._arrived.popleft())
        return taken

    async def _regroup(self, group: list[_BatchedCall[Entry, Answer]]) -> None:
        """Wake the threads, and give them time to call again, so that they do not split into two
        groups that commit in turn: until all are back, but no longer than their call took. A single
        caller never waits.

        Each thread wakes the next: one thread at a time runs Python code, and those that are woken
        together only compete for their turn.
        """
        threads = [call for call in group if isinstance(call, _ThreadCall)]
        if len(threads) < 2:
            for call in threads:
                call.wake()
            return
        for call, following in pairwise(threads):
            call.next = following
        loop = asyncio.get_running_loop()
        self._regrouped = loop.create_future()
        timer = loop.call_later(min(self._sent_s, _REGROUP_S_MAX), self._end_regroup)
        self._wanted = len(threads) + len(self._arrived)
        threads[0].wake()
        try:
            await self._regrouped
        finally:
            self._wanted = 0
            timer.cancel()
            # A thread that was interrupted has woken no other.
            for call in threads:
                call.wake()

    def _end_regroup(self) -> None:
        if self._regrouped is not None and not self._regrouped.done():
            self._regrouped.set_result(None)

    async def submit(self, entries: Sequence[Entry]) -> list[Answer]:
        if len(entries) >= _MERGED_MAX:
            return await self._send(entries)
        return await super().submit(entries)

    async def _serve(self, group: list[_BatchedCall[Entry, Answer]]) -> None:
        began = monotonic()
        try:
            answers = await self._send([entry for call in group for entry in call.entries])
        except UsageError as error:
            if len(group) == 1:
                group[0].fail(error)
                return
            # One call is invalid and nothing was written: repeat each alone, to find which.
            for call in group:
                await self._serve([call])
        except OutcomeUnknown as error:
            _share(group, error)
        except Exception as error:  # noqa: BLE001 (it is raised again in every caller)
            for call in group:
                call.fail(error)
        else:
            self._sent_s = monotonic() - began
            at = 0
            for call in group:
                call.succeed(answers[at : at + len(call.entries)])
                at += len(call.entries)


def _share(group: list[_BatchedCall[Entry, Answer]], error: OutcomeUnknown) -> None:
    """Calls whose answers are all known succeed; the others get the error."""
    at = 0
    for call in group:
        count = len(call.entries)
        known = {n: error.known[at + n] for n in range(count) if at + n in error.known}
        if len(known) == count:
            call.succeed([known[n] for n in range(count)])
        else:
            call.fail(OutcomeUnknown(str(error), known=known))
        at += count


class _SharedLeases(_PendingCalls[None, Lease]):
    """Lease requests that differ only in their limit.

    The batch of a strict group must not be split among callers, who would run it in parallel.
    After the first such batch, these requests are sent one by one.
    """

    def __init__(
        self,
        engine: Engine,
        alike: LeaseRequest,
        apart: set[LeaseRequest],
        release: Callable[[list[Lease]], None],
        became_idle: Callable[[], object],
    ) -> None:
        super().__init__(engine.traits.batch_max)
        self._engine = engine
        self._alike = alike
        self._apart = apart
        self._release_later = release
        self._when_idle = became_idle

    async def _serve(self, group: list[_BatchedCall[None, Lease]]) -> None:
        total = sum(len(call.entries) for call in group)
        try:
            leases = await self._engine.lease(replace(self._alike, limit=total))
        except Exception as error:  # noqa: BLE001 (it is raised again in every caller)
            for call in group:
                call.fail(error)
            return
        for call in group:
            if not call.is_over:
                share, leases = leases[: len(call.entries)], leases[len(call.entries) :]
                call.succeed(share)
                leases = self._after_batch(share, leases)
        self._discard(leases)

    def _take(self) -> list[_BatchedCall[None, Lease]]:
        calls = super()._take()
        if self._alike in self._apart:
            self._waiting = calls[1:] + self._waiting
            return calls[:1]
        return calls

    def _after_batch(self, share: list[Lease], rest: list[Lease]) -> list[Lease]:
        """The leases that later calls may get: not the rest of this share's group batch."""
        batch = _batch(share[-1]) if share else None
        count = 0
        while batch is not None and count < len(rest) and _batch(rest[count]) == batch:
            count += 1
        if count:
            self._apart.add(self._alike)
            self._discard(rest[:count])
        return rest[count:]

    def _discard(self, answers: list[Lease]) -> None:
        if answers:
            self._release_later(answers)

    def _became_idle(self) -> None:
        self._when_idle()


def _ignore(loop: asyncio.AbstractEventLoop) -> None:
    """Use the loop for nothing: what lends it refuses callers that must not block."""


def _batch(lease: Lease) -> tuple[str, str] | None:
    job = lease.job
    return None if job.group is None else (job.queue, job.group)
