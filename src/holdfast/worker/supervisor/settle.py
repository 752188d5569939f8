"""Endings → verdicts → `engine.settle`, in batches, through any outage of the engine.

A verdict is kept until the engine has answered for it. A verdict that the engine refuses becomes
a failure of the job, so that a job with too large a result, or with a follow-up job for a missing
queue, is neither lost nor retried forever. `core.retry_policy` makes the decisions.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from holdfast.core import bounds, checks, failures, retry_policy
from holdfast.core.model import (
    COMMAND_TASK,
    Failure,
    FailureKind,
    Job,
    JobFilter,
    Note,
    Queue,
    Reason,
)
from holdfast.core.retry_policy import after_success
from holdfast.core.text import counted
from holdfast.core.verdict import (
    Bury,
    Cancel,
    Complete,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, HoldfastError, OutcomeUnknown
from holdfast.ops.views import command_of, value_of
from holdfast.process import boot_s
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases
from holdfast.worker.wire import (
    AskedBury,
    AskedCancel,
    AskedRelease,
    AskedRetry,
    Ending,
    Raised,
    Returned,
)

_log = logging.getLogger("holdfast.worker")

_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0
_BATCH = bounds.BATCH_MAX
_LINE_MAX = 1_000


class EndedBatch(NamedTuple):
    """Jobs that ended alike in one child."""

    held: list[HeldLease]
    ending: Ending


class Settler:
    """`settled` gets the jobs that the engine has answered for, including lost ones."""

    def __init__(
        self,
        engine: Engine,
        held: HeldLeases,
        queue_of: Callable[[str], Queue],
        settled: Callable[[list[HeldLease]], None],
        worker: str,
    ) -> None:
        self._engine = engine
        self._traits = engine.traits
        self._held = held
        self._queue_of = queue_of
        self._settled = settled
        self._worker = worker
        self._pending: list[HeldLease] = []
        self._under_way = 0
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._cancels: set[str] = set()
        self.lost: int = 0
        self._warned = False

    @property
    def backlog(self) -> int:
        """Verdicts that the engine has not answered for."""
        return len(self._pending) + self._under_way

    def add_ended(self, ended: Iterable[EndedBatch]) -> None:
        """Decide the verdicts of jobs that ended in a child."""
        for held_jobs, ending in ended:
            jobs = [held for held in held_jobs if held.verdict is None and not held.lost]
            if (note := note_of(ending)) is not None:
                for held in jobs:
                    held.add_note(note)
            if type(ending) is Returned:
                # The same for all of them, unlike that on a failure.
                self._held.decide_all(jobs, after_success(ending.result, ending.then))
                self._pending += jobs
            else:
                self._add_failed(jobs, ending)
        self._wake.set()

    def _add_failed(self, jobs: list[HeldLease], ending: Ending) -> None:
        for held in jobs:
            job = held.lease.job
            if type(ending) is AskedCancel and not held.lease.cancel_requested:
                self._cancels.add(job.id)
            self.add(held, verdict_on(ending, self._queue_of(job.queue), job, random.random()))

    def add(self, held: HeldLease, verdict: Verdict) -> None:
        """Settle a job with this verdict, unless it is lost or already has one. From now on the
        verdict stands; only the engine can answer that it came too late.
        """
        if self._held.decide(held, verdict):
            self._pending.append(held)
            self._wake.set()

    async def run(self) -> None:
        """Settle until cancelled, one batch at a time while the next one gathers."""
        pause = _PAUSE_S_FIRST
        while True:
            if not self._pending:
                self._wake.clear()
                await self._wake.wait()
            batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
            self._under_way = len(batch)
            try:
                await self._settle(batch)
                pause = _PAUSE_S_FIRST
                self._under_way = 0
                self._answered.set()
            except EngineClosed:
                raise
            except EngineError as error:
                self._under_way = 0
                # Part of the batch may have been answered: then the next jobs need not wait.
                kept = [held for held in batch if held in self._held]
                self._pending[:0] = kept
                if len(kept) < len(batch):
                    pause = _PAUSE_S_FIRST
                    self._answered.set()
                jobs = counted(len(kept), "job")
                _log.warning(
                    "cannot store how %s ended; trying again in %.1f s: %s", jobs, pause, error
                )
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _PAUSE_S_MAX)

    async def drain(self) -> None:
        """Wait until the engine has answered for every verdict."""
        while self.backlog:
            self._answered.clear()
            await self._answered.wait()

    async def _settle(self, batch: list[HeldLease]) -> None:
        for held in batch if self._cancels else ():
            if held.job.id in self._cancels:
                await self._request_cancel(held)
        settlements = self._settlements(batch)
        try:
            outcomes = await self._engine.settle(settlements)
        except OutcomeUnknown as error:
            # Refused verdicts are settled once more with the rest, and handled then.
            known = [at for at, each in error.known.items() if each is not Outcome.REFUSED]
            self._conclude(
                [batch[at] for at in known],
                [settlements[at] for at in known],
                [error.known[at] for at in known],
            )
            raise
        except EngineError:
            raise
        except HoldfastError as error:
            # The engine refused the whole batch: settle one by one, so that only the faulty one
            # fails.
            if len(batch) > 1:
                for held in batch:
                    await self._settle([held])
                return None
            _log.error("the verdict on job %s was refused: %s", batch[0].job.id, error)
            return self._refused(batch[0], str(error))
        return self._conclude(batch, settlements, outcomes)

    def _settlements(self, batch: list[HeldLease]) -> list[Settlement]:
        """The verdicts, without results and notes if the engine stores none: the jobs are done all
        the same."""
        stores_notes, stores_results = self._traits.notes, self._traits.results
        settlements: list[Settlement] = []
        for held in batch:
            lease, verdict, note = held.lease, held.verdict, held.note
            assert verdict is not None
            if not stores_notes:
                note = None
            elif held.output is not None or lease.job.attempt > 1:
                verdict, note = keep_output(verdict, note, held.output, lease.job)
            if not stores_results and type(verdict) is Complete and verdict.result is not None:
                verdict = self._without_result(verdict)
            settlements.append(Settlement(lease=lease, verdict=verdict, note=note))
        return settlements

    def _without_result(self, verdict: Complete) -> Complete:
        if not self._warned:
            self._warned = True
            _log.warning(
                "the %s engine stores no results: those of tasks are dropped", self._traits.name
            )
        return replace(verdict, result=None)

    def _conclude(
        self, batch: list[HeldLease], settlements: list[Settlement], outcomes: list[Outcome]
    ) -> None:
        # Nearly always all are settled, and none needs special handling.
        if outcomes.count(Outcome.SETTLED) == len(batch):
            return self._drop(batch)
        over: list[HeldLease] = []
        for held, settlement, outcome in zip(batch, settlements, outcomes, strict=True):
            if outcome is Outcome.REFUSED:
                self._refused(held, _why_refused(settlement))
                continue
            if outcome is Outcome.LOST:
                self.lost += 1
                self._held.lose(held)
            over.append(held)
        return self._drop(over)

    async def _request_cancel(self, held: HeldLease) -> None:
        """Only under this very lease: a late handler must not stop the next attempt."""
        wanted = JobFilter(ids=(held.job.id,), version=held.job.version)
        await self._engine.amend(wanted, Cancel(by=self._worker, text="by its handler"), limit=1)
        self._cancels.discard(held.job.id)

    def _refused(self, held: HeldLease, reason: str) -> None:
        held.note = None
        queue = self._queue_of(held.job.queue)
        held.verdict = after_refusal(queue, held.job, f"not accepted: {reason}", random.random())
        self._pending.append(held)

    def _drop(self, over: list[HeldLease]) -> None:
        self._held.drop(*over)
        if over:
            self._settled(over)


class JobLog:
    """Writes a line for each settled job, at most `LINES_MAX` a second; the others are counted. A
    death has a line already: the logger `holdfast.jobs` has one for every death."""

    LINES_MAX = 20

    def __init__(
        self,
        write: Callable[[str, Mapping[str, Any]], None],
        clock: Callable[[], float] = boot_s,
    ) -> None:
        self._write = write
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out: Counter[str] = Counter()

    def add(self, jobs: Iterable[HeldLease]) -> None:
        """Write the lines of jobs that the engine has answered for."""
        self.flush()
        shown = [held for held in jobs if type(held.verdict) is not Bury or held.lost]
        room = self.LINES_MAX - self._written
        self._written += len(shown[:room])
        for held in shown[:room]:
            now = self._clock()
            self._write(settled_line(held, now), settled_fields(held, now))
        self._left_out.update(map(_outcome_word, shown[room:]))

    def flush(self) -> None:
        """Called at every tick: once a second, write how many jobs were left out."""
        second = int(self._clock())
        if second == self._second:
            return
        self._second, self._written = second, 0
        if self._left_out:
            counts = ", ".join(f"{count:,} {word}" for word, count in self._left_out.most_common())
            self._write(f"and {counted(self._left_out.total(), 'more job')}: {counts}", {})
            self._left_out.clear()


def settled_line(held: HeldLease, now: float) -> str:
    """The line about a settled job: outcome, time and error. `now` is of the boot clock."""
    ms = _ms(held, now)
    took = f"{ms} ms" if ms < 10_000 else f"{ms / 1000:.0f} s"
    verdict = held.verdict
    text = ""
    match verdict:
        case Retry(failure=failure, delay_ms=delay_ms) if failure is not None:
            again = f"in {delay_ms / 1000:.1f} s" if delay_ms else "now"
            text = f": {failures.line(failure)}; attempt {held.job.attempt + 1} starts {again}"
        case Release(text=why) if why:
            text = f": {why}"
        case _:
            pass
    line = f"{held.job.id} {_title(held.job)} {_outcome_word(held)} after {took}{text}"
    return line if len(line) <= _LINE_MAX else f"{line[: _LINE_MAX - 1]}…"


def settled_fields(held: HeldLease, now: float) -> dict[str, Any]:
    """The fields of that line in JSON; those of the job have the names of a handler's log lines."""
    job = held.job
    return {
        "job_id": job.id,
        "attempt": job.attempt,
        "task": job.task,
        "queue": job.queue,
        "outcome": _outcome_word(held),
        "ms": _ms(held, now),
    }


def _ms(held: HeldLease, now: float) -> int:
    return max(0, round((now - held.came_at) * 1000))


def _outcome_word(held: HeldLease) -> str:
    if held.lost:
        return "lost its lease"
    match held.verdict:
        case Complete():
            return "done"
        case Retry(failure=failure) if failure is not None:
            return "failed"
        case _:
            return "cancelled" if held.lease.cancel_requested else "released"


def _title(job: Job) -> str:
    """The task, or the command line of a command job."""
    if job.task != COMMAND_TASK:
        return job.task
    return command_of(value_of(job.payload, job.content_type))[:60] or job.task


def verdict_on(ending: Ending, queue: Queue, job: Job, draw: float) -> Verdict:
    """The verdict on a job with this ending. `draw` is a random number in [0, 1) for the
    jitter of a retry."""
    match ending:
        case Returned(result=result, then=then):
            return after_success(result, then)
        case Raised(failure=failure, fatal=True):
            return Bury(Reason.REJECTED, failure)
        case Raised(failure=failure):
            return retry_policy.after_failure(queue, job, failure, draw)
        case AskedRetry(failure=failure, delay_ms=delay_ms):
            bounded_ms = None if delay_ms is None else min(delay_ms, bounds.DELAY_MS_MAX)
            return retry_policy.after_retry_request(queue, job, failure, bounded_ms, draw)
        case AskedBury(failure=failure):
            return Bury(Reason.EXPLICIT, failure)
        case AskedRelease(text=text, delay_ms=delay_ms, alone=alone):
            return Release(text, min(delay_ms, bounds.DELAY_MS_MAX), alone)
        case AskedCancel(text=text):
            # The settler requests the cancel first, so that this release ends as cancelled.
            return Release(text)
        case never:
            assert_never(never)


def after_death(queue: Queue, job: Job, failure: Failure, draw: float, *, alone: bool) -> Verdict:
    """The verdict on a job whose child died. The culprit is known only if it ran alone."""
    if alone:
        return retry_policy.after_failure(queue, job, failure, draw)
    return Release(f"{failure.message}; its next attempt runs alone", alone=True)


def after_refusal(queue: Queue, job: Job, text: str, draw: float) -> Verdict:
    """The verdict on a job whose verdict the engine refused, such as a follow-up job for a queue
    that does not exist."""
    failure = Failure(kind=FailureKind.ERROR, type="Refused", message=text)
    return retry_policy.after_failure(queue, job, failure, draw)


def keep_output(
    verdict: Verdict, note: Note | None, output: bytes | None, job: Job
) -> tuple[Verdict, Note | None]:
    """The verdict and the note, so that the output of each attempt is kept: that of a failed one in
    its failure. The job keeps none of an earlier attempt if the last one is silent and succeeds."""
    if output is not None:
        return failures.with_output(verdict, output), note
    if job.attempt > 1 and type(verdict) is Complete:
        return verdict, replace(note or Note(), output=b"")
    return verdict, note


def note_of(ending: Ending) -> Note | None:
    """The output that an ending carries, bounded."""
    output = ending.output
    return None if output is None else Note(output=output[-bounds.OUTPUT_MAX :])


def ending_for_job(held: HeldLease, ending: Ending) -> Ending:
    """The ending of one job of a cancelled call: if only another job of its batch was cancelled,
    this one is released.
    """
    if isinstance(ending, AskedCancel) and not held.cancel_known:
        return AskedRelease("another job of its batch was stopped", output=ending.output)
    return ending


def is_timeout(ending: Ending) -> bool:
    """True if the attempt ran past its timeout."""
    return isinstance(ending, Raised) and ending.failure.kind is FailureKind.TIMEOUT


def _why_refused(settlement: Settlement) -> str:
    try:
        checks.check_settlement(settlement)
    except HoldfastError as error:
        return str(error)
    return "the verdict names a queue that does not exist"
