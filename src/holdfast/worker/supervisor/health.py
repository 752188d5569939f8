"""Facts about the health of one worker: recent failures of its jobs, and work it does not lease.
One failing task is the task's fault: it can make a worker degraded, never unhealthy. A worker is
unhealthy if two tasks fail that worked here before, or if nothing ever worked. Failures that are
certainly the job's own fault, such as a crash while it ran alone, do not count.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from time import monotonic

from holdfast.core import bounds, lifecycle
from holdfast.core.explain import has_room
from holdfast.core.model import JobFilter, State
from holdfast.core.workers import UNHEALTHY_FAILURES, UNHEALTHY_RATE
from holdfast.engines.base import Engine
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.wire import AskedRetry, Raised, Returned

_WINDOW = 50
_SAMPLES_MIN = 10
_REST_S_FIRST, _REST_S_MAX = 1.0, 30.0
STALL_MS = 15 * bounds.SECOND_MS
"""How long due work may wait despite free slots before it is reported."""
_LOOK_MAX = 50
_CHECKED_MAX = 10


class OutcomeWindow:
    """Recent successes and failures of this worker, for its health check."""

    def __init__(self) -> None:
        self.done: int = 0
        self.failed: int = 0
        self._window: deque[tuple[str, bool]] = deque(maxlen=_WINDOW)
        self._streak = 0
        self._streak_tasks: set[str] = set()
        self._worked: set[str] = set()
        self._failed_at = 0.0
        self._rest_s = _REST_S_FIRST

    def record(self, ended: Iterable[EndedBatch]) -> None:
        """Count jobs that ended in a child. Endings that a handler requested do not count."""
        for jobs, ending in ended:
            match ending:
                case Returned():
                    self.succeeded(*[held.lease.job.task for held in jobs])
                case Raised() | AskedRetry():
                    for held in jobs:
                        self.failed_at(held.lease.job.task)
                case _:
                    pass

    def succeeded(self, *tasks: str) -> None:
        self.done += len(tasks)
        self._window.extend([(task, True) for task in tasks[-_WINDOW:]])
        self._worked.update(tasks)
        self._rest_s = _REST_S_FIRST
        if self._streak:
            self._streak = 0
            self._streak_tasks.clear()

    def failed_at(self, task: str) -> None:
        self.failed += 1
        self._window.append((task, False))
        self._streak += 1
        self._streak_tasks.add(task)
        self._failed_at = monotonic()

    def recover(self) -> None:
        """Called at every tick: a worker that leased nothing for a while tries again with few jobs;
        if they fail too, the next pause is longer."""
        streak = self.consecutive_failures >= UNHEALTHY_FAILURES
        rate = self.failure_rate >= UNHEALTHY_RATE
        if not (streak or rate) or monotonic() - self._failed_at <= self._rest_s:
            return
        self._rest_s = min(self._rest_s * 2, _REST_S_MAX)
        if streak:
            self._streak = UNHEALTHY_FAILURES - 1
        if rate:
            self._window.clear()

    @property
    def consecutive_failures(self) -> int:
        if not self._is_worker_at_fault(self._streak_tasks):
            return min(self._streak, UNHEALTHY_FAILURES - 1)
        return self._streak

    @property
    def failure_rate(self) -> float:
        """The mean over tasks: each counts the same, however many jobs it has."""
        if len(self._window) < _SAMPLES_MIN:
            return 0.0
        results: dict[str, list[bool]] = defaultdict(list)
        for task, good in self._window:
            results[task].append(good)
        rates = {task: each.count(False) / len(each) for task, each in results.items()}
        rate = sum(rates.values()) / len(rates)
        if not self._is_worker_at_fault(task for task, share in rates.items() if share):
            return min(rate, UNHEALTHY_RATE - 0.01)
        return rate

    def _is_worker_at_fault(self, failing: Iterable[str]) -> bool:
        """True if at least two tasks that used to work are failing."""
        return len([task for task in failing if not self._worked or task in self._worked]) > 1


async def find_stall(engine: Engine, queues: Collection[str], tasks: Collection[str]) -> str:
    """Describes due work that this worker could run and does not lease; empty if there is none.
    It reads the store, not the intake: a hanging intake would report that all is well. A store
    that cannot search its jobs is not read."""
    if not engine.traits.inspect:
        return ""
    for view in await engine.queues():
        queue = view.queue
        age_ms = view.oldest_age_ms
        if queue.name not in queues or queue.paused or not view.ready:
            continue
        if age_ms is None or age_ms < STALL_MS:
            continue
        page = await engine.find(
            JobFilter(queue=queue.name, states=(State.WAITING,)), limit=_LOOK_MAX
        )
        # The store's present time, derived from the longest-due job if it is on this page.
        now = min((job.due_at for job in page.jobs), default=0) + age_ms
        ready = [
            job
            for job in page.jobs
            if job.task in tasks
            and job.expires_at is None
            and lifecycle.is_ready(job, now - STALL_MS)
        ]
        # The oldest are last, and least likely to be blocked.
        for job in reversed(ready[-_CHECKED_MAX:]):
            if await _could_start(engine, job.id):
                return f"slots are free and work waits in {queue.name}, but nothing is leased"
    return ""


async def _could_start(engine: Engine, id: str) -> bool:
    """True if neither a parent nor its group nor a limit blocks the job."""
    waits = await engine.waits(id)
    if waits is None or waits.parent_count or waits.group_head is not None:
        return False
    return all(map(has_room, waits.slots))
