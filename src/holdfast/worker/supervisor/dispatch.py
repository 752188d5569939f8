"""From leased jobs to calls: the queue of jobs that wait for a child, and the calls each child has.

A child gets as many calls as it has slots, and more if its calls are short: as many as it ends in a
few milliseconds, so that neither side waits for the other. This module also decides which children
must be killed, and what a child's death means for each of its calls.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain
from time import monotonic, monotonic_ns
from typing import NamedTuple

import msgspec

from holdfast.core import bounds
from holdfast.core.model import Failure, FailureKind, Lease, Queue
from holdfast.core.retry_policy import exhausted, timeout_ms
from holdfast.engines.sqs.delivery import read_delivery
from holdfast.process import boot_s
from holdfast.worker.supervisor.child_process import ChildProcess
from holdfast.worker.supervisor.held_leases import RUNNER_KINDS, HeldLease, RunnerKind
from holdfast.worker.supervisor.settle import EndedBatch, ending_for_job
from holdfast.worker.wire import (
    NO_DEADLINE_NS,
    AskedCancel,
    AskedRelease,
    CallJob,
    ChildCalls,
    Raised,
)

_AHEAD_S = 0.02
_AHEAD_MAX = 512
UNSTARTED_S = 15.0
"""A leased job that has not started after this time is released: another worker may be free."""
GENTLE_MS = bounds.SECOND_MS
"""How long a child may take to end a timed-out call itself."""
_RELEASES_BESIDE = 5
_LOST_S = 0.5
"""How long a lost call may take to end; then its child is killed."""
_FORCED_S = 0.5
"""How long a call that must end at once may take; then its child is killed."""
_FORCED = AskedCancel("it was cancelled by force while it ran")


class DispatchQueue:
    """Leased jobs that wait for a child, first come, first served for each kind of runner.
    `batch_sizes` has the tasks whose calls take several jobs. `culprits` are tasks that recently
    killed their own process, or occupied it until their timeout; most other jobs that must run
    alone only shared a process with a culprit. `barred` are tasks of which enough jobs already run
    alone.
    """

    def __init__(self, batch_sizes: Mapping[str, int] | None = None) -> None:
        self.batch_sizes: Mapping[str, int] = batch_sizes or {}
        self.culprits: set[str] = set()
        self.barred: frozenset[str] = frozenset()
        self._waiting: dict[RunnerKind, deque[HeldLease]] = {kind: deque() for kind in RUNNER_KINDS}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, leased: Iterable[HeldLease]) -> None:
        """Append newly leased jobs."""
        for held in leased:
            self._waiting[held.kind].append(held)

    def put_back(self, held: HeldLease) -> None:
        """Put a job that a child gave back at the front: it has waited before."""
        self._waiting[held.kind].appendleft(held)

    def waiting_kinds(self) -> list[RunnerKind]:
        """The kinds of runner that jobs wait for."""
        return [kind for kind, waiting in self._waiting.items() if waiting]

    def take(self, kind: RunnerKind, limit: int) -> list[list[HeldLease]]:
        """The jobs of the next calls. After the worker was frozen, nothing is taken until a renewal
        has shown that it still holds the first job.
        """
        waiting = self._waiting[kind]
        sizes = self.batch_sizes if kind != "solo" else {}
        now = boot_s()
        calls: list[list[HeldLease]] = []
        while waiting and len(calls) < limit:
            held = waiting[0]
            if held.lost:
                waiting.popleft()
            elif now >= held.begin_before:
                break
            else:
                waiting.popleft()
                task = held.lease.job.task
                if sizes and task in sizes:
                    calls.append([held, *_take_same_task(waiting, task, sizes[task] - 1, now)])
                else:
                    calls.append([held])
        return calls

    def take_alone(self, *, culprit: bool) -> HeldLease | None:
        """The first job of a culprit, or the first other one, as requested; if there is none, one
        of the other sort.
        """
        return self._take_first(culprit) or self._take_first(not culprit)

    def take_innocent(self) -> HeldLease | None:
        """The first job that must run alone and is not a culprit's."""
        return self._take_first(culprit=False)

    def count_alone(self) -> int:
        """The number of jobs that could be taken now if each had a process."""
        return sum(held.job.task not in self.barred for held in self._waiting["solo"])

    def record_alone(self, task: str, *, culprit: bool) -> None:
        """Record the result of the last job of the task that ran alone."""
        if culprit:
            self.culprits.add(task)
        else:
            self.culprits.discard(task)

    def remove(self, held: HeldLease) -> bool:
        """Remove a job; False if it does not wait here."""
        try:
            self._waiting[held.kind].remove(held)
        except ValueError:
            return False
        return True

    def clear(self) -> list[HeldLease]:
        """Remove all jobs."""
        everything = list(chain.from_iterable(self._waiting.values()))
        for waiting in self._waiting.values():
            waiting.clear()
        return everything

    def remove_older(self, before: float) -> list[HeldLease]:
        """Remove jobs that arrived before this instant, except those that must run alone: they
        would be leased again at once, and have a limited number of releases.
        """
        old: list[HeldLease] = []
        for waiting in (line for kind, line in self._waiting.items() if kind != "solo"):
            # They are in order of arrival.
            while waiting and waiting[0].came_at < before:
                old.append(waiting.popleft())
        return old

    def remove_tasks(self, tasks: Container[str]) -> list[HeldLease]:
        """Remove all jobs of these tasks."""
        found = [held for line in self._waiting.values() for held in line if held.job.task in tasks]
        for held in found:
            self._waiting[held.kind].remove(held)
        return found

    def remove_excess(self, kind: RunnerKind, most: int) -> list[HeldLease]:
        """Remove the jobs beyond this number, the latest first."""
        waiting = self._waiting[kind]
        return [waiting.pop() for _ in range(len(waiting) - most)]

    def _take_first(self, culprit: bool) -> HeldLease | None:
        waiting = self._waiting["solo"]
        now = boot_s()
        for index, held in enumerate(waiting):
            startable = not held.lost and now < held.begin_before
            task = held.job.task
            if startable and task not in self.barred and (task in self.culprits) == culprit:
                del waiting[index]
                return held
        return None


def _take_same_task(waiting: deque[HeldLease], task: str, most: int, now: float) -> list[HeldLease]:
    """The first jobs of the task, in one pass; the others keep their order."""
    taken: list[HeldLease] = []
    others: list[HeldLease] = []
    while waiting and len(taken) < most:
        held = waiting.popleft()
        if not held.lost:
            fits = held.lease.job.task == task and now < held.begin_before
            (taken if fits else others).append(held)
    waiting.extendleft(reversed(others))
    return taken


class PlacedCall(msgspec.Struct, eq=False, gc=False):
    """A call that was given to a child. The child itself can end a `gentle` call."""

    number: int
    held: list[HeldLease]
    gentle: bool
    timeout_ms: int | None = None
    cancelled: bool = False
    lost_at: float | None = None
    forced_at: float | None = None

    def raise_timeout(self, timeout_ms: int | None) -> None:
        """Its handler asked for more time."""
        if timeout_ms is not None and self.timeout_ms is not None:
            self.timeout_ms = max(self.timeout_ms, timeout_ms)


class PooledChild:
    """One child and the calls it was given."""

    def __init__(self, process: ChildProcess) -> None:
        self.process = process
        self.slots: int = process.setup.slots
        self.ready = False
        self.finishing = False
        self.calls: dict[int, PlacedCall] = {}
        self.timed_out: dict[int, Failure] = {}
        self.kill_reason = ""
        """Why the supervisor killed it; empty if it did not."""
        self.idle_since: float = monotonic()
        self._ended = 0
        self._rate = 0.0
        self._started = 0
        self._blocked_since = monotonic()

    @property
    def room(self) -> int:
        """The number of calls that it may be given now."""
        if not self.ready or self.finishing or self.kill_reason or self.process.status is not None:
            return 0
        ahead = 0 if self.process.solo else min(int(self._rate * _AHEAD_S), _AHEAD_MAX)
        return self.slots + ahead - len(self.calls)

    def place(
        self,
        calls: list[list[HeldLease]],
        first_number: int,
        queue_of: Callable[[str], Queue],
        gentle_tasks: Container[str],
        *,
        on_sqs: bool = False,
    ) -> list[ChildCalls]:
        """Record these calls, numbered from `first_number`; the caller then writes them to the
        child: those of one task and timeout that follow each other, together. The board is set
        first: it must never allow more than the leases do.
        """
        queues: dict[str, Queue] = {}
        alike: list[ChildCalls] = []
        last: ChildCalls | None = None
        is_gentle = False
        for number, jobs in enumerate(calls, first_number):
            limit_ms: int | None = None
            call_jobs: list[CallJob] = []
            for held in jobs:
                held.call = number
                lease = held.lease
                name = lease.job.queue
                if (queue := queues.get(name)) is None:
                    queue = queues[name] = queue_of(name)
                if (job_ms := timeout_ms(queue, lease.job)) is not None:
                    limit_ms = shorter_timeout(limit_ms, job_ms)
                call_jobs.append(call_job(lease, queue, on_sqs=on_sqs))
            task = jobs[0].lease.job.task
            if last is None or last.task != task or last.timeout_ms != limit_ms:
                last = ChildCalls(number, task, [], limit_ms)
                alike.append(last)
                is_gentle = self.process.setup.target is None or task in gentle_tasks
            last.calls.append(tuple(call_jobs))
            self.calls[number] = PlacedCall(number, jobs, is_gentle, limit_ms)
        if calls:
            begin_before = min([held.begin_before for jobs in calls for held in jobs])
            board = self.process.board
            board.until_ns = min(board.until_ns, int(begin_before * 1e9))
        return alike

    def update_board(self) -> None:
        """Called at every tick and after each renewal: the child may begin calls as long as this
        worker certainly holds all leases of the calls that could begin. A lost call counts until
        the child has given it up; running calls have already begun.
        """
        running = self.process.board.running()
        instants = [
            held.begin_before
            for number, call in self.calls.items()
            if number not in running
            for held in call.held
        ]
        self.process.board.until_ns = int(min(instants) * 1e9) if instants else NO_DEADLINE_NS

    def take_back(self, numbers: Iterable[int]) -> list[PlacedCall]:
        """Remove calls that have ended or were given back; without those no longer known."""
        calls = self.calls
        taken = [call for number in numbers if (call := calls.pop(number, None)) is not None]
        self._ended += len(taken)
        if taken and not calls:
            self.idle_since = monotonic()
        return taken

    def measure(self, seconds: float) -> None:
        """Called at every tick: measure how many calls per second ended here recently."""
        rate, self._ended = self._ended / seconds, 0
        self._rate += (rate - self._rate) * 0.5

    def blocked_s(self, now: float) -> float:
        """Called at every tick: how long calls have waited in the child while none started."""
        before, self._started = self._started, self.process.board.started
        if len(self.calls) <= self.slots or before != self._started:
            self._blocked_since = now
        return now - self._blocked_since


def call_job(lease: Lease, queue: Queue, *, on_sqs: bool = False) -> CallJob:
    """The part of a leased job that its handler may see. Headers of a message are believed only if
    the engine made them: `on_sqs`."""
    job = lease.job
    return CallJob(
        job.id,
        job.queue,
        job.payload,
        job.content_type,
        job.attempt,
        lease.token,
        job.created_at,
        exhausted(queue, job),
        job.checkpoint,
        job.key,
        job.tenant,
        job.labels,
        job.headers,
        job.after,
        read_delivery(job) if on_sqs else None,
    )


def shorter_timeout(one_ms: int | None, other_ms: int | None) -> int | None:
    """The shorter of two timeouts; None is no timeout."""
    if one_ms is None or other_ms is None:
        return one_ms or other_ms
    return min(one_ms, other_ms)


def children_to_recall(children: list[PooledChild], now: float) -> list[PooledChild]:
    """Children whose waiting calls should go elsewhere: they are blocked while another child of the
    kind has room, or have been blocked for so long that another worker should run the jobs.
    """
    recalled: list[PooledChild] = []
    for child in children:
        blocked_s = child.blocked_s(now)
        others = (one for one in children if one.process.kind == child.process.kind)
        free = any(one.room > 0 and len(one.calls) < one.slots for one in others)
        if blocked_s > UNSTARTED_S or (blocked_s > 0 and free):
            recalled.append(child)
    return recalled


class ChildDeath(NamedTuple):
    """The calls of a dead child, grouped by how they continue."""

    ended: list[EndedBatch]
    """Jobs that end with the child."""
    crashed: list[HeldLease]
    """Jobs that were running when the child died on its own; if there is only one, it is the
    culprit.
    """
    unstarted: list[PlacedCall]
    """Calls that another child may run."""


def reason_to_kill(child: PooledChild, now: float) -> str:
    """The reason to kill this child, as recorded with its innocent jobs; empty if there is none."""
    if not child.process.killable:
        return ""
    timed_out = find_timed_out(child)
    if timed_out:
        child.timed_out.update(timed_out)
        return "another job in its process ran past its timeout"
    lost = (call.lost_at for call in child.calls.values() if call.lost_at is not None)
    if any(now - lost_at > _LOST_S for lost_at in lost):
        return "another job in its process had lost its lease and did not end"
    forced = (call.forced_at for call in child.calls.values() if call.forced_at is not None)
    # A child that runs commands kills them itself.
    is_python = child.process.setup.target is not None
    if is_python and any(now - forced_at > _FORCED_S for forced_at in forced):
        return "another job in its process was cancelled by force"
    return ""


def find_timed_out(child: PooledChild) -> dict[int, Failure]:
    """Calls that run past their timeout, and longer than the child needs to end them itself."""
    if not any(call.timeout_ms is not None for call in child.calls.values()):
        return {}
    timed_out: dict[int, Failure] = {}
    now = monotonic_ns()
    for number, started in child.process.board.running().items():
        call = child.calls.get(number)
        if call is None or call.timeout_ms is None:
            continue
        allowed_ms = call.timeout_ms
        if child.process.setup.target is None:
            allowed_ms += child.process.setup.grace_ms + 5 * GENTLE_MS
        elif call.gentle:
            allowed_ms += GENTLE_MS
        if now - started > allowed_ms * 1_000_000:
            timed_out[number] = Failure(
                kind=FailureKind.TIMEOUT,
                type="AttemptTimeout",
                message=f"still running after its timeout of {call.timeout_ms / 1000:g} s,"
                " and killed",
            )
    return timed_out


def judge_calls(child: PooledChild) -> ChildDeath:
    """Decide for each call of a dead child whether it ended, may have killed it, or never began."""
    running = child.process.board.running()
    started = child.process.board.started
    ended: list[EndedBatch] = []
    suspects: list[PlacedCall] = []
    unstarted: list[PlacedCall] = []
    for number, call in child.calls.items():
        if number in child.timed_out:
            ended.append(EndedBatch(call.held, Raised(child.timed_out[number])))
        elif number in running and call.forced_at is not None:
            ended += [EndedBatch([held], ending_for_job(held, _FORCED)) for held in call.held]
        elif number in running:
            suspects.append(call)
        elif number > started:
            unstarted.append(call)
        else:
            ended += _released(call, "its process died before it could report how the job ended")
    if child.kill_reason:
        for call in suspects:
            ended += _released(call, child.kill_reason, beside_timeout=bool(child.timed_out))
        return ChildDeath(ended, [], unstarted)
    if child.process.setup.target is None:
        # Commands run in separate processes: none of them can have killed this child.
        for call in suspects:
            ended += _released(call, crash_failure(child).message)
        return ChildDeath(ended, [], unstarted)
    return ChildDeath(ended, [held for call in suspects for held in call.held], unstarted)


def crash_failure(child: PooledChild) -> Failure:
    """The failure of a job that killed its process, with the last output of the child."""
    status = child.process.status or 0
    last_output = child.process.tail.decode(errors="replace")
    if status < 0:
        name = _signal_name(-status)
        text = f"its process was killed by {name}"
        return Failure(
            kind=FailureKind.CRASH, type=name, message=text, trace=last_output, signal=-status
        )
    return Failure(
        kind=FailureKind.CRASH,
        type="Exit",
        message=f"its process ended with exit code {status}",
        trace=last_output,
        exit_code=status,
    )


def _released(call: PlacedCall, reason: str, *, beside_timeout: bool = False) -> list[EndedBatch]:
    """A long job that shares a process with hanging jobs would be restarted again and again, until
    its releases are used up and an attempt is counted: after a few releases it runs alone.
    """
    return [
        EndedBatch(
            [held],
            AskedRelease(reason, alone=beside_timeout and held.job.releases >= _RELEASES_BESIDE),
        )
        for held in call.held
    ]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
