"""Another program at the broker: it declares queues, publishes with confirms, and receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiormq
from aiormq import spec
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel

Properties = spec.Basic.Properties


class OtherProgram:
    """Its queues have names of their own, because tests share a virtual host."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def declare(self, **arguments: Any) -> str:
        name = f"other-{uuid4().hex[:12]}"
        await self.channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    async def publish(
        self,
        queue: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Returns once the broker has stored the message."""
        given = Properties(delivery_mode=2, headers=dict(headers or {}), **properties)
        await self.channel.basic_publish(body, routing_key=queue, properties=given, mandatory=True)

    async def publish_many(self, queue: str, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 100):
            part = ids[start : start + 100]
            await asyncio.gather(
                *(self.publish(queue, id_.encode(), message_id=id_) for id_ in part)
            )

    async def get(self, queue: str) -> DeliveredMessage | None:
        found = await self.channel.basic_get(queue, no_ack=True)
        return found if found.delivery_tag else None

    async def get_all(self, queue: str) -> list[DeliveredMessage]:
        found = []
        while (message := await self.get(queue)) is not None:
            found.append(message)
        return found

    async def depth(self, queue: str) -> int:
        answer = await self.channel.queue_declare(queue, passive=True)
        return answer.message_count or 0


@asynccontextmanager
async def other_program(url: str) -> AsyncIterator[OtherProgram]:
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel(publisher_confirms=True)
        assert isinstance(channel, Channel)
        yield OtherProgram(channel)
    finally:
        await connection.close()
