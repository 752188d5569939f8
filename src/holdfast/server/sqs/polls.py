"""Long polls: one waiting lease for all pollers of a queue with the same visibility timeout.

Pollers are served in order of arrival, and a message wakes only the poller that gets it. Leases
for a client that left go to the next poller, or back to the queue without counting as a receive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from holdfast.core.model import Lease
from holdfast.core.text import counted
from holdfast.errors import HoldfastError

LEASES_MAX = 100
"""Messages that are leased at once, for several pollers."""
WAIT_MS = 20_000
"""How long one lease waits before the next one is made, if nothing arrives."""

_log = logging.getLogger("holdfast.server")


class PollLeaser(Protocol):
    """Leases the messages of one queue. With `in_groups`, a call leases for one poller only, since
    the messages of a group must not be divided."""

    @property
    def in_groups(self) -> bool: ...

    async def lease(self, most: int, wait_ms: int) -> list[Lease]:
        """Lease at most `most` messages, and wait `wait_ms` for the first. A call that is cancelled
        holds no lease."""

    async def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that no client received."""


class Polls:
    """The long polls of one server. Pollers with equal keys share one waiting lease."""

    def __init__(self) -> None:
        self._shared_polls: dict[Hashable, _SharedPoll] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def receive(
        self, key: Hashable, leaser: PollLeaser, *, most: int, wait_ms: int
    ) -> list[Lease]:
        """At most `most` leases as soon as there is one; none after `wait_ms`. A shared poll uses
        the leaser of its first poller."""
        shared = self._shared_polls.get(key)
        if shared is None:
            shared = _SharedPoll(
                leaser,
                give_back=lambda leases: self._release(leaser, leases),
                ended=lambda: self._end(key),
            )
            self._shared_polls[key] = shared
        return await shared.receive(most, wait_ms)

    @property
    def waiting(self) -> int:
        """The number of pollers that wait."""
        return sum(len(shared.pollers) for shared in self._shared_polls.values())

    async def close(self) -> None:
        """Answer all pollers with nothing, and wait until undelivered leases are given back."""
        for shared in list(self._shared_polls.values()):
            await shared.close()
        while self._releases:
            await asyncio.wait(self._releases)

    def _end(self, key: Hashable) -> None:
        del self._shared_polls[key]

    def _release(self, leaser: PollLeaser, leases: Sequence[Lease]) -> None:
        task = asyncio.get_running_loop().create_task(_give_back(leaser, leases))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)


class _Poller:
    """One waiting request; its answer is empty when its time is over."""

    __slots__ = ("answer", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Answer with nothing, unless it was answered."""
        if not self.answer.done():
            self.answer.set_result([])


class _SharedPoll:
    """The pollers that share one waiting lease. Its task runs while there are any."""

    def __init__(
        self,
        leaser: PollLeaser,
        *,
        give_back: Callable[[Sequence[Lease]], None],
        ended: Callable[[], None],
    ) -> None:
        self.pollers: OrderedDict[_Poller, None] = OrderedDict()
        self._leaser = leaser
        self._give_back = give_back
        self._ended = ended
        self._is_open = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def receive(self, most: int, wait_ms: int) -> list[Lease]:
        poller = _Poller(most)
        self.pollers[poller] = None
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, poller.end)
        try:
            return await poller.answer
        except asyncio.CancelledError:
            answer = poller.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The leases arrived, but the client left before it could take them.
                self._deliver(answer.result())
            raise
        finally:
            timer.cancel()
            self.pollers.pop(poller, None)
            if not self.pollers:
                self._leave()
                self._task.cancel()

    async def close(self) -> None:
        for poller in self.pollers:
            poller.end()
        self._leave()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while (most := self._wanted()) > 0:
                self._deliver(await self._leaser.lease(most, WAIT_MS))
        except Exception as error:  # noqa: BLE001 (it is raised again in every poller)
            for poller in self.pollers:
                if not poller.answer.done():
                    poller.answer.set_exception(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Accept no later poller."""
        if self._is_open:
            self._is_open = False
            self._ended()

    def _wanted(self) -> int:
        """The number of messages that the pollers can take now, up to a bound."""
        total = 0
        for poller in self.pollers:
            if not poller.answer.done():
                total += poller.most
            if total >= LEASES_MAX or (total and self._leaser.in_groups):
                break
        return min(total, LEASES_MAX)

    def _deliver(self, leases: Sequence[Lease]) -> None:
        """Give leases to the pollers in their order, and the rest back. The rest of a group goes
        back as well: another consumer would work on it at the same time."""
        left = list(leases)
        while left and (poller := self._first()) is not None:
            share, left = left[: poller.most], left[poller.most :]
            groups = {lease.job.group for lease in share} - {None}
            divided = [lease for lease in left if lease.job.group in groups]
            if divided:
                self._give_back(divided)
                left = [lease for lease in left if lease.job.group not in groups]
            del self.pollers[poller]
            poller.answer.set_result(share)
        if left:
            self._give_back(left)

    def _first(self) -> _Poller | None:
        """The first poller that still waits."""
        return next((poller for poller in self.pollers if not poller.answer.done()), None)


async def _give_back(leaser: PollLeaser, leases: Sequence[Lease]) -> None:
    try:
        await leaser.give_back(leases)
    except HoldfastError as error:
        _log.warning(
            "%s for clients that left will lapse: %s", counted(len(leases), "lease"), error
        )
