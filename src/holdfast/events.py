"""Everything that can happen in this process, by name, and who is told.

What is about the whole fleet is read from the store, not from here. A listener that raises is
logged and harms nobody: telling never changes what is told about.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

_log = logging.getLogger("holdfast.events")


class EngineCalled(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an engine ended.

    `asked` and `answer` are what went in and what came out; of a batch whose outcome is not known,
    those that are known all the same. `error` is the stable code of what it raised instead, "" if
    nothing. `counted` gives the queue and the outcome of each answer, for who wants to know.
    """

    verb: str
    duration_ms: float
    error: str = ""
    asked: Any = None
    answer: Any = None
    counted: Callable[[], Iterable[tuple[str, str]]] = tuple

    @property
    def outcomes(self) -> dict[str, dict[str, int]]:
        """Its answers as queue → outcome → how many; the queue is "" where the call is not about
        one."""
        counts: dict[str, dict[str, int]] = {}
        for (queue, outcome), count in Counter(self.counted()).items():
            counts.setdefault(queue, {})[str(outcome)] = count
        return counts


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """The reaper ended so many lapsed leases and buried so many expired jobs; so many others went
    on to another worker."""

    overdue: int
    expired: int
    rerouted: int = 0


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """The pruner removed so many finished jobs."""

    deleted: int
    archived: int


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule's tick was enqueued here ("new"), was already ("duplicate"), or was refused."""

    schedule: str
    tick_at: int
    status: str
    text: str = ""


class Redrove(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive put so many dead letters back to work."""

    redrive: str
    retried: int


class Distributed(msgspec.Struct, frozen=True, kw_only=True):
    """The distributor brought jobs to this queue: how many from each."""

    queue: str
    moved: dict[str, int]


class Troubled(msgspec.Struct, frozen=True, kw_only=True):
    """A service met an error; it goes on after `pause_ms`."""

    service: str
    error: str
    text: str
    pause_ms: int


Happening: TypeAlias = EngineCalled | Reaped | Pruned | Ticked | Redrove | Distributed | Troubled
Tell: TypeAlias = Callable[[Happening], None]


class Listeners:
    """Tells every listener, in the order in which they were added."""

    def __init__(self, *listeners: Tell) -> None:
        self._listeners = listeners

    def add(self, listener: Tell) -> None:
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Tell) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def __bool__(self) -> bool:
        """Whether anybody listens: what nobody hears need not be counted."""
        return bool(self._listeners)

    def __call__(self, happening: Happening) -> None:
        for listener in self._listeners:
            try:
                listener(happening)
            except Exception:  # noqa: BLE001 (whatever it is, it is the listener's)
                _log.exception("a listener failed on %s", type(happening).__name__)


def tell_nobody(happening: Happening) -> None:
    """Where nobody listens."""
