"""A thread that waits for work, does all there is, and waits again."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any

from holdfast.worker.attempt import Attempt
from holdfast.worker.wire import Ending


class Lane:
    """A daemon thread: a handler that never ends must not keep the process from ending."""

    __slots__ = ("_bell", "_given", "_work")

    def __init__(self, work: Callable[[Lane, Any], None]) -> None:
        self._work = work
        self._given: Any = None
        self._bell = Lock()
        self._bell.acquire()
        Thread(target=self._main, daemon=True, name="holdfast-handler").start()

    def give(self, work: Any) -> None:
        """Only to a lane that is idle."""
        self._given = work
        self._bell.release()

    @staticmethod
    def run(attempt: Attempt) -> tuple[Ending, ...]:
        """In a context of its own: what a handler sets must not reach the next one."""
        try:
            return copy_context().run(attempt.run)
        except BaseException as error:  # noqa: BLE001 (the thread must outlive it)
            return attempt.broke(error)

    def _main(self) -> None:
        while True:
            self._bell.acquire()
            given, self._given = self._given, None
            self._work(self, given)
            del given
