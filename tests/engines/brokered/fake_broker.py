"""A broker in this process that writes down its calls. Messages are received at once, and only by
those who listen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from holdfast.core.workers import addressee
from holdfast.engines.broker import BrokerStatus, DeadMessage, JobMessage, WorkerQueueView


class FakeHub:
    """The state that the brokers of several processes share."""

    def __init__(self) -> None:
        self.brokers: list[FakeBroker] = []
        self.queues: dict[str, list[JobMessage]] = {}


class FakeBroker:
    """See `Broker`. With `is_down` nothing is carried."""

    def __init__(self, hub: FakeHub | None = None) -> None:
        self.hub = hub or FakeHub()
        self.is_down = False
        self.notices: list[frozenset[str]] = []
        self.messages: list[JobMessage] = []
        self.acknowledged: list[str] = []
        self.listening: set[str] = set()
        self.namespace = ""
        self._wake: Callable[[], None] = lambda: None

    async def open(self, namespace: str, wake: Callable[[], None]) -> None:
        self.namespace, self._wake = namespace, wake
        if self not in self.hub.brokers:
            self.hub.brokers.append(self)

    async def close(self) -> None:
        if self in self.hub.brokers:
            self.hub.brokers.remove(self)

    def notify(self, queues: Collection[str]) -> None:
        self.notices.append(frozenset(queues))
        if not self.is_down:
            for other in self.hub.brokers:
                if other is not self and (not queues or other.listening & set(queues)):
                    other._wake()

    def deliver(self, messages: Sequence[JobMessage]) -> None:
        self.messages += messages
        if self.is_down:
            return
        for message in messages:
            self.hub.queues.setdefault(message.queue, []).append(message)
            for other in self.hub.brokers:
                if message.queue in other.listening:
                    other._wake()

    def listen(self, queues: Collection[str]) -> None:
        self.listening |= set(queues)

    def received(self, queues: Collection[str]) -> list[str]:
        heard = [queue for queue in queues if queue in self.listening]
        assert all(addressee(queue) is not None for queue in queues)
        return [one.id for queue in heard for one in self.hub.queues.get(queue, ())]

    def acknowledge(self, ids: Collection[str]) -> None:
        self.acknowledged += ids
        for queue, messages in self.hub.queues.items():
            self.hub.queues[queue] = [one for one in messages if one.id not in ids]

    async def take_dead(self, limit: int, wait_ms: int) -> list[DeadMessage]:
        return []

    async def settle_dead(
        self, done: Sequence[DeadMessage], again: Sequence[DeadMessage] = ()
    ) -> None:
        pass

    async def worker_queues(self, names: Collection[str]) -> list[WorkerQueueView]:
        return []

    async def status(self) -> BrokerStatus:
        return BrokerStatus()
