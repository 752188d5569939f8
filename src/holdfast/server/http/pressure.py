"""Bounds on the work in progress on a server; requests beyond them are refused at once. Requests,
long polls and streams are bounded separately, and one namespace gets at most half of each, so that
it cannot crowd out the others. A request counts only once its body is complete: unfinished bodies
have bounds of their own, and the oldest gives way to a new one. One timer checks all deadlines, the
event loop's lag and the stop, so that a request needs no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

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
"""Complete bodies up to this size are bounded by the number of requests alone."""


class RequestKind(StrEnum):
    """The kinds of requests that are bounded separately."""

    REQUEST = "requests"
    OPEN = "open requests"
    WAIT = "long-polls"
    STREAM = "streams"
    BODY = "unfinished bodies"


_LONG_LIVED = (RequestKind.WAIT, RequestKind.STREAM)


class EndReason(StrEnum):
    """Why the server ended a request."""

    LATE = "late"
    DISCONNECTED = "disconnected"
    STOPPING = "stopping"
    REVOKED = "revoked"


class Ticket:
    """One request in progress, in its own task. `counted` is the kind that it is counted as: its
    own, or that of unfinished bodies until its body is complete."""

    __slots__ = (
        "counted",
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
        self.kind: RequestKind = kind
        self.counted: RequestKind | None = None
        self.task: Final = task
        self.deadline: float = deadline
        self.namespace: str | None = None
        self.held_bytes: int = 0
        self.reading: bool = False
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
            RequestKind.BODY: settings.bodies_max,
        }
        self._shares_max = {kind: max(1, count // 2) for kind, count in self._counts_max.items()}
        self._bytes_max = settings.held_bytes_max
        self._lag_s_max = settings.lag_ms_max / 1000
        self._request_s = settings.request_ms_max / 1000
        self._wait_s = settings.wait_ms_max / 1000
        self._stall_s = settings.slow_ms_max / 1000
        self._counts = dict.fromkeys(RequestKind, 0)
        self._shares: Counter[tuple[RequestKind, str | None]] = Counter()
        self._unfinished: dict[str | None, dict[Ticket, None]] = {}
        """Requests with an unfinished body by namespace, the oldest first."""
        self._bytes: Counter[str | None] = Counter()
        self._bytes_total = 0
        self._timed: set[Ticket] = set()
        self._long_lived: set[Ticket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.lag_s: float = 0.0

    def begin(self, kind: RequestKind, *, has_body: bool = False) -> Ticket:
        """Admit one more request, before its caller is known. Raises Overloaded or Stopping."""
        self._check_count(kind)
        if kind is not RequestKind.OPEN:
            self._check_load(self._counts[RequestKind.REQUEST])
        if kind in _LONG_LIVED and self._stopping.is_set():
            raise Stopping("the server is stopping")
        task = asyncio.current_task()
        assert task is not None
        now = time.monotonic()
        ticket = Ticket(kind, task, now + self._request_s)
        if has_body:
            if self._counts[RequestKind.BODY] >= self._counts_max[RequestKind.BODY]:
                self._drop(self._oldest_of(max(self._unfinished, key=self._unfinished_count)))
            self._add_body(ticket)
        else:
            self._count(ticket, now)
        self._timed.add(ticket)
        if self._timer is None:
            self._schedule_tick(now)
        return ticket

    def share(self, ticket: Ticket, namespace: str) -> None:
        """Charge the request to its namespace. Raises Overloaded beyond the namespace's half."""
        kind = ticket.kind
        self._check_share(kind, namespace)
        if ticket.counted is RequestKind.BODY:
            self._remove_body(ticket)
            if self._unfinished_count(namespace) >= self._shares_max[RequestKind.BODY]:
                self._drop(self._oldest_of(namespace))
            ticket.namespace = namespace
            self._add_body(ticket)
        elif ticket.counted is not None:
            ticket.namespace = namespace
            self._shares[kind, namespace] += 1

    def complete(self, ticket: Ticket) -> None:
        """The body has arrived: count the request itself from now on. Raises Overloaded or
        Stopping."""
        self._remove_body(ticket)
        kind, namespace = ticket.kind, ticket.namespace
        assert namespace is not None
        self._check_count(kind)
        self._check_share(kind, namespace)
        if kind in _LONG_LIVED and self._stopping.is_set():
            raise Stopping("the server is stopping")
        self._shares[kind, namespace] += 1
        self._count(ticket, time.monotonic())

    def admit(self, ticket: Ticket, namespace: str, size: int) -> None:
        """Charge a request whose body of `size` bytes has arrived to its namespace, and count it
        from now on. For requests whose namespace is known only by then. Raises as `hold` and
        `complete` do."""
        self._remove_body(ticket)
        self._hold(ticket, 0)
        ticket.namespace = namespace
        self.hold(ticket, size)
        self.complete(ticket)

    def hold(
        self, ticket: Ticket, size: int, *, unfinished: bool = False, refuse: bool = True
    ) -> None:
        """Count the bytes that the request holds in memory. Older unfinished bodies give way; if
        that is not enough, raises Overloaded. A finished answer is never refused."""
        if size <= _BYTES_FREE and not unfinished:
            size = 0
        namespace = ticket.namespace
        while refuse and size > ticket.held_bytes:
            more = size - ticket.held_bytes
            own_is_full = self._bytes[namespace] + more > self._bytes_max // 2
            if not own_is_full and self._bytes_total + more <= self._bytes_max:
                break
            crowd = namespace if own_is_full else max(self._bytes, key=self._bytes.__getitem__)
            oldest = self._oldest_of(crowd, apart_from=ticket)
            if oldest is None:
                raise Overloaded(
                    "the bodies and answers in progress fill the server's memory bound"
                )
            self._drop(oldest)
        self._hold(ticket, size)

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
        self._timed.discard(ticket)
        self._long_lived.discard(ticket)
        self._hold(ticket, 0)
        kind, namespace = ticket.counted, ticket.namespace
        if kind is RequestKind.BODY:
            self._remove_body(ticket)
        elif kind is not None:
            self._counts[kind] -= 1
            if namespace is not None:
                left = self._shares[kind, namespace] - 1
                if left:
                    self._shares[kind, namespace] = left
                else:
                    # Keep no entry for an idle namespace.
                    del self._shares[kind, namespace]

    def under_way(self) -> dict[str, int]:
        """The number of requests in progress, by kind."""
        return {kind.value: count for kind, count in self._counts.items()}

    def _count(self, ticket: Ticket, now: float) -> None:
        """Count a request that is complete, and give it its full time."""
        kind = ticket.counted = ticket.kind
        self._counts[kind] += 1
        ticket.deadline = now + self._request_s
        if kind is RequestKind.WAIT:
            ticket.deadline += self._wait_s
        if kind in _LONG_LIVED:
            self._long_lived.add(ticket)

    def _add_body(self, ticket: Ticket) -> None:
        ticket.counted = RequestKind.BODY
        self._counts[RequestKind.BODY] += 1
        self._unfinished.setdefault(ticket.namespace, {})[ticket] = None

    def _remove_body(self, ticket: Ticket) -> None:
        if ticket.counted is not RequestKind.BODY:
            return
        ticket.counted = None
        self._counts[RequestKind.BODY] -= 1
        own = self._unfinished[ticket.namespace]
        del own[ticket]
        if not own:
            del self._unfinished[ticket.namespace]

    def _unfinished_count(self, namespace: str | None) -> int:
        return len(self._unfinished.get(namespace, ()))

    def _oldest_of(
        self, namespace: str | None, *, apart_from: Ticket | None = None
    ) -> Ticket | None:
        """The request of a namespace whose body has been unfinished for longest."""
        bodies = self._unfinished.get(namespace, ())
        return next((each for each in bodies if each is not apart_from), None)

    def _drop(self, ticket: Ticket | None) -> None:
        """End a request whose body is unfinished, and free its place at once."""
        if ticket is not None:
            self._remove_body(ticket)
            self._hold(ticket, 0)
            ticket.end(EndReason.LATE)

    def _hold(self, ticket: Ticket, size: int) -> None:
        more = size - ticket.held_bytes
        if not more:
            return
        ticket.held_bytes = size
        self._bytes_total += more
        self._bytes[ticket.namespace] += more
        if not self._bytes[ticket.namespace]:
            del self._bytes[ticket.namespace]

    def _check_count(self, kind: RequestKind) -> None:
        count = self._counts[kind]
        if count >= self._counts_max[kind]:
            raise Overloaded(f"the server has {count} {kind} in progress, its maximum")

    def _check_share(self, kind: RequestKind, namespace: str) -> None:
        if self._shares[kind, namespace] >= self._shares_max[kind]:
            raise Overloaded(f"this namespace has its maximum of {kind} in progress")

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
