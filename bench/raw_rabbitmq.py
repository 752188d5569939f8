"""Bare loops of aio-pika, the reference of gates, and the queues at the broker that they use.

`python -m bench.raw_rabbitmq ROLE URL COUNT FIRST` runs a loop in a process of its own and prints
messages per second as JSON. Queues are durable, messages persistent and of 256 bytes.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aio_pika
import aiormq
import msgspec
from aio_pika.abc import AbstractIncomingMessage
from pamqp.commands import Basic

from bench.subject import PAYLOAD
from holdfast.process import loop_runner

SOURCE = "source"
TARGET = "target"
WINDOW = 256
"""Publishes that wait for their confirm, and deliveries that wait for their acknowledgement."""


async def publish(url: str, count: int, first: int) -> float:
    """Publish messages to the target, each confirmed; the rate. Their ids begin with `first`."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        room = asyncio.Semaphore(WINDOW)

        async def one(number: int) -> None:
            message = aio_pika.Message(
                PAYLOAD,
                message_id=f"message-{number}",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            try:
                await channel.default_exchange.publish(message, TARGET)
            finally:
                room.release()

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                await room.acquire()
                group.create_task(one(number))
        return count / (time.perf_counter() - started)


async def fill(url: str, count: int, first: int) -> float:
    """Put messages into the source without confirms, which is faster; the rate."""
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=False)
    started = time.perf_counter()
    for number in range(first, first + count):
        properties = Basic.Properties(message_id=f"message-{number}", delivery_mode=2)
        await channel.basic_publish(PAYLOAD, routing_key=SOURCE, properties=properties)
    # The broker handles a channel in order: its answer comes after the last message.
    await channel.queue_declare(SOURCE, passive=True)
    rate = count / (time.perf_counter() - started)
    await connection.close()
    return rate


async def consume(url: str, count: int, first: int) -> float:
    """Receive messages and acknowledge each; the rate from the first to the last."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=WINDOW)
        source = await channel.declare_queue(SOURCE, passive=True)
        received, began_at = 0, 0.0
        over = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            nonlocal received, began_at
            began_at = began_at or time.perf_counter()
            await message.ack()
            received += 1
            if received == count:
                over.set()

        await source.consume(take)
        await over.wait()
        return count / (time.perf_counter() - began_at)


async def declare(url: str) -> None:
    """Declare the queues that the loops and the gates use."""
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    for name in (SOURCE, TARGET):
        await channel.queue_declare(name, durable=True)
    await connection.close()


async def depth(url: str, queue: str) -> int:
    """Messages that wait at the broker and are not delivered."""
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    answer = await channel.queue_declare(queue, passive=True)
    await connection.close()
    return answer.message_count or 0


async def main(role: str, url: str, count: str, first: str) -> None:
    loop = {"publish": publish, "consume": consume, "fill": fill}[role]
    rate = await loop(url, int(count), int(first))
    print(msgspec.json.encode(rate).decode(), flush=True)


if __name__ == "__main__":
    loop_runner()(main(*sys.argv[1:]))
