"""Consumer: receives messages of one queue, hands them out, and acknowledges or returns them.

It has a channel of its own, which the broker closes at any error, e.g. when a message is not
acknowledged for half an hour. Then the consumer `is_closed`, and the broker delivers the messages
again. Their numbers are never used again, so a late acknowledgement has no effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel

from holdfast.engines.rabbitmq.topology import open_channel

PREFETCH_MAX = 2**16 - 1


class Received(NamedTuple):
    """A message and its number."""

    number: int
    message: DeliveredMessage


class Consumer:
    """Messages of one queue. At most `prefetch` are here and not acknowledged."""

    def __init__(
        self, queue: str, numbers: Iterator[int], arrived: Callable[[], None] = lambda: None
    ) -> None:
        self.queue = queue
        self.prefetch: int = 0
        self._numbers = numbers
        self._arrived = arrived
        self._connection: aiormq.Connection | None = None
        self._channel: Channel | None = None
        self._tag: str | None = None
        self._waiting: deque[Received] = deque()
        self._pending: dict[int, int] = {}
        """Delivery tags by number, in the order of arrival, of all that is not acknowledged."""
        self._new = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """True if the channel is gone, or the broker ended the consumer, e.g. with its queue."""
        channel, tag = self._channel, self._tag
        return channel is None or channel.is_closed or tag not in channel.consumers

    @property
    def waiting(self) -> int:
        """How many messages are here and not handed out."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """How many messages are handed out and not acknowledged."""
        return len(self._pending) - len(self._waiting)

    async def start(self, connection: aiormq.Connection, prefetch: int) -> None:
        """Begin to receive. A missing queue raises the error of the client library."""
        self._connection = connection
        self._channel = await open_channel(connection)
        self._channel.on_consumer_cancel_callbacks.add(lambda _: self._new.set())
        self._channel.closing.add_done_callback(lambda _: self._new.set())
        await self._consume(prefetch)

    async def resize(self, prefetch: int) -> None:
        """Change the prefetch if it is too large or much too small. Messages beyond a smaller one
        that were not handed out are returned to the queue."""
        prefetch = min(prefetch, PREFETCH_MAX)
        if not self.prefetch > prefetch and not prefetch >= 2 * self.prefetch:
            return
        channel, tag = self._open_channel(), self._tag
        if tag is not None:
            self._tag = None
            await channel.basic_cancel(tag)
        await self.give_back([one.number for one in self._waiting])
        await self._consume(prefetch)

    async def wait(self, timeout_s: float) -> None:
        """Return when there are messages that were not handed out, when the consumer is closed, or
        after the timeout."""
        if self._waiting or self.is_closed or timeout_s <= 0:
            return
        self._new.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._new.wait()
        except TimeoutError:
            pass

    def take(self, limit: int) -> list[Received]:
        """Hand out messages that have arrived."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    async def acknowledge(self, numbers: Collection[int]) -> None:
        """Remove messages from the queue; unknown numbers are ignored."""
        tags = self._forget(numbers)
        if not tags:
            return
        channel = self._open_channel()
        first = next(iter(self._pending.values()), None)
        if first is None or first > tags[-1]:
            await channel.basic_ack(tags[-1], multiple=True)
            return
        for tag in tags[:-1]:
            await channel.basic_ack(tag, wait=False)
        await channel.basic_ack(tags[-1])

    async def give_back(self, numbers: Collection[int], *, again: bool = True) -> None:
        """Return messages to the queue; without `again` the broker gives them up instead."""
        gone = set(numbers)
        self._waiting = deque(one for one in self._waiting if one.number not in gone)
        for tag in self._forget(numbers):
            await self._open_channel().basic_nack(tag, requeue=again, wait=False)

    async def stop(self) -> None:
        """Close the channel: messages that are not acknowledged return to the queue."""
        channel, self._channel = self._channel, None
        self._waiting.clear()
        self._pending.clear()
        self._new.set()
        if channel is not None and not channel.is_closed:
            await channel.close()

    async def _consume(self, prefetch: int) -> None:
        channel = self._open_channel()
        self.prefetch = min(prefetch, PREFETCH_MAX)
        await channel.basic_qos(prefetch_count=self.prefetch)
        answer = await channel.basic_consume(self.queue, self._receive)
        self._tag = answer.consumer_tag

    async def _receive(self, message: DeliveredMessage) -> None:
        number = next(self._numbers)
        self._pending[number] = message.delivery_tag or 0
        self._waiting.append(Received(number, message))
        self._new.set()
        self._arrived()

    def _forget(self, numbers: Collection[int]) -> list[int]:
        tags = [self._pending.pop(number, None) for number in numbers]
        return sorted(tag for tag in tags if tag is not None)

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise RuntimeError(f"the consumer of {self.queue} is stopped")
        return self._channel
