"""Free capacity → leases. Never requests more jobs than there is room for. One request covers all
kinds of jobs that have room: a search for a single kind might have to skip any number of other
jobs. The number of jobs leased ahead depends on how fast jobs end here: few if they are long, so
that no worker hoards jobs; hundreds if they are very short.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Container, Mapping
from time import monotonic
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.limits import Limit
from holdfast.core.model import Job, Lease, LeaseRequest
from holdfast.core.workers import Health, usable_slots
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError
from holdfast.ops.dead_letters import dead_letter_of, dead_letter_task
from holdfast.ops.queues import set_task_limits
from holdfast.process import boot_s
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.child_pool import ChildPool
from holdfast.worker.supervisor.held_leases import (
    RUNNER_KINDS,
    GroupOrder,
    HeldLease,
    HeldLeases,
    RunnerKind,
)
from holdfast.worker.wire import TaskInfo

_log = logging.getLogger("holdfast.worker")

_WAIT_MS_MIN, _WAIT_MS = 100, 5 * bounds.SECOND_MS
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0
_HELD_MAX = 12_000
"""Leases that a worker holds at most: of jobs that wait, run, or are not settled yet."""
_OVERFILL_MAX = 10
"""Jobs of one kind that may wait for a slot, where all tasks are leased together."""
_ALONE_MAX = 256
"""Jobs that must run alone are leased with the others; while this many wait, nothing is leased."""
_UNSEEN_MIN = 50
"""A kind of which no job came for long is expected once in at least this many jobs."""
_DEAD_MAX = 8
_DEAD_PAUSE_S = 0.5
_MSGPACK = "application/msgpack"


class LeaseDemand(Protocol):
    """The jobs that an intake may lease; implemented by `WorkerCapacity`."""

    @property
    def left_out(self) -> Container[RunnerKind]:
        """The kinds that the present request leaves out because they had no room."""

    def wanted(self) -> tuple[int, frozenset[str]]:
        """The number of jobs that may be leased now, and their tasks."""

    @property
    def tasks(self) -> frozenset[str]:
        """All tasks of the worker."""

    def has_room(self, task: str) -> bool: ...

    def accept(self, leases: list[Lease], requested_at: float) -> list[HeldLease]:
        """Hold leases that were requested at this instant; returns the jobs that may start."""


class Intake:
    """`deliver` gets the jobs that may start: at once, or, if there may be more in the queue, while
    the next request is under way.
    """

    def __init__(
        self, engine: Engine, demand: LeaseDemand, deliver: Callable[[list[HeldLease]], None]
    ) -> None:
        self._engine = engine
        self._demand = demand
        self._deliver = deliver
        self._undelivered: list[HeldLease] = []
        self._requested_at = 0.0
        self._wait_ms = _WAIT_MS
        self._worker = ""
        self._queues: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._interrupted = asyncio.Event()
        self.leased_at: float = monotonic()
        """When the engine last returned a job, or a request was last skipped for lack of room."""

    def serve(self, worker: str, queues: Mapping[str, int]) -> None:
        """Set the name to lease under, and the queues to lease from, by weight."""
        before = (self._worker, self._queues)
        self._worker, self._queues = worker, dict(queues)
        if before != (self._worker, self._queues):
            self.interrupt()

    def wake(self) -> None:
        """Check for room: there may be some now."""
        self._changed.set()

    def freed(self, kind: RunnerKind) -> None:
        """There is room for a job of this kind. A request that leaves this kind out is
        abandoned.
        """
        if kind in self._demand.left_out:
            self._interrupted.set()
        self._changed.set()

    def interrupt(self) -> None:
        """Abandon the current request: it no longer matches the demand."""
        self._interrupted.set()
        self._changed.set()

    async def run(self) -> None:
        """Lease until cancelled. Jobs that an abandoned request leased are released by it."""
        pause = _PAUSE_S_FIRST
        while True:
            self._interrupted.clear()
            limit, tasks = self._demand.wanted()
            if limit <= 0 or not self._queues:
                self._deliver_leased()
                self.leased_at = monotonic()
                self._changed.clear()
                await _wait_for(self._changed, 1.0)
                continue
            try:
                leases = await self._lease(limit, tasks)
            except EngineClosed:
                raise
            except EngineError as error:
                pause = await _pause_after(error, "jobs", pause)
                continue
            pause = _PAUSE_S_FIRST
            if leases:
                self.leased_at = monotonic()
                self._undelivered = self._demand.accept(leases, self._requested_at)
                if len(leases) < limit:
                    # The queue is empty, so the next request can wait until these have started.
                    self._deliver_leased()
                # Bounded by the lease: a job leased at the end of a longer wait would need a
                # renewal before the answer is read.
                shortest_ms = min(lease.lease_ms for lease in leases)
                self._wait_ms = max(_WAIT_MS_MIN, min(_WAIT_MS, shortest_ms // 3))

    async def lease_one(self, task: str) -> list[HeldLease]:
        """Lease one job of a task that requests leave out, without waiting; None if there is none,
        or no room.
        """
        if not self._queues or not self._demand.has_room(task):
            return []
        requested_at = boot_s()
        takes_all = not self._engine.traits.refunds
        leases = await self._engine.lease(
            LeaseRequest(
                queues=self._order(),
                worker=self._worker,
                tasks=self._demand.tasks if takes_all else frozenset((task,)),
            )
        )
        found = self._demand.accept(leases, requested_at) if leases else []
        others = [held for held in found if held.job.task != task]
        if others:
            self._deliver(others)
        return [held for held in found if held.job.task == task]

    async def _lease(self, limit: int, tasks: frozenset[str]) -> list[Lease]:
        """The jobs that arrive in time; none if interrupted."""
        request = LeaseRequest(
            queues=self._order(),
            limit=limit,
            worker=self._worker,
            wait_ms=self._wait_ms,
            tasks=tasks,
        )
        self._requested_at = boot_s()
        leasing = asyncio.ensure_future(self._engine.lease(request))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            # While the request is under way, deliver the jobs of the one before.
            await asyncio.sleep(0)
            self._deliver_leased()
            await asyncio.wait((leasing, interrupted), return_when=asyncio.FIRST_COMPLETED)
            if leasing.done():
                return leasing.result()
            leasing.cancel()
            await asyncio.wait((leasing,))
            return [] if leasing.cancelled() else leasing.result()
        except asyncio.CancelledError:
            self._deliver_leased()
            if not leasing.cancel() and leasing.exception() is None and leasing.result():
                # These arrived at the last moment: the stopping worker releases them.
                self._deliver(self._demand.accept(leasing.result(), self._requested_at))
            raise
        finally:
            interrupted.cancel()

    def _deliver_leased(self) -> None:
        leased, self._undelivered = self._undelivered, []
        if leased:
            self._deliver(leased)

    def _order(self) -> tuple[str, ...]:
        """Queues in random order: heavier ones are first more often, and every queue is first
        sometimes.
        """
        if len(self._queues) == 1:
            return tuple(self._queues)
        drawn = {name: random.random() ** (1 / weight) for name, weight in self._queues.items()}
        return tuple(sorted(drawn, key=drawn.__getitem__, reverse=True))


class DeadLetterIntake:
    """Leases dead letters for the handlers that the application has for them. Each runs in a child
    like a job whose payload is the dead letter. A few are leased at a time: at least one even while
    the worker is busy, since its jobs may never leave any room.
    """

    def __init__(
        self, engine: Engine, capacity: WorkerCapacity, deliver: Callable[[list[HeldLease]], None]
    ) -> None:
        self._engine = engine
        self._capacity = capacity
        self._deliver = deliver
        self._worker = ""
        self._queues: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._held: list[HeldLease] = []

    def serve(self, worker: str, tasks: Mapping[str, TaskInfo]) -> None:
        """Set the name to lease under, and the handlers."""
        queues = tuple(sorted(info.queue for info in tasks.values() if info.dead))
        if queues and not self._engine.traits.dead_leases:
            _log.error("this store cannot hand out dead letters: their handlers are not called")
            queues = ()
        self._worker, self._queues = worker, queues
        self._changed.set()

    async def run(self) -> None:
        """Lease until cancelled."""
        pause = _PAUSE_S_FIRST
        while True:
            self._held = [held for held in self._held if held.verdict is None and not held.lost]
            limit = self._limit()
            if limit <= 0 or not self._queues:
                self._changed.clear()
                await _wait_for(self._changed, _DEAD_PAUSE_S if self._queues else None)
                continue
            try:
                await self._lease(limit)
            except EngineClosed:
                raise
            except EngineError as error:
                pause = await _pause_after(error, "dead letters", pause)
                continue
            pause = _PAUSE_S_FIRST

    def _limit(self) -> int:
        if self._capacity.is_closed:
            return 0
        room = min(_DEAD_MAX, self._capacity.room("python"))
        return max(room, 1) - len(self._held)

    async def _lease(self, limit: int) -> None:
        queues = tuple(random.sample(self._queues, len(self._queues)))
        request = LeaseRequest(
            queues=queues, limit=limit, worker=self._worker, wait_ms=_WAIT_MS, dead=True
        )
        requested_at = boot_s()
        leases = await self._engine.lease(request)
        calls = {lease.id: _handler_call(lease, lease.job) for lease in leases}
        try:
            # Where jobs cannot be read, the lease has the failures, too.
            for lease in leases if self._engine.traits.inspect else ():
                job = await self._engine.get(lease.id)
                if job is not None and job.token == lease.token:
                    calls[lease.id] = _handler_call(lease, job)
        finally:
            # Also if this worker is stopped meanwhile: then it releases them.
            if calls:
                self._held += (accepted := self._capacity.accept([*calls.values()], requested_at))
                self._deliver(accepted)


async def _pause_after(error: EngineError, what: str, seconds: float) -> float:
    """Log why nothing was leased, and pause; returns the next pause."""
    _log.warning("cannot take %s from the store; trying again in %.1f s: %s", what, seconds, error)
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
    return min(seconds * 2, _PAUSE_S_MAX)


async def _wait_for(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _handler_call(lease: Lease, job: Job) -> Lease:
    """The lease of a dead letter as its handler is called: with the handler's task, and the dead
    letter as its payload."""
    call = replace(
        lease.job,
        task=dead_letter_task(lease.job.queue),
        payload=msgspec.msgpack.encode(dead_letter_of(job)),
        content_type=_MSGPACK,
    )
    return replace(lease, job=call)


class WorkerCapacity:
    """Compares the leased jobs with what the child pool can run. While it is closed, nothing is
    leased.
    """

    def __init__(
        self,
        options: WorkerOptions,
        held: HeldLeases,
        pool: ChildPool,
        group_order: GroupOrder,
    ) -> None:
        self.left_out: set[RunnerKind] = set()
        self.shut_out: frozenset[str] = frozenset()
        """Tasks with an open circuit breaker: only probes of them are leased."""
        self.takes_all = False
        """Set for an engine on which giving a job back counts as an attempt: then all tasks are
        leased, or none. A job whose kind has no room waits here."""
        self._options = options
        self._held = held
        self._pool = pool
        self._group_order = group_order
        self._ahead = {kind: LeaseAhead(options.prefetch) for kind in RUNNER_KINDS}
        self._shares = dict.fromkeys(RUNNER_KINDS, 0.0)
        self._unseen = dict.fromkeys(RUNNER_KINDS, 0)
        """Jobs leased since the last one of the kind."""
        self._tasks: dict[RunnerKind, frozenset[str]] = dict.fromkeys(RUNNER_KINDS, frozenset())
        self._batch_max = 1
        self._closed = False
        self._health = Health.HEALTHY
        self._broken = False

    def learn(self, tasks: Mapping[str, TaskInfo]) -> bool:
        """Set the tasks that may be leased; True if they changed."""
        tasks = {name: info for name, info in tasks.items() if not info.dead}
        self._batch_max = max((info.batch for info in tasks.values()), default=1)
        before = dict(self._tasks)
        for kind in RUNNER_KINDS:
            of_kind = (name for name, info in tasks.items() if self._pool.kind_of(info) == kind)
            self._tasks[kind] = frozenset(of_kind)
        return before != self._tasks

    def queues(self, tasks: Mapping[str, TaskInfo]) -> dict[str, int]:
        """The queues to lease from, by weight: those of the options, or of the tasks."""
        named = {info.queue: 1 for info in tasks.values() if not info.dead}
        return self._options.queues or {"default": 1, **named}

    def set_state(self, *, closed: bool, health: Health, broken: bool = False) -> bool:
        """`broken` concerns only the application; commands do not need it. True if the current
        request must be abandoned, because everything or nothing may be leased now: jobs it just
        leased are released.
        """
        before = (self._closed, self._broken, self._health is Health.UNHEALTHY)
        self._closed, self._health, self._broken = closed, health, broken
        return before != (closed, broken, health is Health.UNHEALTHY)

    def ended(self, kind: RunnerKind, count: int = 1) -> None:
        """Count jobs of this kind that ended."""
        self._ahead[kind].ended(count)

    def measure(self) -> None:
        """Called at every tick."""
        for ahead in self._ahead.values():
            ahead.measure()

    def wanted(self) -> tuple[int, frozenset[str]]:
        """The maximum number of jobs to lease, and their tasks: as many as do not overfill the kind
        with the least room, given the recent share of each kind.
        """
        rooms = {kind: self.room(kind) for kind in RUNNER_KINDS if self._tasks[kind]}
        open_ = {kind: free for kind, free in rooms.items() if free > 0}
        self.left_out = set(rooms) - set(open_)
        if not open_ or (self.takes_all and not self._may_take_all()):
            return 0, frozenset()
        likely = (free / self._expected_share(kind) for kind, free in open_.items())
        limit = max(1, min(int(min(likely)), max(open_.values()), bounds.BATCH_MAX))
        if self.takes_all:
            return limit, self.tasks
        tasks = frozenset().union(*(self._tasks[kind] for kind in open_)) - self.shut_out
        return (limit if tasks else 0), tasks

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset().union(*self._tasks.values())

    def _expected_share(self, kind: RunnerKind) -> float:
        """The share of the kind among the next jobs: the recent one, or one job in as many as came
        without any. Jobs without room go to other workers, unless giving them back counts as an
        attempt: then the share is not expected to be that small.
        """
        unseen = _UNSEEN_MIN if self.takes_all else max(_UNSEEN_MIN, self._unseen[kind])
        return max(self._shares[kind], 1 / unseen)

    def _may_take_all(self) -> bool:
        """Whether a job of any task can run here soon."""
        if not self._pool.is_ready or self._broken or self.shut_out:
            return False
        return all(
            self._held.active[kind] - self._pool.capacity_of(kind) - self.ahead(kind)
            < _OVERFILL_MAX
            for kind in RUNNER_KINDS
        )

    @property
    def is_closed(self) -> bool:
        """Whether nothing of the application may be leased."""
        return self._closed or self._broken

    def has_room(self, task: str) -> bool:
        return any(self.room(kind) > 0 for kind in RUNNER_KINDS if task in self._tasks[kind])

    def room(self, kind: RunnerKind) -> int:
        """Free slots plus the jobs to lease ahead; fewer in poor health, 0 while closed."""
        if self._closed or (self._broken and kind in ("python", "solo")):
            return 0
        busy = self._held.active[kind] - self._group_order.waiting(kind)
        free = self._pool.capacity_of(kind) + self.ahead(kind) - busy
        free = min(free, _HELD_MAX - len(self._held))
        if kind == "python" and self._held.active["solo"] >= _ALONE_MAX:
            free = 0
        return usable_slots(max(0, free), self._health)

    def ahead(self, kind: RunnerKind) -> int:
        """The number of jobs to lease beyond the free slots. A batch task needs a whole batch."""
        return max(self._ahead[kind].count(), self._batch_max - 1 if kind == "python" else 0)

    def accept(self, leases: list[Lease], requested_at: float) -> list[HeldLease]:
        """Hold these leases; returns the jobs that may start, without those that wait for another
        of their group."""
        now = boot_s()
        leased = [HeldLease(lease, requested_at, self._kind_of(lease.job), now) for lease in leases]
        kinds = self._held.add(leased)
        for kind, share in self._shares.items():
            self._shares[kind] = share + (kinds[kind] / len(leased) - share) * 0.3
            self._unseen[kind] = 0 if kinds[kind] else self._unseen[kind] + len(leased)
        return self._group_order.add(leased)

    def _kind_of(self, job: Job) -> RunnerKind:
        if job.task in self._tasks["python"] and not job.runs_alone:
            return "python"
        info = self._pool.tasks.get(job.task) or TaskInfo(job.task)
        return self._pool.kind_of(info, alone=job.runs_alone)


class LeaseAhead:
    """The number of jobs to lease ahead, from the rate at which jobs ended recently; at most
    `most`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended = 0
        self._rate = 0.0
        self._measured_at = monotonic()

    def ended(self, count: int = 1) -> None:
        self._ended += count

    def measure(self) -> None:
        now = monotonic()
        seconds = max(now - self._measured_at, 0.001)
        rate, self._ended, self._measured_at = self._ended / seconds, 0, now
        self._rate += (rate - self._rate) * 0.4

    def count(self) -> int:
        return min(self._most, int(self._rate * 0.1))


class TaskLimits:
    """Sets the limits that tasks declare in code, before any job of them is leased."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._set: set[tuple[str, Limit]] = set()

    def are_set(self, tasks: Mapping[str, TaskInfo]) -> bool:
        return all(self._set.issuperset(_declared(info)) for info in tasks.values())

    async def set(self, tasks: Mapping[str, TaskInfo]) -> bool:
        """Set missing limits; False if none were missing."""
        by_queue: dict[str, list[Limit]] = {}
        for info in tasks.values():
            for queue, limit in _declared(info):
                if (queue, limit) not in self._set:
                    by_queue.setdefault(queue, []).append(limit)
        for queue, missing in sorted(by_queue.items()):
            await set_task_limits(self._engine, queue, missing)
            self._set.update((queue, limit) for limit in missing)
        return bool(by_queue)


def _declared(info: TaskInfo) -> set[tuple[str, Limit]]:
    return {(info.queue, limit) for limit in info.limits}
