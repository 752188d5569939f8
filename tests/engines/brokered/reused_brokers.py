"""Connections to RabbitMQ that outlive their engine, for the next one on the same event loop.

All engines of a module share the names at the broker, although each has a store of its own: a
message about a job of another store is one more hint that is of no use, and must do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from holdfast.engines.broker import BrokerStatus, DeadMessage, JobMessage, WorkerQueueView
from holdfast.engines.rabbitmq import RabbitBroker


class ReusedBrokers:
    """At the end, `close` closes the connections."""

    def __init__(self, url: str, prefix: str) -> None:
        self.idle: list[RabbitBroker] = []
        self._url = url
        self._prefix = prefix

    def broker(self) -> ReusedBroker:
        return ReusedBroker(self)

    async def take(self) -> RabbitBroker:
        if self.idle:
            return self.idle.pop()
        broker = RabbitBroker(self._url, prefix=self._prefix)
        await broker.open("default", lambda: None)
        return broker

    async def close(self) -> None:
        while self.idle:
            await self.idle.pop().close()


class ReusedBroker:
    """See `Broker`. While it is open, it uses one of the reused connections."""

    def __init__(self, reused: ReusedBrokers) -> None:
        self._reused = reused
        self._broker: RabbitBroker | None = None

    async def open(self, namespace: str, wake: Callable[[], None]) -> None:
        if self._broker is None:
            self._broker = await self._reused.take()
        self._broker._wake = wake

    async def close(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker._wake = lambda: None
            self._reused.idle.append(broker)

    def notify(self, queues: Collection[str]) -> None:
        self._open.notify(queues)

    def deliver(self, messages: Sequence[JobMessage]) -> None:
        self._open.deliver(messages)

    def listen(self, queues: Collection[str]) -> None:
        self._open.listen(queues)

    def received(self, queues: Collection[str]) -> list[str]:
        return self._open.received(queues)

    def acknowledge(self, ids: Collection[str]) -> None:
        self._open.acknowledge(ids)

    async def take_dead(self, limit: int, wait_ms: int) -> list[DeadMessage]:
        return await self._open.take_dead(limit, wait_ms)

    async def settle_dead(
        self, done: Sequence[DeadMessage], again: Sequence[DeadMessage] = ()
    ) -> None:
        await self._open.settle_dead(done, again)

    async def worker_queues(self, names: Collection[str]) -> list[WorkerQueueView]:
        return await self._open.worker_queues(names)

    async def status(self) -> BrokerStatus:
        return await self._open.status()

    @property
    def _open(self) -> RabbitBroker:
        # The engine is closed when it is not used any more; calls that come later go nowhere.
        return self._broker or RabbitBroker("amqp://127.0.0.1:1")
