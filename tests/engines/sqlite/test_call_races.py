"""Blocking calls of a `SerialThread` among other threads that call, stop it or are interrupted.

Whatever the order: each caller is answered, is told that its call was not run only if it was not,
and nothing runs after the thread has ended.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.engines.sqlite import database
from holdfast.engines.sqlite.database import SerialThread, StartGuard
from holdfast.errors import EngineClosed, EngineUnavailable, StorageFull
from tests.engines.sqlite import interleavings
from tests.engines.sqlite.interleavings import Scheduler, Shared, explore, sample


class Watched(SerialThread):
    """Each look at its state is a step."""

    _stopping = Shared()
    _is_over = Shared()


class _Unstarted:
    """Stands for the thread, which the scheduler runs."""

    def __init__(self, **_: object) -> None: ...


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_threading = SimpleNamespace(Lock=interleavings.Lock, Thread=_Unstarted)
    monkeypatch.setattr(database, "threading", fake_threading)
    monkeypatch.setattr(database, "queue", interleavings)
    monkeypatch.setattr(database, "deque", interleavings.Deque)


class Store:
    """Runs calls as the database does, and checks what their callers are told."""

    thread_type: type[SerialThread] = Watched

    def __init__(self, scheduler: Scheduler) -> None:
        self.thread = self.thread_type("writer")
        self.stored: list[str] = []
        self.told: dict[str, str] = {}
        self.is_closed = False
        self._pause = scheduler.pause

    def call(self, name: str, *, is_full: bool = False) -> None:
        """Make a call, and note what its caller is told."""

        def work(guard: StartGuard) -> str:
            self._pause()
            if is_full:
                raise StorageFull(name)
            if not guard.take():
                raise EngineUnavailable("withdrawn")
            assert not self.is_closed
            self.stored.append(name)
            self._pause()
            return f"stored {name}"

        try:
            self.told[name] = self.thread.call_blocking(work)
        except (EngineClosed, EngineUnavailable, StorageFull):
            self.told[name] = "not stored"
        except KeyboardInterrupt:
            self.told[name] = "interrupted"

    def stop(self) -> None:
        self.thread.stop(self._close)

    def _close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def check(self, names: set[str]) -> None:
        assert self.is_closed
        assert len(set(self.stored)) == len(self.stored)
        assert set(self.told) == names, "each caller is answered"
        for name, told in self.told.items():
            if told != "interrupted":
                assert told == (f"stored {name}" if name in self.stored else "not stored")


def one_caller(scheduler: Scheduler) -> None:
    """A caller that may be interrupted, and a second thread that stops the writer's."""
    store = Store(scheduler)
    scheduler.interruptible = {"a"}
    scheduler.add("writer", store.thread._run)
    scheduler.add("a", lambda: store.call("a"))
    scheduler.add("stopper", store.stop)
    scheduler.run()
    store.check({"a"})


def three_callers(scheduler: Scheduler) -> None:
    """Callers of which one makes two calls, one is interrupted, and one has no space."""
    store = Store(scheduler)
    scheduler.interruptible = {"c"}

    def twice() -> None:
        store.call("a")
        store.call("b")

    scheduler.add("writer", store.thread._run)
    scheduler.add("ab", twice)
    scheduler.add("c", lambda: store.call("c"))
    scheduler.add("d", lambda: store.call("d", is_full=True))
    scheduler.add("stopper", store.stop)
    scheduler.run()
    store.check({"a", "b", "c", "d"})


def test_every_order_of_a_call_and_a_stop() -> None:
    assert sum(1 for _ in explore(one_caller, other_decisions_max=3)) > 1_000


def test_many_orders_of_several_calls() -> None:
    assert sum(1 for _ in explore(three_callers, other_decisions_max=1)) > 100
    assert sum(1 for _ in sample(three_callers, range(300))) == 300


class _AlwaysFalse:
    def __get__(self, instance: object, owner: type) -> bool:
        return False

    def __set__(self, instance: object, value: object) -> None: ...


class NeverOver(Watched):
    _is_over = _AlwaysFalse()


class RefusesNothing(Watched):
    def _run(self) -> None:
        while self._signals.get():
            while self._calls:
                database._execute(*self._calls.popleft())
        self._is_over = True
        assert self._last is not None
        self._last()


class IgnoresTheGuard(Watched):
    def call_blocking(self, work: Callable[[StartGuard], Any]) -> Any:
        return super().call_blocking(lambda _: work(StartGuard()))


@pytest.mark.parametrize("mistaken", [NeverOver, RefusesNothing, IgnoresTheGuard])
def test_the_exploration_finds_mistakes(
    monkeypatch: pytest.MonkeyPatch, mistaken: type[SerialThread]
) -> None:
    monkeypatch.setattr(Store, "thread_type", mistaken)
    with pytest.raises(AssertionError):
        for _ in explore(one_caller, other_decisions_max=2):
            pass
