"""How a worker has fared lately: what its health is judged by.

A task that fails is that task's fault, not the worker's: it can make a worker degraded, never
unhealthy. That takes two tasks that had worked here before, or that nothing ever did. What was
pinned on the job itself, such as a crash while it was alone, does not count.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from time import monotonic

from holdfast.core.workers import UNHEALTHY_FAILURES, UNHEALTHY_RATE

_WINDOW = 50
_SAMPLES_MIN = 10
_REST_S_FIRST, _REST_S_MAX = 1.0, 30.0


class Fortune:
    """Results as they come; the facts that `core.workers.health` asks for."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self._window: deque[tuple[str, bool]] = deque(maxlen=_WINDOW)
        self._streak = 0
        self._tasks: set[str] = set()
        self._worked: set[str] = set()
        self._failed_at = 0.0
        self._rest_s = _REST_S_FIRST

    def succeeded(self, task: str) -> None:
        self.done += 1
        self._window.append((task, True))
        self._worked.add(task)
        self._rest_s = _REST_S_FIRST
        if self._streak:
            self._streak = 0
            self._tasks.clear()

    def failed_at(self, task: str) -> None:
        self.failed += 1
        self._window.append((task, False))
        self._streak += 1
        self._tasks.add(task)
        self._failed_at = monotonic()

    def rest(self) -> None:
        """A worker that leased nothing for a while tries again, carefully; in vain, the next
        while is longer."""
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
        if not self._is_own_fault(self._tasks):
            return min(self._streak, UNHEALTHY_FAILURES - 1)
        return self._streak

    @property
    def failure_rate(self) -> float:
        """Every task counts the same, however many jobs it has."""
        if len(self._window) < _SAMPLES_MIN:
            return 0.0
        results: dict[str, list[bool]] = defaultdict(list)
        for task, good in self._window:
            results[task].append(good)
        rates = {task: each.count(False) / len(each) for task, each in results.items()}
        rate = sum(rates.values()) / len(rates)
        if not self._is_own_fault(task for task, share in rates.items() if share):
            return min(rate, UNHEALTHY_RATE - 0.01)
        return rate

    def _is_own_fault(self, failing: Iterable[str]) -> bool:
        """Do these failures speak against the worker, and not only against the tasks?"""
        return len([task for task in failing if not self._worked or task in self._worked]) > 1
