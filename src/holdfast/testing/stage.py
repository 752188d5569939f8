"""Stage: the engine host of an application in a test mode, a memory store with a manual clock.

Its calls never wait, so they serve blocking and async tests, on any thread and in any event loop.
`drain` runs due jobs through the real lifecycle, one after the other, in the test's own thread, as
a worker's child would. Only timeouts of blocking handlers and crashes of processes are not
simulated.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.app.engine_host import EngineHost, Make
from holdfast.core import checks, retry_policy
from holdfast.core.model import JobFilter, Lease, LeaseRequest, NewJob, Note, Queue, Receipt, State
from holdfast.core.verdict import Cancel, Complete, Outcome, Release, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.memory.lease import LeaseSelection
from holdfast.engines.observed import Observed
from holdfast.errors import ResultTimeout, UsageError
from holdfast.ops.queues import queue_settings
from holdfast.ops.schedules.declared import save_schedules
from holdfast.testing.clock import ManualClock
from holdfast.tracing import traced
from holdfast.upkeep import Scheduler
from holdfast.worker.child.attempt import Attempt, attempt_class
from holdfast.worker.child.handlers import Handler
from holdfast.worker.child.printed import CURRENT
from holdfast.worker.supervisor.dispatch import call_job, shorter_timeout
from holdfast.worker.supervisor.held_leases import by_group
from holdfast.worker.supervisor.settle import after_refusal, keep_output, note_of, verdict_on
from holdfast.worker.wire import AskedCancel, Ending

WORKER = "test"
_ATTEMPTS_MAX, _ATTEMPTS_OF_ONE_MAX = 100_000, 100
_PAGE = 1_000

Answer = TypeVar("Answer")

_log = logging.getLogger("holdfast.testing")


def driven(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of a coroutine that never waits, although it may let others run in between."""
    try:
        while coroutine.send(None) is None:
            pass
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer
    coroutine.close()
    raise AssertionError("a call to the memory store waited")


class StagedEngine(MemoryEngine):
    """A memory engine that declares missing queues, so that a unit test need not."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        await self._declare_missing(jobs)
        return await super().enqueue(jobs)

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        # It never waits: time passes only when the test advances the clock.
        checks.check_request(request)
        return LeaseSelection(self._store, request).run()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        for settlement in settlements:
            if isinstance(settlement.verdict, Complete):
                await self._declare_missing(settlement.verdict.then)
        return await super().settle(settlements)

    async def _declare_missing(self, jobs: Sequence[NewJob]) -> None:
        for name in {job.queue for job in jobs}:
            await self.declare(Queue(name=name), instead_of=None)

    def within(self, connection: object) -> StagedWithin:
        return StagedWithin(self)


class StagedWithin:
    """Enqueues at once, whether or not the caller's transaction commits."""

    def __init__(self, engine: StagedEngine) -> None:
        self._engine = engine

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return driven(self._engine.enqueue(jobs))


class Stage(EngineHost):
    """The host of an application in a test mode; opening and closing it has no effect."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.clock: ManualClock = ManualClock()
        store = StagedEngine(clock=self.clock)
        driven(store.open())
        super().__init__(store, traced(Observed(store, app.listeners)))
        self.wall_ms: Callable[[], int] = self.clock.wall_ms
        self._turn = threading.RLock()

    @property
    def inherited(self) -> bool:
        return False

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def run(self, make: Make[Answer], instead: str) -> Answer:
        with self._turn:
            return driven(make())

    async def arun(self, make: Make[Answer]) -> Answer:
        with self._turn:
            return await make()

    async def pause(self, seconds: float) -> None:
        raise ResultTimeout(
            "the job has not ended, and this test mode does not run jobs automatically: call"
            " drain(), after advance() if the job is delayed"
        )

    def ask(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        with self._turn:
            return driven(coroutine)

    def advance(self, ms: int) -> None:
        """Let time pass, and enqueue the ticks of schedules in the meantime, each at its time."""
        declared = self.app.declared_schedules
        self.ask(save_schedules(self.engine, declared, 0, self.wall_ms))
        scheduler = Scheduler(self.engine, self.wall_ms)
        end = self.wall_ms() + ms
        while True:
            next_ms = self.ask(scheduler.once())
            left = end - self.wall_ms()
            if left == 0:
                return
            self.clock.advance(left if next_ms is None else min(next_ms, left))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """The number of attempts, and how they ended."""

    attempts: int = 0
    done: int = 0
    retried: int = 0
    released: int = 0
    dead: int = 0
    cancelled: int = 0

    def __add__(self, other: DrainResult) -> DrainResult:
        return DrainResult(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )


Steps: TypeAlias = Generator[Attempt, "tuple[Ending, ...]", DrainResult]
"""A generator that yields each attempt to run and receives its endings."""


def drain(stage: Stage, *, jump: bool = False) -> DrainResult:
    """Run all due jobs; with `jump`, advance the clock to those that are not due yet."""
    steps = _steps(stage, jump=jump)
    try:
        attempt = next(steps)
        while True:
            attempt = steps.send(_run(attempt))
    except StopIteration as stop:
        drained: DrainResult = stop.value
        return drained


async def adrain(stage: Stage, *, jump: bool = False) -> DrainResult:
    """`drain` on the running loop, so that async handlers can share the test's resources."""
    steps = _steps(stage, jump=jump)
    try:
        attempt = next(steps)
        while True:
            attempt = steps.send(await _arun(attempt))
    except StopIteration as stop:
        drained: DrainResult = stop.value
        return drained


def _steps(stage: Stage, *, jump: bool) -> Steps:
    counts: Counter[str] = Counter()
    of_one: Counter[str] = Counter()
    while True:
        _expire(stage)
        leases = _lease(stage)
        if not leases:
            if jump and _jump(stage):
                continue
            return DrainResult(**counts)
        handler = stage.app.handlers[leases[0].job.task]
        attempt = _attempt(stage, handler, leases)
        endings = yield attempt
        notes = _notes(attempt, len(leases))
        for lease, ending, note in zip(leases, endings, notes, strict=True):
            counts["attempts"] += 1
            counts[_settle(stage, lease, ending, note)] += 1
            of_one[lease.id] += 1
        if of_one[leases[0].id] > _ATTEMPTS_OF_ONE_MAX or counts["attempts"] > _ATTEMPTS_MAX:
            raise UsageError(
                f"jobs are still due after {counts['attempts']} attempts: job {leases[0].id} of "
                f"{handler.name} is retried forever, or each job enqueues the next"
            )


def _lease(stage: Stage) -> list[Lease]:
    tasks = stage.app.tasks
    queues = tuple(_queues(stage))
    if not tasks:
        return []
    one = LeaseRequest(queues=queues, tasks=frozenset(tasks), worker=WORKER)
    leases = stage.ask(stage.engine.lease(one))
    if leases and (batch := tasks[leases[0].job.task].batch) > 1:
        alike = replace(
            one,
            queues=(leases[0].job.queue,),
            tasks=frozenset({leases[0].job.task}),
            limit=batch - 1,
        )
        leases += stage.ask(stage.engine.lease(alike))
    return _one_of_each_group(stage, leases)


def _one_of_each_group(stage: Stage, leases: list[Lease]) -> list[Lease]:
    """As in a worker, jobs of a strict group that were leased together run one after the other."""
    groups = by_group(leases, lambda lease: lease.job)
    release = Release("an earlier job of its group goes first", unstarted=True)
    behind = [Settlement(lease=lease, verdict=release) for group in groups for lease in group[1:]]
    if behind:
        stage.ask(stage.engine.settle(behind))
    return [group[0] for group in groups]


def _expire(stage: Stage) -> None:
    """Bury expired jobs, as the reaper does. Leases are not reaped: no worker dies here."""
    for job in stage.ask(stage.engine.expired(_PAGE)).jobs:
        wanted = JobFilter(ids=(job.id,), expired=True)
        stage.ask(stage.engine.amend(wanted, retry_policy.after_expiry(job), limit=1))


def _jump(stage: Stage) -> bool:
    """Advance the clock until a job of a known task is due or a rate allows a start; False if time
    alone makes no job runnable."""
    now = stage.clock.wall_ms()
    wanted = JobFilter(states=(State.WAITING,))
    page = stage.ask(stage.engine.find(wanted, limit=_PAGE))
    known = [job for job in page.jobs if job.task in stage.app.tasks]
    ahead_ms = [job.due_at - now for job in known if job.due_at > now]
    for job in known:
        waits = stage.ask(stage.engine.waits(job.id)) if job.due_at <= now else None
        ahead_ms += [slot.free_ms for slot in waits.slots if slot.free_ms] if waits else []
    if not ahead_ms:
        return False
    stage.clock.advance(min(ahead_ms))
    return True


def _attempt(stage: Stage, handler: Handler, leases: list[Lease]) -> Attempt:
    queues = _queues(stage)
    given = tuple(call_job(lease, queues[lease.job.queue]) for lease in leases)
    limits_ms = (retry_policy.timeout_ms(queues[lease.job.queue], lease.job) for lease in leases)
    return attempt_class()(handler, given, timeout_ms=reduce(shorter_timeout, limits_ms))


def _notes(attempt: Attempt, count: int) -> list[Note]:
    notes = [Note()] * count
    for reported in attempt.take_notes():
        notes[reported.index] = Note(progress=reported.progress, checkpoint=reported.checkpoint)
    return notes


def _settle(stage: Stage, lease: Lease, ending: Ending, note: Note) -> str:
    """Settle one attempt; returns the name of its count in `DrainResult`."""
    engine = stage.engine
    queue = _queues(stage)[lease.job.queue]
    verdict = verdict_on(ending, queue, lease.job, random.random())
    if isinstance(ending, AskedCancel):
        act = Cancel(by=WORKER, text=ending.text)
        stage.ask(engine.amend(JobFilter(ids=(lease.id,)), act, limit=1))
    failure = getattr(ending, "failure", None)
    if failure is not None:
        _log.warning("job %s of %s failed: %s", lease.id, lease.job.task, failure.trace or failure)
    output = note_of(ending)
    full_note = note if output is None else replace(note, output=output.output)
    verdict, kept = keep_output(verdict, full_note, full_note.output, lease.job)
    settlement = Settlement(lease=lease, verdict=verdict, note=kept)
    [outcome] = stage.ask(engine.settle([settlement]))
    if outcome is Outcome.REFUSED:
        again = after_refusal(queue, lease.job, "the verdict was not accepted", random.random())
        stage.ask(engine.settle([Settlement(lease=lease, verdict=again)]))
    job = stage.ask(engine.get(lease.id))
    if job is None or job.state.finished:
        return "done" if job is None else str(job.state)
    return "released" if job.attempt < lease.job.attempt else "retried"


def _queues(stage: Stage) -> dict[str, Queue]:
    return stage.ask(queue_settings(stage.engine))


async def _arun(attempt: Attempt) -> tuple[Ending, ...]:
    """Run an attempt in this task, as the current one."""
    current = CURRENT.set(attempt)
    try:
        return await attempt.run_async() if attempt.handler.is_async else attempt.run()
    finally:
        CURRENT.reset(current)


def _run(attempt: Attempt) -> tuple[Ending, ...]:
    """Run an attempt in this thread; a coroutine runs in another if a loop is running here."""
    context = contextvars.copy_context()
    if not attempt.handler.is_async:
        context.run(CURRENT.set, attempt)
        return context.run(attempt.run)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return context.run(asyncio.run, _arun(attempt))
    endings: list[tuple[Ending, ...]] = []

    def beside() -> None:
        endings.append(context.run(asyncio.run, _arun(attempt)))

    thread = threading.Thread(target=beside, name="holdfast-test")
    thread.start()
    thread.join()
    return endings[0]
