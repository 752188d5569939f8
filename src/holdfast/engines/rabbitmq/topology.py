"""Names and arguments of the queues and exchanges that Holdfast declares. It deletes none.

A queue or exchange that exists with other arguments is used as it is; `BrokerQueue` says how it
differs, for a person to correct.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiormq
from aiormq.channel import Channel
from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from holdfast.core import bounds

TTL_MS_MAX = 2**32 - 1
"""The longest that RabbitMQ accepts: 49 days."""
DELIVERIES_MAX = 1_000_000_000
"""RabbitMQ 4 drops a message of a quorum queue after 20 deliveries, unless the queue says more."""
LISTENER_MESSAGES_MAX = 100
ALL_QUEUES = ":all"
"""Routing key of a notification for every queue; no queue can have this name."""

_DIFFERENCE = re.compile(
    r"inequivalent arg '(?P<name>[^']*)' for (?:queue|exchange) '.*?: received .* but current is"
    r" (?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>[^']*)')?)\s*\Z",
    re.DOTALL,
)
_PROBES_MAX = 12


class RabbitNames(NamedTuple):
    """The names in one namespace: PREFIX.NAMESPACE.QUEUE. A dot in the namespace becomes ":", which
    no name contains, so that two namespaces never share a queue."""

    prefix: str
    namespace: str

    @property
    def notifications(self) -> str:
        """The exchange of notifications."""
        return self.full(":notify")

    @property
    def dead(self) -> str:
        """The exchange and the queue of dead messages."""
        return self.full(":dead")

    def full(self, queue: str) -> str:
        return f"{self.prefix}.{self.namespace.replace('.', ':')}.{queue}"

    def own(self, name: str) -> str:
        """The queue of Holdfast that has this name at RabbitMQ; "" if there is none."""
        queue = name.removeprefix(self.full(""))
        return queue if queue != name and bounds.QUEUE_NAME.match(queue) else ""


class BrokerQueue(NamedTuple):
    """A queue at RabbitMQ. `differences` are its arguments that are not as declared, with their
    values there; None if it has no such argument."""

    name: str
    messages: int = 0
    consumers: int = 0
    differences: Mapping[str, str | None] = {}

    @property
    def warning(self) -> str:
        """The differences that a person should correct; "" if there are none."""
        if not self.differences:
            return ""
        shown = ", ".join(
            f"{name} is {'not set' if value is None else repr(value)}"
            for name, value in self.differences.items()
        )
        lost = ""
        if self._loses_messages:
            lost = "; expired messages are lost, because it has no dead-letter exchange"
        return (
            f"queue {self.name} at RabbitMQ is not as Holdfast declares it ({shown}{lost}): delete"
            " it when it is empty, and Holdfast declares it again"
        )

    @property
    def _loses_messages(self) -> bool:
        missing = self.differences.get("x-dead-letter-exchange", "") is None
        return missing and self.differences.get("x-message-ttl") is not None


def worker_arguments(names: RabbitNames, queue: str) -> dict[str, Any]:
    """Arguments of a worker's queue: expired messages go to the dead-letter exchange, at least
    once."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": names.dead,
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        # Without it RabbitMQ would dead-letter at most once.
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERIES_MAX,
    }


def dead_arguments(ttl_ms: int) -> dict[str, Any]:
    """Arguments of the queue of dead messages."""
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": ttl_ms,
        "x-delivery-limit": DELIVERIES_MAX,
    }


async def declare_exchanges(connection: aiormq.Connection, names: RabbitNames) -> None:
    """Declare the exchanges of notifications and of dead messages."""
    channel = await open_channel(connection)
    for exchange in (names.notifications, names.dead):
        await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
    await channel.close()


async def declare_dead_queue(
    connection: aiormq.Connection, names: RabbitNames, ttl_ms: int
) -> BrokerQueue:
    """Declare the queue that gets every dead message of the namespace."""
    declared = await declare_queue(connection, names.dead, dead_arguments(ttl_ms))
    channel = await open_channel(connection)
    await channel.queue_bind(names.dead, names.dead, "#")
    await channel.close()
    return declared


async def declare_queue(
    connection: aiormq.Connection, name: str, arguments: Mapping[str, Any]
) -> BrokerQueue:
    """Declare a durable queue; if it exists, find out how its arguments differ."""
    wanted = dict(arguments)
    differences: dict[str, str | None] = {}
    durable = True
    for _ in range(_PROBES_MAX):
        channel = await open_channel(connection)
        try:
            answer = await channel.queue_declare(name, durable=durable, arguments=wanted)
        except ChannelPreconditionFailed as error:
            found = _DIFFERENCE.search(str(error.args[0]) if error.args else "")
            if found is None or found["name"] in differences:
                # A queue of another type refuses some arguments before it compares them.
                if differences:
                    break
                raise
            # Declared again as it is: the broker reports one difference at a time.
            argument, value = found["name"], found["value"]
            differences[argument] = value
            if argument == "durable":
                durable = value == "true"
            elif value is None:
                wanted.pop(argument, None)
            else:
                is_number = found["type"] is not None and found["type"] != "longstr"
                wanted[argument] = int(value) if is_number and value.isdigit() else value
        else:
            await channel.close()
            return BrokerQueue(
                name, answer.message_count or 0, answer.consumer_count or 0, differences
            )
    return BrokerQueue(name, differences=differences)


async def inspect_queue(connection: aiormq.Connection, name: str) -> BrokerQueue | None:
    """A queue's counts; None if it does not exist."""
    channel = await open_channel(connection)
    try:
        answer = await channel.queue_declare(name, passive=True)
    except ChannelNotFoundEntity:
        return None
    await channel.close()
    return BrokerQueue(name, answer.message_count or 0, answer.consumer_count or 0)


async def has_exchange(connection: aiormq.Connection, name: str) -> bool:
    """True if the exchange exists. If not, the broker closes the channel, so it has its own."""
    channel = await open_channel(connection)
    try:
        await channel.exchange_declare(name, passive=True)
    except ChannelNotFoundEntity:
        return False
    await channel.close()
    return True


async def open_channel(connection: aiormq.Connection, *, confirms: bool = False) -> Channel:
    """A new channel. The broker closes one at an error, so declarations have their own."""
    channel = await connection.channel(publisher_confirms=confirms)
    assert isinstance(channel, Channel)
    return channel
