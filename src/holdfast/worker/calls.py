"""Calls in the hands of one child: which jobs, since when, how many more it may be given.

A child is given as many calls as it has slots, and some ahead when they are short: as many as it
works off in some milliseconds, so that neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from holdfast.core import limits
from holdfast.core.model import Failure, Lease, Queue
from holdfast.core.policy import exhausted, timeout_ms
from holdfast.worker.board import ALWAYS_NS
from holdfast.worker.hand import Held
from holdfast.worker.link import Link
from holdfast.worker.wire import Call, Given

_AHEAD_S = 0.02
_AHEAD_MAX = 512
UNSTARTED_S = 15.0
"""A job that was leased and has not started for so long goes back: somebody else may be free."""


class Placed:
    """A call that was given to a child."""

    __slots__ = ("cancelled", "gentle", "held", "lost_at", "number", "timeout_ms")

    def __init__(self, number: int, held: list[Held], gentle: bool) -> None:
        self.number = number
        self.held = held
        self.timeout_ms: int | None = None
        self.gentle = gentle
        self.cancelled = False
        self.lost_at: float | None = None

    def begin_before_ns(self) -> int:
        return int(min(held.begin_before() for held in self.held) * 1e9)


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
        self._ended = 0
        self._rate = 0.0
        self._started = 0
        self._held_up_at = monotonic()

    @property
    def room(self) -> int:
        """How many more calls it may be given now."""
        if not self.ready or self.finishing or self.ending or self.link.status is not None:
            return 0
        ahead = 0 if self.link.solo else min(int(self._rate * _AHEAD_S), _AHEAD_MAX)
        return self.slots + ahead - len(self.calls)

    def add(self, placed: Placed) -> None:
        """Before the child hears of it: the board must not promise more than its lease."""
        self.calls[placed.number] = placed
        board = self.link.board
        board.until_ns = min(board.until_ns, placed.begin_before_ns())

    def vouch(self) -> None:
        """Called at every tick, and whenever leases were renewed: the child may begin calls as
        long as all that it could begin are ours. A lost one counts until the child has let go of
        it; what runs has begun."""
        running = self.link.board.running()
        self.link.board.until_ns = min(
            (
                placed.begin_before_ns()
                for number, placed in self.calls.items()
                if number not in running
            ),
            default=ALWAYS_NS,
        )

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

    def held_up_s(self, now: float) -> float:
        """Called at every tick: how long calls have waited in the child while none started."""
        before, self._started = self._started, self.link.board.started
        if len(self.calls) <= self.slots or before != self._started:
            self._held_up_at = now
        return now - self._held_up_at


def to_recall(seats: list[Seat], now: float) -> list[Seat]:
    """Children that are held up, while another like them is not; or for so long that another
    worker should have what waits in them."""
    recalled: list[Seat] = []
    for seat in seats:
        held_up_s = seat.held_up_s(now)
        others = (one for one in seats if one.link.kind == seat.link.kind)
        free = any(one.room > 0 and len(one.calls) < one.slots for one in others)
        if held_up_s > UNSTARTED_S or (held_up_s > 0 and free):
            recalled.append(seat)
    return recalled


def call_of(placed: Placed, queue_of: Callable[[str], Queue]) -> Call:
    """The call as its child gets it; the shortest timeout of its jobs is the call's."""
    given: list[Given] = []
    for held in placed.held:
        held.call = placed.number
        job = held.lease.job
        queue = queue_of(job.queue)
        placed.timeout_ms = shorter(placed.timeout_ms, timeout_ms(queue, job))
        given.append(given_of(held.lease, queue))
    return Call(placed.number, placed.held[0].lease.job.task, tuple(given), placed.timeout_ms)


def given_of(lease: Lease, queue: Queue) -> Given:
    """A leased job as far as its handler may see it."""
    job = lease.job
    return Given(
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
    )


def shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    """Of two timeouts, either of which may not be there."""
    if one_ms is None or other_ms is None:
        return one_ms or other_ms
    return min(one_ms, other_ms)


COMMAND = "command"
BUILT_IN = frozenset((COMMAND, "webhook"))
"""The tasks that need no application."""
GENTLE_MS = limits.SECOND_MS
