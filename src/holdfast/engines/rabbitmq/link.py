"""RabbitLink: whole messages of other programs, for gates. Connects when it is used.

Each source has a channel of its own, so that an error at one does not affect the others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from time import monotonic

import aiormq
from aiormq.channel import Channel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    DeliveryError,
    PublishError,
)

from holdfast.core.text import printable
from holdfast.engines.broker import BrokerStatus, Message, Published
from holdfast.engines.rabbitmq.connection import (
    RabbitTarget,
    amqp_errors,
    dial,
    explain,
    hang_up,
    reply_text,
)
from holdfast.engines.rabbitmq.consumer import Consumer
from holdfast.engines.rabbitmq.message import Properties, foreign_message, message_properties
from holdfast.engines.rabbitmq.topology import has_exchange, open_channel
from holdfast.errors import ConfigError, EngineUnavailable

WINDOW = 256
"""Messages that are sent before the first of them is confirmed."""
CONFIRM_S_MAX = 30.0
NAME_BYTES_MAX, EXCHANGE_MAX = 255, 127
_FRAME_ROOM = 4096
"""For the parts of a frame besides the headers."""


class RabbitLink:
    """See `BrokerLink`."""

    limit_is_costly = True

    def __init__(self, place: str, *, ca: str | None = None, cert: str | None = None) -> None:
        self._target = RabbitTarget.parse(place, ca=ca, cert=cert)
        self._connection: aiormq.Connection | None = None
        self._dialling = asyncio.Lock()
        self._channel: Channel | None = None
        self._opening_channel = asyncio.Lock()
        self._consumers: dict[str, Consumer] = {}
        self._numbers = itertools.count(1)
        self._exchanges: set[str] = set()
        """Those that exist. Publishing to a missing one would end the channel, and with it the
        messages of other gates."""

    async def open(self) -> None:
        await self._connected()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._consumers.clear()
        self._channel = None
        if connection is not None:
            await hang_up(connection)

    async def receive(self, source: str, limit: int, wait_ms: int) -> list[Message]:
        end = monotonic() + wait_ms / 1000
        with amqp_errors(self._target):
            consumer = await self._consumer(source, limit)
            while True:
                if found := consumer.take(limit - consumer.pending):
                    return [foreign_message(*one) for one in found]
                if consumer.is_closed:
                    self._consumers.pop(source, None)
                    raise EngineUnavailable(f"{self._target.where} ended the delivery of {source}")
                left_s = end - monotonic()
                if left_s <= 0:
                    return []
                await consumer.wait(left_s)

    async def acknowledge(self, source: str, messages: Sequence[Message]) -> None:
        consumer = self._receiving(source)
        with amqp_errors(self._target):
            await consumer.acknowledge([one.tag for one in messages])

    async def give_back(self, source: str, messages: Sequence[Message]) -> None:
        consumer = self._consumers.get(source)
        if consumer is not None and not consumer.is_closed:
            with amqp_errors(self._target):
                await consumer.give_back([one.tag for one in messages])

    async def pause(self, source: str) -> None:
        consumer = self._consumers.pop(source, None)
        if consumer is not None:
            with amqp_errors(self._target):
                await consumer.stop()

    async def postpone(self, source: str, delay_ms: int) -> bool:
        return False

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        answers: dict[int, Published] = {}
        for round_ in _rounds(messages):
            for start in range(0, len(round_), WINDOW):
                places = round_[start : start + WINDOW]
                window = [messages[place] for place in places]
                answers |= zip(places, await self._publish(window), strict=True)
        return [answers[place] for place in range(len(messages))]

    async def status(self) -> BrokerStatus:
        try:
            connection = await self._connected()
        except (EngineUnavailable, ConfigError) as error:
            return BrokerStatus(error=str(error))
        return BrokerStatus(version=str(connection.server_properties.get("version", "")))

    async def _connected(self) -> aiormq.Connection:
        async with self._dialling:
            if self._connection is None or self._connection.is_closed:
                self._connection = None
                self._consumers.clear()
                self._channel = None
                self._connection = await dial(self._target, "holdfast gates")
            return self._connection

    def _receiving(self, source: str) -> Consumer:
        consumer = self._consumers.get(source)
        if consumer is None or consumer.is_closed:
            raise EngineUnavailable(
                f"{self._target.where} lost the connection that delivered from {source}: the"
                " messages will be delivered again"
            )
        return consumer

    async def _consumer(self, source: str, limit: int) -> Consumer:
        connection = await self._connected()
        consumer = self._consumers.get(source)
        if consumer is not None and not consumer.is_closed:
            await consumer.resize(limit)
            return consumer
        consumer = Consumer(source, self._numbers)
        try:
            await consumer.start(connection, limit)
        except ChannelNotFoundEntity:
            raise ConfigError(
                f"{self._target.where} has no queue {source!r} in the virtual host"
                f" {self._target.vhost!r}: declare it there, or correct the gate's source"
            ) from None
        except (ChannelAccessRefused, ChannelLockedResource) as error:
            raise ConfigError(explain(self._target, error)) from error
        self._consumers[source] = consumer
        return consumer

    async def _publish(self, messages: Sequence[Message]) -> list[Published]:
        with amqp_errors(self._target):
            connection = await self._connected()
            async with self._opening_channel:
                if self._channel is None or self._channel.is_closed:
                    self._exchanges = {""}
                    self._channel = await open_channel(connection, confirms=True)
                channel = self._channel
            for name in {one.exchange for one in messages} - self._exchanges:
                if len(name) <= EXCHANGE_MAX and await has_exchange(connection, name):
                    self._exchanges.add(name)
        frame_max = connection.connection_tune.frame_max or 131_072
        return list(
            await asyncio.gather(*(self._publish_one(channel, one, frame_max) for one in messages))
        )

    async def _publish_one(self, channel: Channel, message: Message, frame_max: int) -> Published:
        if message.exchange not in self._exchanges:
            return Published(error=f"RabbitMQ has no exchange {message.exchange[:300]!r}")
        try:
            properties = message_properties(message)
            _check_frame(message, properties, frame_max)
        except (ValueError, TypeError) as error:
            return Published(error=f"RabbitMQ cannot carry it: {printable(str(error))}")
        try:
            with amqp_errors(self._target):
                return await self._confirmed(channel, message, properties)
        except EngineUnavailable as error:
            return Published(error=str(error), is_unknown=True)

    async def _confirmed(
        self, channel: Channel, message: Message, properties: Properties
    ) -> Published:
        try:
            async with asyncio.timeout(CONFIRM_S_MAX):
                await channel.basic_publish(
                    message.body,
                    exchange=message.exchange,
                    routing_key=message.routing_key,
                    properties=properties,
                    mandatory=True,
                    wait=False,
                )
        except PublishError as error:
            reason = printable(str(error.args[0]), one_line=True)
            return Published(
                error=f"RabbitMQ returned it ({reason}): no queue is bound to exchange"
                f" {message.exchange!r} for the routing key {message.routing_key!r}"
            )
        except DeliveryError:
            return Published(error="RabbitMQ refused it: a queue for it is full")
        except ChannelClosed as error:
            # The broker ended the channel, maybe because of another message of the same window.
            return Published(error=reply_text(error), is_unknown=True)
        return Published()


def _rounds(messages: Sequence[Message]) -> list[list[int]]:
    """The places of the messages, in rounds without equal message ids: the client library knows a
    returned message by its id."""
    rounds: list[list[int]] = []
    seen: dict[str, int] = {}
    for place, message in enumerate(messages):
        number = 0
        if message.message_id is not None:
            number = seen.get(message.message_id, 0)
            seen[message.message_id] = number + 1
        while len(rounds) <= number:
            rounds.append([])
        rounds[number].append(place)
    return rounds


def _check_frame(message: Message, properties: Properties, frame_max: int) -> None:
    """The properties must fit into one frame; RabbitMQ would close the connection."""
    if (length := len(message.routing_key.encode())) > NAME_BYTES_MAX:
        raise ValueError(f"the routing key is {length} bytes; the maximum is {NAME_BYTES_MAX}")
    size = len(properties.marshal())
    if size > frame_max - _FRAME_ROOM:
        raise ValueError(f"its headers are {size} bytes; the maximum of a frame is {frame_max}")
