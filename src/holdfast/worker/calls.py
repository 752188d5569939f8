"""Calls in the hands of one child: which jobs, since when, how many more it may be given.

A child is given as many calls as it has slots, and some ahead when they are short: as many as it
works off in some milliseconds, so that neither waits for the other.
"""

from __future__ import annotations

from time import monotonic

from holdfast.core import limits
from holdfast.core.model import Failure, Job
from holdfast.worker.hand import Held
from holdfast.worker.link import Link
from holdfast.worker.wire import Call, Given

_AHEAD_S = 0.02
_AHEAD_MAX = 512


class Placed:
    """A call that was given to a child."""

    __slots__ = ("cancelled", "gentle", "held", "lost_at", "number", "timeout_ms")

    def __init__(self, number: int, held: list[Held], timeout_ms: int | None, gentle: bool) -> None:
        self.number = number
        self.held = held
        self.timeout_ms = timeout_ms
        self.gentle = gentle
        self.cancelled = False
        self.lost_at: float | None = None


class Seat:
    """One child and what it was given."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.slots = link.setup.slots
        self.ready = False
        self.finishing = False
        self.calls: dict[int, Placed] = {}
        self.guilty: dict[int, Failure] = {}
        self.ending = ""
        """Why it was killed, when it was not by itself."""
        self.idle_since = monotonic()
        self.started_at = monotonic()
        self._ended = 0
        self._rate = 0.0

    @property
    def room(self) -> int:
        """How many more calls it may be given now."""
        if not self.ready or self.finishing or self.ending or self.link.status is not None:
            return 0
        ahead = 0 if self.link.solo else min(int(self._rate * _AHEAD_S), _AHEAD_MAX)
        return self.slots + ahead - len(self.calls)

    def place(self, placed: Placed) -> None:
        self.calls[placed.number] = placed

    def take_back(self, number: int) -> Placed | None:
        """The call is over, or was given back."""
        placed = self.calls.pop(number, None)
        if placed is not None:
            self._ended += 1
            if not self.calls:
                self.idle_since = monotonic()
        return placed

    def measure(self, seconds: float) -> None:
        """Called at every tick: how many calls a second end here, lately."""
        rate, self._ended = self._ended / seconds, 0
        self._rate += (rate - self._rate) * 0.5


def call_of(placed: Placed, task: str, last: list[bool]) -> Call:
    jobs = tuple(
        _given(held.lease.job, held.lease.token, final)
        for held, final in zip(placed.held, last, strict=True)
    )
    return Call(placed.number, task, jobs, placed.timeout_ms)


def _given(job: Job, token: int, last: bool) -> Given:
    return Given(
        job.id,
        job.queue,
        job.payload,
        job.content_type,
        job.attempt,
        token,
        job.created_at,
        last,
        job.checkpoint,
        job.key,
        job.tenant,
        job.labels,
        job.headers,
    )


COMMAND = "command"
GENTLE_MS = limits.SECOND_MS
