"""Parts of leasing that engines share: long polling, fencing tokens and the return of leases
whose caller was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Complete, Outcome, Release, Settlement
from holdfast.errors import HoldfastError

RANDOM_BITS = 16
"""Random bits of a token. They keep tokens unique even if a store loses its last commits and
reuses their numbers. A token fits into 53 bits for the first 137 billion leases, so every JSON
reader keeps it exact."""

_CANCELLED = Release("the caller was cancelled", unstarted=True)
SKIPPED_MANY = 1_000
LONG_ATTEMPT_S = 0.005
_REST_TIMES = 9
"""At most a tenth of the time is spent on attempts that skip many jobs of other tasks."""

Settle = Callable[[Sequence[Settlement]], Awaitable[list[Outcome]]]
PendingLeases = list[Lease] | asyncio.Future[list[Lease]]
"""Leases, or the task that is still taking them."""


class LeaseAttempt(NamedTuple):
    """The outcome of one attempt to lease."""

    leases: list[Lease]
    next_ms: int | None = None
    """Without leases: the time to the next due job, if there is one."""
    skipped: int = 0
    """Without leases: due jobs of other tasks that were skipped; from SKIPPED_MANY on, a lower
    bound."""


async def lease_with_wait(
    request: LeaseRequest,
    attempt: Callable[[LeaseRequest], Awaitable[LeaseAttempt]],
    bell: Bell,
    *,
    net_ms: int,
    open_: Callable[[], bool],
) -> list[Lease]:
    """Lease; if nothing is due, wait for a ring, the next due job or `net_ms` and try again, until
    the request's wait is over or the engine is closed.

    An attempt that took long because it skipped many jobs of other tasks is not repeated at every
    ring. One that took long for any other reason is: on a busy machine every attempt does.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + request.wait_ms / 1000
    while True:
        ticket = bell.ticket
        began = loop.time()
        leases, next_ms, skipped = await attempt(request)
        left = end - loop.time()
        if leases or left <= 0 or not open_():
            return leases
        took_s = loop.time() - began
        sleep_ms = net_ms if next_ms is None else min(net_ms, max(next_ms, 1))
        if skipped >= SKIPPED_MANY and took_s > LONG_ATTEMPT_S:
            await asyncio.sleep(min(left, took_s * _REST_TIMES, net_ms / 1000))
        await bell.wait(ticket, min(left, sleep_ms / 1000))
        if not open_():
            return []


class Bell:
    """A ring wakes every waiter whose ticket is older than the ring, even one that was not yet
    waiting."""

    def __init__(self) -> None:
        self._rings = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def ticket(self) -> int:
        return self._rings

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def ring(self) -> None:
        """Wake all waiters. Call it on the event loop's thread."""
        self._rings += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def announce(self) -> None:
        """Ring, and tell the listeners: a call of this engine may have made a job due."""
        self.ring()
        for listener in self._listeners:
            listener()

    def on_announce(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each announcement, in the context of the call that made it."""
        self._listeners.append(listener)

    async def wait(self, ticket: int, timeout_s: float) -> None:
        """Return when the bell has rung since `ticket` was taken, or after the timeout."""
        if self._rings != ticket or timeout_s <= 0:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


def may_make_due(settlements: Iterable[Settlement]) -> bool:
    """True if these verdicts alone may give a waiting lease something to do. A plain completion
    may not, unless jobs were waiting for that job."""
    return any(type(one.verdict) is not Complete or one.verdict.then for one in settlements)


def make_token(number: int) -> int:
    """A growing number with random low bits, so that external stores can compare tokens. `number`
    must be greater than that of every earlier lease of the same job."""
    return number << RANDOM_BITS | secrets.randbits(RANDOM_BITS)


class LeaseReturns:
    """Releases the leases of cancelled callers of one engine in the background. If that fails,
    they lapse; `log` then gets a warning."""

    def __init__(
        self,
        settle: Settle,
        release: Release = _CANCELLED,
        log: logging.Logger | None = None,
    ) -> None:
        self._settle = settle
        self._release = release
        self._log = log
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, leases: PendingLeases) -> None:
        """Release these."""
        task = asyncio.get_running_loop().create_task(self._give_back(leases))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def ended(self, timeout_s: float | None = None) -> None:
        """Wait for the releases that are running, and for those that begin meanwhile."""
        while self._under_way:
            _, running = await asyncio.wait(self._under_way, timeout=timeout_s)
            if running:
                return

    async def _give_back(self, leases: PendingLeases) -> None:
        taken: list[Lease] = []
        try:
            taken = await leases if isinstance(leases, asyncio.Future) else leases
            if taken:
                await self._settle([Settlement(lease=one, verdict=self._release) for one in taken])
        except HoldfastError as error:
            if self._log is not None:
                self._log.warning(
                    "%d leases of a caller that left will lapse: %s", len(taken), error
                )
