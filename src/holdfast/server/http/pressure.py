"""Bounds on the work in progress on a server; requests beyond them are refused at once. Requests,
long polls and streams are bounded separately, and one namespace gets at most half of each, so that
it cannot crowd out the others. One timer checks all deadlines, the event loop's lag and the stop,
so that a request needs no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from holdfast.errors import Overloaded
from holdfast.server.http.problems import Stopping
from holdfast.server.state import ServerState

_TICK_S = 0.1
_LAG_REQUESTS = 16
"""With fewer requests than this, a slow event loop is not caused by load."""
_OPEN_MAX = 64
"""Operations without a scope, such as health probes, have their own bound: a busy server must not
look like a dead one.
"""
_BYTES_FREE = 64 * 1024
"""Bodies up to this size are bounded by the number of requests alone."""


class RequestKind(StrEnum):
    """The kinds of requests that are bounded separately."""

    REQUEST = "requests"
    OPEN = "open requests"
    WAIT = "long-polls"
    STREAM = "streams"


_LONG_LIVED = (RequestKind.WAIT, RequestKind.STREAM)


class EndReason(StrEnum):
    """Why the server ended a request."""

    LATE = "late"
    DISCONNECTED = "disconnected"
    STOPPING = "stopping"


class Ticket:
    """One request in progress, in its own task."""

    __slots__ = (
        "deadline",
        "end_reason",
        "held_bytes",
        "kind",
        "namespace",
        "reading",
        "task",
        "undo",
    )

    def __init__(self, kind: RequestKind, task: asyncio.Task[Any], deadline: float) -> None:
        self.kind = kind
        self.task = task
        self.deadline = deadline
        self.namespace: str | None = None
        self.held_bytes = 0
        self.reading = False
        self.undo: Callable[[], Awaitable[None]] | None = None
        self.end_reason: EndReason | None = None

    def end(self, reason: EndReason) -> None:
        """Cancel the request, once."""
        if self.end_reason is None:
            self.end_reason = reason
            self.task.cancel()

    def clear_end(self) -> None:
        """Clear the cancellation after it was handled, so that the task can be cancelled again."""
        if self.end_reason is not None:
            self.end_reason = None
            self.task.uncancel()


class Pressure:
    """Counts the requests in progress on one server and refuses more than the bounds allow."""

    def __init__(self, server: ServerState) -> None:
        settings = server.settings
        self._stopping = server.stopping
        self._counts_max = {
            RequestKind.REQUEST: settings.requests_max,
            RequestKind.OPEN: _OPEN_MAX,
            RequestKind.WAIT: settings.waiters_max,
            RequestKind.STREAM: settings.streams_max,
        }
        self._bytes_max = settings.held_bytes_max
        self._lag_s_max = settings.lag_ms_max / 1000
        self._request_s = settings.request_ms_max / 1000
        self._wait_s = settings.wait_ms_max / 1000
        self._stall_s = settings.slow_ms_max / 1000
        self._counts = dict.fromkeys(RequestKind, 0)
        self._shares: Counter[tuple[RequestKind, str | None]] = Counter()
        self._bytes: Counter[str | None] = Counter()
        self._bytes_total = 0
        self._timed: set[Ticket] = set()
        self._long_lived: set[Ticket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.lag_s = 0.0

    def begin(self, kind: RequestKind) -> Ticket:
        """Admit one more request, before its caller is known. Raises Overloaded or Stopping."""
        counts = self._counts
        if counts[kind] >= self._counts_max[kind]:
            raise Overloaded(f"the server has {counts[kind]} {kind} in progress, its maximum")
        if kind is not RequestKind.OPEN:
            self._check_load(counts[RequestKind.REQUEST])
        long_lived = kind in _LONG_LIVED
        if long_lived and self._stopping.is_set():
            raise Stopping("the server is stopping")
        task = asyncio.current_task()
        assert task is not None
        now = time.monotonic()
        seconds = self._request_s + (self._wait_s if kind is RequestKind.WAIT else 0.0)
        ticket = Ticket(kind, task, now + seconds)
        counts[kind] += 1
        self._timed.add(ticket)
        if long_lived:
            self._long_lived.add(ticket)
        if self._timer is None:
            self._schedule_tick(now)
        return ticket

    def share(self, ticket: Ticket, namespace: str) -> None:
        """Charge the request to its namespace. Raises Overloaded beyond the namespace's half."""
        kind = ticket.kind
        if self._shares[kind, namespace] >= max(1, self._counts_max[kind] // 2):
            raise Overloaded(f"this namespace has its maximum of {kind} in progress")
        ticket.namespace = namespace
        self._shares[kind, namespace] += 1

    def hold(self, ticket: Ticket, size: int, *, refuse: bool = True) -> None:
        """Count the bytes that the request holds in memory. A finished answer is never refused."""
        if size <= _BYTES_FREE:
            return
        more = size - ticket.held_bytes
        namespace = ticket.namespace
        if refuse and (
            self._bytes_total + more > self._bytes_max
            or self._bytes[namespace] + more > self._bytes_max // 2
        ):
            raise Overloaded("the bodies and answers in progress fill the server's memory bound")
        ticket.held_bytes = size
        self._bytes[namespace] += more
        self._bytes_total += more

    def sending(self, ticket: Ticket) -> None:
        """The answer is being sent: from now on the client must keep reading, and a stop does not
        cut the answer short."""
        ticket.deadline = time.monotonic() + self._stall_s
        if ticket.kind is RequestKind.STREAM:
            self._timed.add(ticket)
        else:
            self._long_lived.discard(ticket)

    def sent(self, ticket: Ticket) -> None:
        """A part of a stream was written: no deadline until the next one."""
        self._timed.discard(ticket)

    def finish(self, ticket: Ticket) -> None:
        """Free everything that a request holds."""
        kind = ticket.kind
        self._counts[kind] -= 1
        self._timed.discard(ticket)
        self._long_lived.discard(ticket)
        namespace = ticket.namespace
        if namespace is not None:
            left = self._shares[kind, namespace] - 1
            if left:
                self._shares[kind, namespace] = left
            else:
                # Keep no entry for an idle namespace.
                del self._shares[kind, namespace]
        if ticket.held_bytes:
            self._bytes_total -= ticket.held_bytes
            self._bytes[namespace] -= ticket.held_bytes
            if not self._bytes[namespace]:
                del self._bytes[namespace]

    def under_way(self) -> dict[str, int]:
        """The number of requests in progress, by kind."""
        return {kind.value: count for kind, count in self._counts.items()}

    def _check_load(self, requests: int) -> None:
        if self._bytes_total > self._bytes_max:
            raise Overloaded("the bodies and answers in progress fill the server's memory bound")
        if self.lag_s > self._lag_s_max and requests >= _LAG_REQUESTS:
            raise Overloaded("the server cannot keep up with the requests in progress")

    def _schedule_tick(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK_S, self._tick, now + _TICK_S)

    def _tick(self, expected: float) -> None:
        now = time.monotonic()
        self.lag_s = max(0.0, now - expected)
        for ticket in [each for each in self._timed if each.deadline <= now]:
            ticket.end(EndReason.LATE)
        if self._stopping.is_set():
            for ticket in list(self._long_lived):
                ticket.end(EndReason.STOPPING)
        self._timer = None
        if self._timed or self._long_lived:
            self._schedule_tick(now)
