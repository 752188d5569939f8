"""Brokers with names of their own at the shared RabbitMQ, and a plain connection to look at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import aiormq
import pytest
from aiormq.abc import DeliveredMessage

from holdfast.engines.rabbitmq import RabbitBroker
from holdfast.engines.rabbitmq.connection import RabbitTarget, dial, hang_up
from holdfast.engines.rabbitmq.topology import RabbitNames, open_channel
from tests.engines.postgres.proxy import Proxy
from tests.engines.postgres.until import until


class Opened:
    """A broker, and how often it woke the leases of its process."""

    def __init__(self, broker: RabbitBroker) -> None:
        self.broker = broker
        self.woken = asyncio.Event()

    async def connected(self) -> None:
        await until_true(lambda: not self.broker._link.error)

    async def fails(self) -> None:
        """Wait until an attempt failed, or the connection is lost."""
        await until_true(lambda: self.broker._link.has_failed)

    async def wakes(self) -> None:
        """Wait until it wakes them again."""
        await self.woken.wait()
        self.woken.clear()

    async def hears(self, *queues: str) -> None:
        """Listen, and wait until nothing is missed any more."""
        self.broker.listen(queues)
        await self.wakes()


class Bench:
    """The brokers of several processes in one namespace."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.opened: list[Opened] = []

    @property
    def names(self) -> RabbitNames:
        return RabbitNames(self.prefix, "default")

    async def open(
        self, url: str | None = None, *, namespace: str = "default", **options: Any
    ) -> Opened:
        """A broker that is connected."""
        one = await self.start(url, namespace=namespace, **options)
        await one.connected()
        return one

    async def start(
        self, url: str | None = None, *, namespace: str = "default", **options: Any
    ) -> Opened:
        """A broker that begins to connect."""
        one = Opened(RabbitBroker(url or self.url, **{"prefix": self.prefix, **options}))
        self.opened.append(one)
        await one.broker.open(namespace, one.woken.set)
        return one

    async def close(self) -> None:
        for one in self.opened:
            await one.broker.close()


@pytest.fixture
def prefix() -> str:
    return uuid4().hex[:30]


@pytest.fixture
async def bench(amqp_url: str, prefix: str) -> AsyncIterator[Bench]:
    bench = Bench(amqp_url, prefix)
    yield bench
    await bench.close()


@pytest.fixture
async def plain(amqp_url: str) -> AsyncIterator[aiormq.Connection]:
    connection = await dial(RabbitTarget.parse(amqp_url))
    yield connection
    await hang_up(connection)


class BrokerProxy(Proxy):
    """A TCP proxy before RabbitMQ."""

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login, _, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()


@pytest.fixture
async def proxy(amqp_url: str) -> AsyncIterator[BrokerProxy]:
    proxy = BrokerProxy(amqp_url)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def fetch(connection: aiormq.Connection, queue: str) -> DeliveredMessage:
    """Take the next message of a queue, as soon as there is one."""
    channel = await open_channel(connection)

    async def get() -> DeliveredMessage | None:
        message = await channel.basic_get(queue, no_ack=True)
        return message if message.delivery_tag else None

    message = await until(get)
    assert message is not None
    await channel.close()
    return message


async def until_true(look: Callable[[], object]) -> None:
    async def asked() -> object:
        return look()

    await until(asked)
