"""How much a server takes on at once: beyond that it refuses, before it hurts anybody.

Requests, long-polls and streams are bounded apart, and one namespace gets at most half of each, so
that it cannot keep others out. One tick watches all deadlines, the loop's lag and the stop: a
request pays for no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from holdfast.errors import Overloaded
from holdfast.server.refusals import Stopping
from holdfast.server.state import Server

_TICK_S = 0.1
_LAG_REQUESTS = 16
"""A slow loop with fewer requests than these is slow for another reason."""
_OPEN_MAX = 64
"""What is for everybody, such as a probe of a server's health, has room of its own: a busy server
is not to be taken for a dead one."""
_BYTES_FREE = 64 * 1024
"""Bodies up to this size are bounded by the number of requests alone."""


class Kind(StrEnum):
    REQUEST = "requests"
    OPEN = "open requests"
    WAIT = "long-polls"
    STREAM = "streams"


_LASTING = (Kind.WAIT, Kind.STREAM)


class Why(StrEnum):
    """Why a request was ended from outside."""

    LATE = "late"
    LEFT = "left"
    STOPPING = "stopping"


class Ticket:
    """One request under way, in a task of its own."""

    __slots__ = ("holds", "kind", "late_at", "namespace", "reading", "task", "undo", "why")

    def __init__(self, kind: Kind, task: asyncio.Task[Any], late_at: float) -> None:
        self.kind = kind
        self.task = task
        self.late_at = late_at
        self.namespace: str | None = None
        self.holds = 0
        self.reading = False
        self.undo: Callable[[], Awaitable[None]] | None = None
        self.why: Why | None = None

    def end(self, why: Why) -> None:
        if self.why is None:
            self.why = why
            self.task.cancel()

    def heed(self) -> None:
        """It is known now that it was ended: what follows may be ended anew."""
        if self.why is not None:
            self.why = None
            self.task.uncancel()


class Pressure:
    """What is under way in one server, and whether there is room for more."""

    def __init__(self, server: Server) -> None:
        settings = server.settings
        self._stopping = server.stopping
        self._most = {
            Kind.REQUEST: settings.requests_max,
            Kind.OPEN: _OPEN_MAX,
            Kind.WAIT: settings.waiters_max,
            Kind.STREAM: settings.streams_max,
        }
        self._bytes_max = settings.held_bytes_max
        self._lag_s_max = settings.lag_ms_max / 1000
        self._request_s = settings.request_ms_max / 1000
        self._wait_s = settings.wait_ms_max / 1000
        self._stall_s = settings.slow_ms_max / 1000
        self._counts = dict.fromkeys(Kind, 0)
        self._shares: Counter[tuple[Kind, str | None]] = Counter()
        self._bytes: Counter[str | None] = Counter()
        self._bytes_all = 0
        self._timed: set[Ticket] = set()
        self._lasting: set[Ticket] = set()
        self._ticking: asyncio.TimerHandle | None = None
        self.lag_s = 0.0

    def begin(self, kind: Kind) -> Ticket:
        """Room for one more, before anything is known of who asks."""
        counts = self._counts
        if counts[kind] >= self._most[kind]:
            raise Overloaded(f"{counts[kind]} {kind} are under way, which is all at once")
        if kind is not Kind.OPEN:
            self._check_strain(counts[Kind.REQUEST])
        lasting = kind in _LASTING
        if lasting and self._stopping.is_set():
            raise Stopping("the server is stopping")
        task = asyncio.current_task()
        assert task is not None
        now = time.monotonic()
        seconds = self._request_s + (self._wait_s if kind is Kind.WAIT else 0.0)
        ticket = Ticket(kind, task, now + seconds)
        counts[kind] += 1
        self._timed.add(ticket)
        if lasting:
            self._lasting.add(ticket)
        if self._ticking is None:
            self._expect_tick(now)
        return ticket

    def share(self, ticket: Ticket, namespace: str) -> None:
        """Room for one more of this namespace, when it is known."""
        kind = ticket.kind
        if self._shares[kind, namespace] >= max(1, self._most[kind] // 2):
            raise Overloaded(f"the {kind} of this namespace are all that it may have at once")
        ticket.namespace = namespace
        self._shares[kind, namespace] += 1

    def hold(self, ticket: Ticket, size: int, *, refuse: bool = True) -> None:
        """So many bytes are in hand for it. An answer that is there is held in any case."""
        if size <= _BYTES_FREE:
            return
        more = size - ticket.holds
        namespace = ticket.namespace
        if refuse and (
            self._bytes_all + more > self._bytes_max
            or self._bytes[namespace] + more > self._bytes_max // 2
        ):
            raise Overloaded("the bodies and answers under way are all that is held at once")
        ticket.holds = size
        self._bytes[namespace] += more
        self._bytes_all += more

    def sending(self, ticket: Ticket) -> None:
        """From now on it is the reader who must keep up; stopping does not cut an answer short."""
        ticket.late_at = time.monotonic() + self._stall_s
        if ticket.kind is Kind.STREAM:
            self._timed.add(ticket)
        else:
            self._lasting.discard(ticket)

    def sent(self, ticket: Ticket) -> None:
        """A part of a stream has gone out; until the next there is no hurry."""
        self._timed.discard(ticket)

    def finish(self, ticket: Ticket) -> None:
        kind = ticket.kind
        self._counts[kind] -= 1
        self._timed.discard(ticket)
        self._lasting.discard(ticket)
        namespace = ticket.namespace
        if namespace is not None:
            left = self._shares[kind, namespace] - 1
            if left:
                self._shares[kind, namespace] = left
            else:
                # A name that is not in use takes no room.
                del self._shares[kind, namespace]
        if ticket.holds:
            self._bytes_all -= ticket.holds
            self._bytes[namespace] -= ticket.holds
            if not self._bytes[namespace]:
                del self._bytes[namespace]

    def under_way(self) -> dict[str, int]:
        return {kind.value: count for kind, count in self._counts.items()}

    def _check_strain(self, requests: int) -> None:
        if self._bytes_all > self._bytes_max:
            raise Overloaded("the bodies and answers under way are all that is held at once")
        if self.lag_s > self._lag_s_max and requests >= _LAG_REQUESTS:
            raise Overloaded("the server is behind with what it has taken on")

    def _expect_tick(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(_TICK_S, self._tick, now + _TICK_S)

    def _tick(self, expected: float) -> None:
        now = time.monotonic()
        self.lag_s = max(0.0, now - expected)
        for ticket in [each for each in self._timed if each.late_at <= now]:
            ticket.end(Why.LATE)
        if self._stopping.is_set():
            for ticket in list(self._lasting):
                ticket.end(Why.STOPPING)
        self._ticking = None
        if self._timed or self._lasting:
            self._expect_tick(now)
