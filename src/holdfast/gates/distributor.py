"""The loop that moves messages from tenants' queues at a broker to one work queue at the same
broker, taking turns fairly.

A message is sent to the work queue, and then deleted in its own. If the process is killed in
between, it is moved again: the work queue gets it twice, unless it is a FIFO queue. Any number of
distributors may run. Each keeps its turns in memory: they decide only the order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from holdfast.core import bounds
from holdfast.core.fairness import FairTurns, interleaved
from holdfast.engines.broker import Message, Published, QueueLink
from holdfast.errors import EngineUnavailable, HoldfastError
from holdfast.events import Distributed, Tell, ignore_event
from holdfast.ops.queues import Distribution

STEP: Final = 200
"""Maximum number of messages that one step moves."""
MESSAGES_WAITING: Final = 80
"""The depth unless another is given. A quiet tenant waits for as many messages of the others, so
that its first 100 take less than twice as long as if it were alone."""

_COUNT_S = 1.0
"""How long the broker's count of messages may lack those that were just sent."""
_SOON_MS = 50
_IDLE_MS = 250
_IDLE_MS_MAX = 2 * bounds.SECOND_MS

Parcel = tuple[str, Message]
"""A message and its source."""


class MessageDistributor:
    """Carries out one distribution, of `limit` messages in all."""

    name = "distributor"
    sleep_ms_max = _IDLE_MS_MAX

    def __init__(
        self,
        link_of: Callable[[], QueueLink],
        wanted: Distribution,
        *,
        limit: int | None = None,
        tell: Tell = ignore_event,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._link_of = link_of
        self._wanted = wanted
        self._left = limit
        self._tell = tell
        self._clock_s = clock_s
        self._link: QueueLink | None = None
        self._turns = FairTurns()
        self._sent: deque[tuple[float, int]] = deque()
        self._idle_ms = _IDLE_MS

    async def once(self) -> int:
        """Move one batch; the time to the next. An idle broker is asked ever less often."""
        try:
            moved = await self._step(await self._opened())
        except HoldfastError:
            await self.close()
            raise
        if moved:
            self._idle_ms = _IDLE_MS
            return _SOON_MS
        self._idle_ms = min(2 * self._idle_ms, _IDLE_MS_MAX)
        return self._idle_ms

    async def close(self) -> None:
        """Close the link: messages that were not moved return to their source."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(HoldfastError):
                await link.close()

    async def _opened(self) -> QueueLink:
        if self._link is None:
            self._link = self._link_of()
            await self._link.open()
        return self._link

    async def _step(self, link: QueueLink) -> int:
        wanted = self._wanted
        found, depth = await asyncio.gather(link.waiting(wanted.source), link.depth(wanted.target))
        waiting = {name: count for name, count in found.items() if wanted.feeds_from(name)}
        self._turns.forget_others(list(waiting))
        room = min(wanted.depth - max(depth, self._sent_lately()), STEP)
        if self._left is not None:
            room = min(room, self._left)
        order = self._turns.order(waiting, room, wanted.weights)
        if not order:
            return 0
        taken, failure = await self._take(link, Counter(order))
        moved = await self._move(link, interleaved(order, taken))
        if failure is not None:
            raise failure
        return moved

    async def _take(
        self, link: QueueLink, counts: Counter[str]
    ) -> tuple[dict[str, deque[Parcel]], HoldfastError | None]:
        """Messages of each source, and the error of one that gave none: the others are moved."""
        answers = await asyncio.gather(
            *(link.take(name, count) for name, count in counts.items()), return_exceptions=True
        )
        taken: dict[str, deque[Parcel]] = defaultdict(deque)
        failure: HoldfastError | None = None
        for name, answer in zip(counts, answers, strict=True):
            if isinstance(answer, HoldfastError):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                taken[name].extend((name, message) for message in answer)
        return taken, failure

    async def _move(self, link: QueueLink, parcels: Sequence[Parcel]) -> int:
        """Send the messages, and then delete those that were sent; the others return at once."""
        if not parcels:
            return 0
        try:
            answers = await link.forward(self._wanted.target, parcels)
        except HoldfastError:
            await _each(link.give_back, parcels)
            raise
        sent = [each for each, answer in zip(parcels, answers, strict=True) if not answer.error]
        failed = [each for each, answer in zip(parcels, answers, strict=True) if answer.error]
        self._count(Counter(source for source, _ in sent))
        await _each(link.acknowledge, sent)
        if failed:
            await _each(link.give_back, failed)
            raise EngineUnavailable(_why(answers))
        return len(sent)

    def _count(self, moved: Counter[str]) -> None:
        if not moved:
            return
        for source, count in moved.items():
            for _ in range(count):
                self._turns.took(source, self._wanted.weights.get(source, 1))
        total = moved.total()
        self._sent.append((self._clock_s(), total))
        if self._left is not None:
            self._left -= total
        self._tell(Distributed(queue=self._wanted.target, moved=dict(moved)))

    def _sent_lately(self) -> int:
        """The messages that the count of the work queue may lack."""
        while self._sent and self._clock_s() - self._sent[0][0] >= _COUNT_S:
            self._sent.popleft()
        return sum(count for _, count in self._sent)


async def _each(
    call: Callable[[str, Sequence[Message]], Awaitable[None]], parcels: Sequence[Parcel]
) -> None:
    """Call it for the messages of each source."""
    by_source: defaultdict[str, list[Message]] = defaultdict(list)
    for source, message in parcels:
        by_source[source].append(message)
    await asyncio.gather(*(call(*each) for each in by_source.items()))


def _why(answers: Sequence[Published]) -> str:
    return next(answer.error for answer in answers if answer.error)
