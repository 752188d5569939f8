"""One worker: start → work → drain → stop. It owns the engine and connects the stages: intake
leases → dispatch gives calls to children → the children answer with endings → settle. Its children
own nothing: killed at any instant, they leave only calls that the supervisor knows. If it is killed
itself, its leases expire and the jobs return to their queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import failures
from holdfast.core.model import COMMAND_TASK, WEBHOOK_TASK, Failure, Queue
from holdfast.core.text import counted
from holdfast.core.verdict import Release, Retry
from holdfast.core.workers import (
    TASKS_SHOWN,
    TaskRecord,
    WorkerOrder,
    WorkerRecord,
    health,
    worker_queue,
)
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, EngineClosed, EngineError, Forbidden, UsageError
from holdfast.ops.queues import queue_settings
from holdfast.ops.schedules.declared import (
    DeclaredSchedules,
    describe_sync,
    save_schedules,
)
from holdfast.ops.settings import save_declared
from holdfast.process import boot_s, wall_ms
from holdfast.worker import processes
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.breaker_check import BreakerActions, BreakerCheck
from holdfast.worker.supervisor.child_pool import TICK_S, ChildPool
from holdfast.worker.supervisor.child_process import line_writer
from holdfast.worker.supervisor.dispatch import UNSTARTED_S
from holdfast.worker.supervisor.health import STALL_MS, OutcomeWindow, find_stall
from holdfast.worker.supervisor.held_leases import (
    GroupOrder,
    HeldLease,
    HeldLeases,
    Renewer,
    RunnerKind,
)
from holdfast.worker.supervisor.intake import (
    DeadLetterIntake,
    Intake,
    TaskLimits,
    WorkerCapacity,
)
from holdfast.worker.supervisor.registration import Registration, start_ticks
from holdfast.worker.supervisor.settle import EndedBatch, JobLog, Settler, after_death
from holdfast.worker.wire import BUILT_IN_TASKS, TaskInfo

_log = logging.getLogger("holdfast.worker")

_ORDERS_S = 1.0
_QUEUES_S = 5.0
_UNREADY_S = 5.0
"""A worker that could not run Python for this long releases its jobs to other workers."""
_LAST_SETTLE_S = 10.0
_BANNER_TASKS = 20


class Supervisor:
    """`make_pool` makes the child pool, given its listener and the settings of a queue by name."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        id: str,
        make_pool: Callable[[Supervisor, Callable[[str], Queue]], ChildPool],
    ) -> None:
        self.id = id
        self.tell_ready: Callable[[str], None] = lambda _name: None
        self._engine = engine
        self._options = options
        self._queues: dict[str, Queue] = {}
        self._held = HeldLeases()
        self._outcomes = OutcomeWindow()
        self._group_order = GroupOrder()
        self._pool = make_pool(self, self._queue_of)
        self._capacity = WorkerCapacity(options, self._held, self._pool, self._group_order)
        self._capacity.takes_all = not engine.traits.refunds
        self._intake = Intake(engine, self._capacity, self._admit)
        self._dead_intake = DeadLetterIntake(engine, self._capacity, self._admit)
        self._breakers = BreakerCheck(
            engine,
            id,
            BreakerActions(
                self._capacity.has_room,
                self._intake.lease_one,
                self._pool.add,
                self._release,
                self._shut_out,
            ),
            options.webhook_breaker if options.webhooks else None,
        )
        self._registration = Registration(engine, self._facts)
        self._renewer = Renewer(
            engine, self._held, self._lose, self._cancel, self._pool.update_boards
        )
        self._started_at = wall_ms()
        self._start_ticks = start_ticks(os.getpid()) or 0
        self._order = WorkerOrder()
        self._blocked = ""
        self._fatal: ConfigError | None = None
        self._changed = asyncio.Event()
        self._learned = asyncio.Event()
        self._task_limits = TaskLimits(self._engine)
        self._declared: dict[str, TaskRecord | None] = {}
        self._schedules = b""
        self._draining = asyncio.Event()
        self._ending = asyncio.Event()
        self._ends_at: float | None = None
        self._settler: Settler
        write = line_writer(options.log_format)
        self._job_log = JobLog(write) if options.job_lines else None

    @property
    def name(self) -> str:
        return self._registration.name

    @property
    def banner(self) -> str:
        """Its tasks, queues and concurrency."""
        infos = self._pool.tasks
        # The child that runs commands may report later than those of the application.
        switched = {COMMAND_TASK: self._options.commands, WEBHOOK_TASK: self._options.webhooks}
        built_in = {name for name, is_on in switched.items() if is_on}
        tasks = sorted(built_in | {name for name, info in infos.items() if not info.dead})
        more = [f"{len(tasks) - _BANNER_TASKS} more"] if len(tasks) > _BANNER_TASKS else []
        dead = sorted(info.queue for info in infos.values() if info.dead)
        return (
            f"worker {self.name} runs {', '.join([*tasks[:_BANNER_TASKS], *more]) or 'nothing'}"
            f" from {_queues_text(sorted(self._capacity.queues(infos)))},"
            + (f" handles the dead letters of {_queues_text(dead)}," if dead else "")
            + f" up to {counted(self._pool.capacity, 'job')} at a time"
        )

    async def run(self, started: Callable[[Supervisor], None] | None = None) -> None:
        """Work until drained or stopped. `started` is called before the first lease."""
        name = await self._registration.enter(self._options.name)
        for dead in await self._registration.dead_here():
            # An earlier start may have left processes behind, if its launcher died with it.
            processes.kill_marked({b"HOLDFAST_WORKER_ID": dead.encode()})
        await self._load_queues()
        # Before anything is leased: the worker may have been cordoned before it was restarted.
        await self._read_order()
        self._settler = Settler(self._engine, self._held, self._queue_of, self._settled, name)
        if started is not None:
            started(self)
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(loop)
                for loop in (
                    self._settler.run(),
                    self._renewer.run(),
                    self._tick(),
                    every(_ORDERS_S, self._read_order),
                    every(_ORDERS_S, self._breakers.sync, self._breakers.sooner),
                    every(_QUEUES_S, self._load_queues, self._learned),
                    every(self._options.heartbeat_ms / 1000, self._heartbeat, self._changed),
                )
            ]
            intakes = [
                group.create_task(self._intake.run(), name="intake"),
                group.create_task(self._dead_intake.run(), name="dead letter intake"),
            ]
            await self._pool.start(name)
            await self._draining.wait()
            for intake in intakes:
                intake.cancel()
            await asyncio.wait(intakes)
            await self._finish()
            for loop in loops:
                loop.cancel()
        with suppress(EngineError):
            await self._registration.leave()
        if self._fatal is not None:
            raise self._fatal

    def drain(self, *, grace_ms: int | None = None, for_ever: bool = False) -> None:
        """Stop leasing, finish running jobs within the grace period, then end."""
        if for_ever:
            self._ends_at = None
        else:
            grace_ms = self._options.grace_ms if grace_ms is None else grace_ms
            self._ends_at = monotonic() + grace_ms / 1000
        self._draining.set()

    def stop(self) -> None:
        """Release running jobs and end at once."""
        self._draining.set()
        self._ending.set()

    def ended(self, ended: list[EndedBatch]) -> None:
        """These jobs ended in a child: settle them, and lease as many others."""
        lost = [held for jobs, _ in ended for held in jobs if held.lost]
        if lost:
            self._held.drop(*lost)
            self._intake.wake()
            ended = [
                EndedBatch(still_held, ending)
                for jobs, ending in ended
                if (still_held := [held for held in jobs if not held.lost])
            ]
        self._settler.add_ended(ended)
        self._outcomes.record(ended)
        if self._breakers.is_used:
            self._breakers.record(ended)
        for jobs, _ in ended:
            self._capacity.ended(jobs[0].kind, len(jobs))
            self._intake.freed(jobs[0].kind)

    def crashed(self, jobs: list[HeldLease], failure: Failure) -> None:
        """A child died while these jobs ran in it."""
        alone = len(jobs) == 1
        for held in jobs:
            if held.lost:
                self._held.drop(held)
                continue
            queue = self._queue_of(held.job.queue)
            verdict = after_death(queue, held.job, failure, random.random(), alone=alone)
            self._outcomes.failed += 1
            if alone:
                self._breakers.crashed(held, failure)
            self._settler.add(held, verdict)
            self._capacity.ended(held.kind)
            self._intake.freed(held.kind)

    def learned(self, tasks: dict[str, TaskInfo]) -> None:
        """The children can run these tasks now."""
        self._serve(tasks)
        self._breakers.learn(tasks)
        self._learned.set()
        self._changed.set()
        if self._options.target is None or set(tasks) - BUILT_IN_TASKS:
            self.tell_ready(self.name)

    def broken(self, failure: Failure) -> None:
        """The application cannot be imported. If it never could, that is a configuration error. If
        it could before, it is probably being changed: the import is retried while other workers run
        the jobs.
        """
        if self._options.target and set(self._pool.tasks) <= BUILT_IN_TASKS:
            self._fatal = ConfigError(
                f"{self._options.target} cannot be imported: {failures.import_error(failure)}"
            )
            self.stop()
        self._check_health()

    def _admit(self, leased: list[HeldLease]) -> None:
        """Dispatch leased jobs, unless a circuit breaker is open."""
        if self._breakers.is_used:
            self._breakers.admit(leased)
        else:
            self._pool.add(leased)

    def _release(self, held: HeldLease, release: Release) -> None:
        self._settler.add(held, release)
        self._intake.freed(held.kind)

    def _settled(self, jobs: list[HeldLease]) -> None:
        """The engine has answered for these jobs."""
        if self._job_log is not None:
            self._job_log.add(jobs)
        self._start_next(jobs)
        self._intake.wake()

    def _start_next(self, jobs: list[HeldLease]) -> None:
        """Start or release the jobs that were leased together with one of these and are in its
        group.
        """
        for held in jobs if self._group_order else ():
            step = self._group_order.settled(held, wall_ms())
            for each in step.release:
                self._release(each, Release("the job before it runs again", unstarted=True))
            if step.start is not None:
                step.start.came_at = boot_s()
                self._admit([step.start])

    def _shut_out(self, tasks: frozenset[str]) -> None:
        """Stop leasing jobs of these tasks; release those that have not started, with a refund."""
        new = tasks - self._capacity.shut_out
        self._capacity.shut_out = tasks
        self._intake.interrupt()
        for held in self._pool.queue.remove_tasks(new):
            self._release(held, Release("the circuit breaker of its task is open", unstarted=True))

    def _lose(self, held: HeldLease) -> None:
        _log.warning("this worker no longer holds job %s: stopping its run", held.job.id)
        self._pool.cancel(held, lost=True)
        if held.call == 0:
            self._held.drop(held)
        self._intake.freed(held.kind)
        self._start_next([held])

    def _cancel(self, held: HeldLease) -> None:
        if held.call:
            self._pool.cancel(held)
        elif self._pool.queue.remove(held) or self._group_order.is_behind(held):
            self._settler.add(held, Retry(0))
            self._intake.freed(held.kind)
        else:
            # Not queued yet: the next renewal brings the request again.
            held.cancel_known = False

    def _force(self, ids: frozenset[str]) -> None:
        """End the running attempts of these jobs at once. If a job's cancel request is not known
        yet, it arrives with the next renewal."""
        for held in self._held.all() if ids else ():
            if held.job.id in ids and not held.lost and held.verdict is None:
                held.forced = True
                if held.cancel_known:
                    self._cancel(held)

    async def _finish(self) -> None:
        """Drain for the grace period, release the rest, settle all verdicts."""
        waiting = (*self._pool.close(), *self._breakers.close(), *self._group_order.clear())
        for held in waiting:
            self._settler.add(held, Release("the worker is stopping", unstarted=True))
        self._changed.set()
        while self._held.active_count and not self._is_over():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._ending.wait()
        await self._pool.stop("the worker stopped before it ended")
        await self._settle_last()

    async def _settle_last(self) -> None:
        """Settle for the rest of the grace period, or a short while if that is over, even if the
        engine is unreachable.
        """
        at_least = monotonic() + _LAST_SETTLE_S
        while self._settler.backlog:
            if self._is_over() and monotonic() >= at_least:
                lost = counted(self._settler.backlog, "job")
                _log.error("could not store how %s ended: other workers will run them again", lost)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._settler.drain()

    def _is_over(self) -> bool:
        """True if the grace period is over, or the worker was stopped."""
        late = self._ends_at is not None and monotonic() >= self._ends_at
        return late or self._ending.is_set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._capacity.measure()
            self._pool.tick()
            if self._job_log is not None:
                self._job_log.flush()
            self._release_excess()
            self._outcomes.recover()
            self._check_health()

    def _check_health(self) -> None:
        """Adjust what may be leased to the worker's health."""
        # Without `blocked`: a worker that stopped leasing because of it would never recover.
        state, _ = health(replace(self._facts(), blocked=""), 0)
        closed = self._order.cordoned or self._draining.is_set()
        broken = self._pool.broken is not None or self._pool.unready_s > _UNREADY_S
        if self._capacity.set_state(closed=closed, health=state, broken=broken):
            self._intake.interrupt()

    def _release_excess(self) -> None:
        """Release jobs that were leased ahead while jobs ended faster, except those that must run
        alone: they would be leased again at once, and have a limited number of releases. If the
        application cannot start, all go to other workers.
        """
        queue = self._pool.queue
        if self._pool.unready_s > _UNREADY_S:
            text = "the application of its worker cannot start"
            for held in (*queue.remove_excess("python", 0), *queue.remove_excess("solo", 0)):
                self._settler.add(held, Release(text, unstarted=True))
        kinds: tuple[RunnerKind, ...] = ("python", "command", "webhook")
        for kind in kinds:
            most = 2 * self._capacity.ahead(kind) + self._pool.capacity_of(kind)
            for held in queue.remove_excess(kind, most):
                text = "leased ahead by a worker that is now busy"
                self._settler.add(held, Release(text, unstarted=True))
        for held in queue.remove_older(boot_s() - UNSTARTED_S):
            text = "its worker leased it but could not start it in time"
            self._settler.add(held, Release(text, unstarted=True))

    async def _heartbeat(self) -> None:
        self._blocked = await self._find_stall()
        await self._registration.heartbeat()
        if self._pool.tasks:
            # The heartbeat may have taken another name.
            self._serve(self._pool.tasks)
        if random.random() < 0.05:
            await self._registration.tidy()

    async def _find_stall(self) -> str:
        if self._pool.broken is not None:
            why = failures.import_error(self._pool.broken)
            return f"its application cannot be imported: {why}"
        if (monotonic() - self._intake.leased_at) * 1000 < STALL_MS:
            return ""
        queues = {worker_queue(self.name), *self._capacity.queues(self._pool.tasks)}
        known = {name for name, info in self._pool.tasks.items() if not info.dead}
        tasks = known - self._capacity.shut_out
        return await find_stall(self._engine, queues, tasks)

    async def _read_order(self) -> None:
        """Read and follow the orders of operators to this worker."""
        before, self._order = self._order, await self._registration.order()
        new = self._order.ending and _ending(before) != _ending(self._order)
        if new and self._order.ending_id == self.id:
            _log.info("%s, as requested by %s", self._order.ending, self._order.by or "an operator")
            if self._order.ending == "drain":
                self.drain(for_ever=True)
            else:
                self.drain(grace_ms=self._order.grace_ms)
        self._force(self._order.forced_since(before))
        if self._order.renew != before.renew:
            self._renewer.at_once()
        if self._order.cordoned != before.cordoned:
            self._changed.set()
        self._check_health()

    async def _load_queues(self) -> None:
        """Read the settings of all queues. Queues that the tasks name are created, so that their
        jobs and follow-up jobs can be enqueued.
        """
        self._queues = await queue_settings(self._engine)
        named = {info.queue for info in self._pool.tasks.values()} | {*self._options.queues}
        # `default` always exists, although a token may not be allowed to see it.
        missing = sorted(named - set(self._queues) - {"default"})
        for name in missing:
            await self._engine.declare(Queue(name=name), instead_of=None)
        limits_set = await self._task_limits.set(self._pool.tasks)
        if missing or limits_set:
            self._queues = await queue_settings(self._engine)
        if limits_set:
            self._serve(self._pool.tasks)
        await self._save_declared(self._pool.tasks)
        await self._save_schedules(self._pool.schedules)

    async def _save_declared(self, tasks: dict[str, TaskInfo]) -> None:
        """Store the options that the tasks declare, once for each start or change."""
        names = sorted(set(tasks) - BUILT_IN_TASKS)[:TASKS_SHOWN]
        declared = {name: tasks[name].declared for name in names}
        if declared == self._declared:
            return
        try:
            await save_declared(self._engine, declared)
        except Forbidden as error:
            _log.info("the options of tasks are not published for other programs: %s", error)
        self._declared = declared

    async def _save_schedules(self, schedules: bytes) -> None:
        """Store the schedules that the application declares, once for each start or change."""
        if schedules == self._schedules:
            return
        # The start of the worker counts, unless its children import newer code later.
        started_at = wall_ms() if self._schedules else self._started_at
        declared = msgspec.msgpack.decode(schedules, type=DeclaredSchedules)
        try:
            sync = await save_schedules(self._engine, declared, started_at, wall_ms)
        except UsageError as error:
            if declared.schedules:
                _log.warning("the schedules of %s are not stored: %s", declared.program, error)
        else:
            for level, line in describe_sync(sync, declared.program):
                _log.log(level, "%s", line)
        self._schedules = schedules

    def _serve(self, tasks: dict[str, TaskInfo]) -> None:
        """Lease jobs of these tasks, once all limits that they declare are set. A request for only
        some of the tasks would soon be replaced by one for all, and its jobs released.
        """
        if self._task_limits.are_set(tasks):
            if self._capacity.learn(tasks):
                self._intake.interrupt()
            queues = self._capacity.queues(tasks)
            self._intake.serve(self.name, {worker_queue(self.name): 1, **queues})
            self._dead_intake.serve(self.name, tasks)

    def _queue_of(self, name: str) -> Queue:
        """Settings of a queue; the defaults until a new one has been read."""
        return self._queues.get(name) or Queue(name=name)

    def _facts(self) -> WorkerRecord:
        running = self._pool.running()
        return WorkerRecord(
            name=self._registration.name,
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            start_ticks=self._start_ticks,
            version=self._options.version,
            queues=self._capacity.queues(self._pool.tasks),
            tasks=tuple(sorted(self._pool.tasks)[:TASKS_SHOWN]),
            labels=self._options.labels,
            capacity=self._pool.capacity,
            running=running,
            prefetched=max(0, self._held.active_count - running),
            done=self._outcomes.done,
            failed=self._outcomes.failed,
            consecutive_failures=self._outcomes.consecutive_failures,
            failure_rate=round(self._outcomes.failure_rate, 3),
            blocked=self._blocked,
            cordoned=self._order.cordoned,
            stopping=self._draining.is_set(),
        )


def _queues_text(names: list[str]) -> str:
    return f"{'queue' if len(names) == 1 else 'queues'} {', '.join(names)}"


def _ending(order: WorkerOrder) -> tuple[str, str, int | None]:
    return order.ending, order.ending_id, order.grace_ms


async def every(
    seconds: float,
    act: Callable[[], Coroutine[Any, Any, None]],
    sooner: asyncio.Event | None = None,
) -> None:
    """Repeat until cancelled; after an error of the engine, continue at the next turn."""
    sooner = sooner or asyncio.Event()
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await sooner.wait()
        sooner.clear()
        try:
            await act()
        except EngineClosed:
            raise
        except EngineError as error:
            _log.warning("%s", error)
