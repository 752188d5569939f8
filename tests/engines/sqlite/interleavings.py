"""Runs threads one at a time and explores the orders in which they touch what they share.

The code under test gets locks, queues and deques from here. Each of their operations is a step, and
before each step the scheduler decides which thread goes on: by default the same one. `explore` runs
every order with up to a number of other decisions. A decision may also be that a wait times out or
that a thread is interrupted, as by Ctrl-C.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

STEPS_MAX = 2_000


class Stuck(AssertionError):
    """A thread waits for something that no other thread will do."""


class _Abandoned(BaseException):
    """The run is over, though not this thread."""


class _Actor:
    """A thread of the code under test, and what it waits for."""

    def __init__(self, scheduler: Scheduler, run: Callable[[], None], *, name: str) -> None:
        self.turn = threading.Semaphore(0)
        self.is_ready: Callable[[], bool] = lambda: True
        self.may_time_out = False
        self.is_interrupted = False
        self.is_over = False
        self.error: BaseException | None = None
        self.name = name
        self._run = run
        self._scheduler = scheduler
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        self.turn.acquire()
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the run raises it
            self.error = error
        finally:
            self.is_over = True
            self._scheduler.back.release()


class Scheduler:
    """One run. `plan` has the first decisions; the others are the default, or random."""

    current: ClassVar[Scheduler]

    def __init__(self, plan: list[int], shuffle: random.Random | None = None) -> None:
        Scheduler.current = self
        self.back = threading.Semaphore(0)
        self.decisions: list[tuple[int, int]] = []
        """(the decision, the number of possible ones) of each step."""
        self.interruptible: set[str] = set()
        """Names of the threads that may be interrupted, together once."""
        self._plan = plan
        self._shuffle = shuffle
        self._actors: list[_Actor] = []
        self._running: _Actor | None = None
        self._is_abandoned = False

    def add(self, name: str, run: Callable[[], None]) -> None:
        """Add a thread."""
        self._actors.append(_Actor(self, run, name=name))

    def pause(
        self, is_ready: Callable[[], bool] = lambda: True, *, may_time_out: bool = False
    ) -> None:
        """The running thread is about to touch what is shared, once `is_ready`."""
        me = self._running
        if self._is_abandoned:
            raise _Abandoned
        if me is None:
            return  # The test itself prepares something.
        me.is_ready, me.may_time_out = is_ready, may_time_out
        self.back.release()
        me.turn.acquire()
        me.is_ready, me.may_time_out = (lambda: True), False
        if self._is_abandoned:
            raise _Abandoned
        if me.is_interrupted:
            me.is_interrupted = False
            raise KeyboardInterrupt

    def run(self) -> None:
        """Run all threads to their ends; raises Stuck if that does not happen, and what a thread
        has raised."""
        try:
            while any(not actor.is_over for actor in self._actors):
                actor, is_interrupted = self._decide()
                actor.is_interrupted = is_interrupted
                if is_interrupted:
                    self.interruptible = set()
                self._running = actor
                actor.turn.release()
                self.back.acquire()
                if actor.error is not None:
                    raise actor.error
        finally:
            self._running, self._is_abandoned = None, True
            for actor in self._actors:
                actor.turn.release()
                actor.thread.join()

    def _decide(self) -> tuple[_Actor, bool]:
        alive = [actor for actor in self._actors if not actor.is_over]
        ready = [actor for actor in alive if actor.is_ready()]
        if not ready or len(self.decisions) > STEPS_MAX:
            raise Stuck(f"{[actor.name for actor in alive]} wait for ever: {self.plan}")
        ready.sort(key=lambda actor: actor is not self._running)
        late = [actor for actor in alive if actor.may_time_out and actor not in ready]
        interrupted = [actor for actor in alive if actor.name in self.interruptible]
        options = [(actor, False) for actor in (*ready, *late)]
        options += [(actor, True) for actor in interrupted]
        at = len(self.decisions)
        if at < len(self._plan):
            choice = self._plan[at]
        elif self._shuffle is not None:
            choice = self._shuffle.randrange(len(options))
        else:
            choice = 0
        self.decisions.append((choice, len(options)))
        return options[choice]

    @property
    def plan(self) -> list[int]:
        """The decisions so far, which replay this run."""
        return [choice for choice, _ in self.decisions]


def explore(run: Callable[[Scheduler], None], *, other_decisions_max: int) -> Iterator[Scheduler]:
    """Every run with up to so many decisions that are not the default."""
    plans: list[tuple[list[int], int]] = [([], 0)]
    while plans:
        plan, others = plans.pop()
        scheduler = Scheduler(plan)
        run(scheduler)
        yield scheduler
        if others == other_decisions_max:
            continue
        for at in range(len(plan), len(scheduler.decisions)):
            begin = scheduler.plan[:at]
            options = scheduler.decisions[at][1]
            plans += [([*begin, choice], others + 1) for choice in range(1, options)]


def sample(run: Callable[[Scheduler], None], seeds: range) -> Iterator[Scheduler]:
    """Runs with random decisions."""
    for seed in seeds:
        scheduler = Scheduler([], random.Random(seed))
        run(scheduler)
        yield scheduler


class Lock:
    """Like `threading.Lock`."""

    def __init__(self) -> None:
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            Scheduler.current.pause()
        else:
            Scheduler.current.pause(lambda: not self._is_held, may_time_out=timeout >= 0)
        if self._is_held:
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        Scheduler.current.pause()
        assert self._is_held, "released twice"
        self._is_held = False


class SimpleQueue:
    """Like `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        Scheduler.current.pause()
        self._items.append(item)

    def get(self) -> Any:
        Scheduler.current.pause(lambda: bool(self._items))
        return self._items.popleft()


class Deque(deque[Any]):
    """Like `collections.deque`."""

    def append(self, item: Any) -> None:
        Scheduler.current.pause()
        super().append(item)

    def popleft(self) -> Any:
        Scheduler.current.pause()
        return super().popleft()

    def __bool__(self) -> bool:
        Scheduler.current.pause()
        return len(self) > 0


class Shared:
    """An attribute that threads share: each look and each change is a step."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"shared{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        Scheduler.current.pause()
        return instance.__dict__[self._name]

    def __set__(self, instance: Any, value: Any) -> None:
        Scheduler.current.pause()
        instance.__dict__[self._name] = value
