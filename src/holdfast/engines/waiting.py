"""Long-polling: a bell that cannot be missed, and the loop that every engine's lease runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Complete, Settlement

_LONG_LOOK_S = 0.005
_REST_TIMES = 9
"""At most a tenth of the time is spent on looks in vain."""


class Bell:
    """Rings wake everyone who took a ticket before the ring, even one who was not yet waiting."""

    def __init__(self) -> None:
        self._rings = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def ticket(self) -> int:
        return self._rings

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)

    def ring(self) -> None:
        """From the loop's own thread."""
        self._rings += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, ticket: int, timeout_s: float) -> None:
        """Return when the bell rang after `ticket` was taken, or when the time is over."""
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
    """Whether somebody who waits could get something after these, whatever they are about: the
    completion of a job that nobody is held up by gives nothing."""
    return any(type(one.verdict) is not Complete or one.verdict.then for one in settlements)


Attempt = Callable[[LeaseRequest], Awaitable[tuple[list[Lease], int | None]]]
"""One try at leasing: what was leased and, if nothing, the time to the next due job."""


async def lease_patiently(
    request: LeaseRequest,
    attempt: Attempt,
    bell: Bell,
    *,
    net_ms: int,
    open_: Callable[[], bool],
) -> list[Lease]:
    """Try, then wait for a ring, the next due job or the net, until the request's wait is over.

    A look that led past many jobs of other tasks took long; it is not done again at every ring.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + request.wait_ms / 1000
    while True:
        ticket = bell.ticket
        began = loop.time()
        leases, next_ms = await attempt(request)
        left = end - loop.time()
        if leases or left <= 0 or not open_():
            return leases
        took_s = loop.time() - began
        nap_ms = net_ms if next_ms is None else min(net_ms, max(next_ms, 1))
        if request.tasks is not None and took_s > _LONG_LOOK_S:
            await asyncio.sleep(min(left, took_s * _REST_TIMES, net_ms / 1000))
        await bell.wait(ticket, min(left, nap_ms / 1000))
        if not open_():
            return []
