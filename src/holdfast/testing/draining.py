"""Runs what is due through the real lifecycle, one call after the other, in the test's own thread.

Handlers run as a worker's child would run them, and their endings become the same verdicts; only
timeouts of blocking handlers and deaths of processes do not happen here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, fields
from functools import reduce
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.core import policy
from holdfast.core.model import JobFilter, Lease, LeaseRequest, Note, Queue, State
from holdfast.core.verdict import Cancel, Outcome, Release, Settlement
from holdfast.errors import UsageError
from holdfast.testing.stage import Stage
from holdfast.worker.attempt import Attempt
from holdfast.worker.calls import given_of, shorter
from holdfast.worker.handlers import Handler
from holdfast.worker.sequences import by_group
from holdfast.worker.verdicts import after_refusal, note_of, verdict_on
from holdfast.worker.wire import AskedCancel, Ending

WORKER = "test"
_ATTEMPTS_MAX, _ATTEMPTS_OF_ONE_MAX = 100_000, 100
_PAGE = 1_000

_log = logging.getLogger("holdfast.testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """How many attempts there were, and what each came to."""

    attempts: int = 0
    done: int = 0
    retried: int = 0
    released: int = 0
    dead: int = 0
    cancelled: int = 0

    def __add__(self, other: Drained) -> Drained:
        return Drained(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )


Steps: TypeAlias = Generator[Attempt, "tuple[Ending, ...]", Drained]
"""Gives each attempt that is to be run, and takes its endings."""


def drain(stage: Stage, *, jump: bool = False) -> Drained:
    steps = _steps(stage, jump=jump)
    try:
        attempt = next(steps)
        while True:
            attempt = steps.send(_run(attempt))
    except StopIteration as stop:
        drained: Drained = stop.value
        return drained


async def adrain(stage: Stage, *, jump: bool = False) -> Drained:
    """The same on the running loop, where async handlers share what the test has opened."""
    steps = _steps(stage, jump=jump)
    try:
        attempt = next(steps)
        while True:
            is_async = attempt.handler.is_async
            attempt = steps.send(await attempt.run_async() if is_async else attempt.run())
    except StopIteration as stop:
        drained: Drained = stop.value
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
            return Drained(**counts)
        handler = stage.app.tasks[leases[0].job.task].handler
        attempt = _attempt(stage, handler, leases)
        endings = yield attempt
        notes = _notes(attempt, len(leases))
        for lease, ending, note in zip(leases, endings, notes, strict=True):
            counts["attempts"] += 1
            counts[_settle(stage, lease, ending, note)] += 1
            of_one[lease.id] += 1
        if of_one[leases[0].id] > _ATTEMPTS_OF_ONE_MAX or counts["attempts"] > _ATTEMPTS_MAX:
            raise UsageError(
                f"still not at rest after {counts['attempts']} attempts: job {leases[0].id} of "
                f"{handler.name} is retried for ever, or each enqueues the next"
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
    """As in a worker: members of a strict group that came together run one after the other."""
    lines = by_group(leases, lambda lease: lease.job)
    release = Release("the job before it goes first", unstarted=True)
    behind = [Settlement(lease=lease, verdict=release) for line in lines for lease in line[1:]]
    if behind:
        stage.ask(stage.engine.settle(behind))
    return [line[0] for line in lines]


def _expire(stage: Stage) -> None:
    """As the reaper does. Leases are not reaped: nobody dies here, but time may pass in a run."""
    for job in stage.ask(stage.engine.expired(_PAGE)).jobs:
        wanted = JobFilter(ids=(job.id,), expired=True)
        stage.ask(stage.engine.amend(wanted, policy.after_expiry(job), limit=1))


def _jump(stage: Stage) -> bool:
    """To when the next job of a known task is due, or a rate lets one start; False when time alone
    changes nothing any more."""
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
    given = tuple(given_of(lease, queues[lease.job.queue]) for lease in leases)
    limits_ms = (policy.timeout_ms(queues[lease.job.queue], lease.job) for lease in leases)
    return Attempt(handler, given, timeout_ms=reduce(shorter, limits_ms))


def _notes(attempt: Attempt, count: int) -> list[Note]:
    notes = [Note()] * count
    for told in attempt.told():
        notes[told.index] = Note(progress=told.progress, checkpoint=told.checkpoint)
    return notes


def _settle(stage: Stage, lease: Lease, ending: Ending, note: Note) -> str:
    """What became of the attempt, by the name of its count."""
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
    whole = note if output is None else replace(note, output=output.output)
    settlement = Settlement(lease=lease, verdict=verdict, note=whole)
    [outcome] = stage.ask(engine.settle([settlement]))
    if outcome is Outcome.REFUSED:
        again = after_refusal(queue, lease.job, "the verdict was not accepted", random.random())
        stage.ask(engine.settle([Settlement(lease=lease, verdict=again)]))
    job = stage.ask(engine.get(lease.id))
    if job is None or job.state.finished:
        return "done" if job is None else str(job.state)
    return "released" if job.attempt < lease.job.attempt else "retried"


def _queues(stage: Stage) -> dict[str, Queue]:
    views = stage.ask(stage.engine.queues(counts=False))
    return {view.queue.name: view.queue for view in views}


def _run(attempt: Attempt) -> tuple[Ending, ...]:
    """In this thread, unless a coroutine must run while an event loop runs here already."""
    if not attempt.handler.is_async:
        return attempt.run()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(attempt.run_async())
    endings: list[tuple[Ending, ...]] = []
    context = contextvars.copy_context()

    def beside() -> None:
        endings.append(context.run(asyncio.run, attempt.run_async()))

    thread = threading.Thread(target=beside, name="holdfast-test")
    thread.start()
    thread.join()
    return endings[0]
