"""Events of this process, and the listeners that receive them.

Facts about the whole fleet are read from the store instead. An exception in a listener is logged
and never affects the reported operation.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

_log = logging.getLogger("holdfast.events")


class EngineCalled(msgspec.Struct, frozen=True, kw_only=True):
    """An engine call ended.

    `asked` and `answer` are its input and output; if the outcome of a batch is unknown, they hold
    the items whose outcome is known. `error` is the stable code of the exception, "" if none.
    `counted` yields the queue and outcome of each answer, computed only on demand.
    """

    verb: str
    duration_ms: float
    error: str = ""
    asked: Any = None
    answer: Any = None
    counted: Callable[[], Iterable[tuple[str, str]]] = tuple

    @property
    def outcomes(self) -> dict[str, dict[str, int]]:
        """The answers as queue → outcome → count; the queue is "" for calls that have none."""
        counts: dict[str, dict[str, int]] = {}
        for (queue, outcome), count in Counter(self.counted()).items():
            counts.setdefault(queue, {})[str(outcome)] = count
        return counts


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of overdue leases ended, expired jobs buried and jobs rerouted by the reaper."""

    overdue: int
    expired: int
    rerouted: int = 0


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of finished jobs archived and deleted by the pruner."""

    deleted: int
    archived: int


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule's tick was enqueued ("new"), had been enqueued ("duplicate") or was refused."""

    schedule: str
    tick_at: int
    status: str
    text: str = ""


class Redrove(msgspec.Struct, frozen=True, kw_only=True):
    """The number of dead letters that a redrive put back into their queues."""

    redrive: str
    retried: int


class Distributed(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of jobs, by source, that the distributor moved to this queue."""

    queue: str
    moved: dict[str, int]


class DeadMessagesHandled(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of dead messages of the broker: queue → outcome → count; the queue is "" where
    the store does not confirm it. `delays_ms` are from the expiry of jobs to their end."""

    outcomes: dict[str, dict[str, int]]
    delays_ms: tuple[int, ...] = ()


class Troubled(msgspec.Struct, frozen=True, kw_only=True):
    """A background service failed and continues after `pause_ms`."""

    service: str
    error: str
    text: str
    pause_ms: int


class GateMoved(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a gate: the numbers of messages and jobs by outcome."""

    gate: str
    counts: dict[str, int]


class GateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A gate fails in this process, or works again; `text` is the error."""

    gate: str
    is_failing: bool
    text: str = ""


ProcessEvent: TypeAlias = (
    EngineCalled
    | Reaped
    | Pruned
    | Ticked
    | Redrove
    | Distributed
    | DeadMessagesHandled
    | Troubled
    | GateMoved
    | GateChanged
)
Tell: TypeAlias = Callable[[ProcessEvent], None]


class Listeners:
    """Calls every listener, in the order in which they were added."""

    def __init__(self, *listeners: Tell) -> None:
        self._listeners = listeners

    def add(self, listener: Tell) -> None:
        """Call this listener for every later event."""
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Tell) -> None:
        """Stop calling a listener."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def __bool__(self) -> bool:
        """Whether there is a listener; without one, events need not be made."""
        return bool(self._listeners)

    def __call__(self, event: ProcessEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # noqa: BLE001 (a listener may raise anything)
                _log.exception("a listener failed on %s", type(event).__name__)


def ignore_event(event: ProcessEvent) -> None:
    """A listener that ignores every event."""
