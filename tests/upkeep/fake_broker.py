"""A broker in this process, on the clock of the test, and an engine that has it. Like RabbitMQ it
gives up an expired message only once that is at the head of its queue."""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from holdfast.core.model import NewJob
from holdfast.engines.base import Engine
from holdfast.engines.broker import (
    BrokerStatus,
    DeadMessage,
    JobMessage,
    WorkerQueueView,
)
from holdfast.engines.extras import Ability
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import EngineUnavailable
from holdfast.testing.clock import ManualClock


class FakeBroker:
    """See `Broker`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self.queues: defaultdict[str, deque[tuple[JobMessage, int | None]]] = defaultdict(deque)
        self.dead: deque[DeadMessage] = deque()
        self.taken: dict[int, DeadMessage] = {}
        self.consumers: dict[str, int] = {}
        self.looks = 0
        self.error = ""
        self.warnings: tuple[str, ...] = ()
        self.policy_ms: int | None = None
        """An operator's own TTL for all messages."""
        self.before_settle: Callable[[], None] = lambda: None

    async def open(self, namespace: str, wake: Callable[[], None]) -> None:
        pass

    async def close(self) -> None:
        pass

    def notify(self, queues: Collection[str]) -> None:
        pass

    def deliver(self, messages: Sequence[JobMessage]) -> None:
        for message in messages:
            times = [ms for ms in (message.expires_ms, self.policy_ms) if ms is not None]
            at = self._clock.wall_ms() + min(times) if times else None
            self.queues[message.queue].append((message, at))

    def listen(self, queues: Collection[str]) -> None:
        pass

    def received(self, queues: Collection[str]) -> list[str]:
        return []

    def acknowledge(self, ids: Collection[str]) -> None:
        pass

    def put_dead(self, **fields: Any) -> DeadMessage:
        """A dead message; without an id it is not one of ours."""
        message = DeadMessage(
            tag=next(self._numbers), **{"id": None, "queue": "worker.a", **fields}
        )
        self.dead.append(message)
        return message

    async def take_dead(self, limit: int, wait_ms: int) -> list[DeadMessage]:
        self._check()
        self._expire()
        found = [self.dead.popleft() for _ in range(min(limit, len(self.dead)))]
        self.taken |= {message.tag: message for message in found}
        return found

    async def settle_dead(
        self, done: Sequence[DeadMessage], again: Sequence[DeadMessage] = ()
    ) -> None:
        self.before_settle()
        for message in done:
            self.taken.pop(message.tag, None)
        for message in again:
            if self.taken.pop(message.tag, None) is not None:
                self.dead.append(message)

    def cut(self) -> None:
        """The connection is lost: what was taken and not acknowledged is offered again."""
        self.dead.extend(self.taken.values())
        self.taken.clear()

    async def worker_queues(self, names: Collection[str]) -> list[WorkerQueueView]:
        self._check()
        self.looks += 1
        return [
            WorkerQueueView(
                queue=name, messages=len(self.queues[name]), consumers=self.consumers[name]
            )
            for name in names
            if name in self.consumers
        ]

    async def status(self) -> BrokerStatus:
        if self.error:
            return BrokerStatus(error=self.error)
        return BrokerStatus(version="1.0", warnings=self.warnings, dead_messages=len(self.dead))

    def _check(self) -> None:
        if self.error:
            raise EngineUnavailable(self.error)

    def _expire(self) -> None:
        now = self._clock.wall_ms()
        for queue, messages in self.queues.items():
            while messages and messages[0][1] is not None and messages[0][1] <= now:
                message, at = messages.popleft()
                death = {"queue": f"holdfast.default.{queue}", "reason": "expired", "count": 1}
                self.put_dead(
                    id=message.id, queue=queue, reason="expired", dead_at=at, history=(death,)
                )


class FakeBrokered(Wrapper):
    """An engine with a broker: `addressed` enqueues a job and delivers its message."""

    def __init__(self, engine: Engine, broker: FakeBroker) -> None:
        super().__init__(engine)
        self._broker = broker

    def find_extra(self, ability: type[Ability]) -> Ability | None:
        return self if isinstance(self, ability) else super().find_extra(ability)

    def broker(self) -> FakeBroker:
        return self._broker

    async def addressed(self, *jobs: NewJob) -> None:
        await self.enqueue(jobs)
        self._broker.deliver(
            [JobMessage(id=job.id, queue=job.queue, expires_ms=job.expires_ms) for job in jobs]
        )
