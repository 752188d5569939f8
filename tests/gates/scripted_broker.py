"""A broker in this process, for gates: queues of messages, deliveries that are not acknowledged
yet, and failures on request."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.engines.broker import BrokerStatus, Message, Published
from holdfast.errors import ConfigError, EngineUnavailable


class Stored(NamedTuple):
    message: Message
    returned: int = 0


class ScriptedBroker:
    """`fail` gets the name of each call, before and after it takes effect, and may raise. `publish`
    decides the answer to a message; without an error it is appended to `published`."""

    def __init__(self) -> None:
        self.queues: defaultdict[str, deque[Stored]] = defaultdict(deque)
        self.missing: set[str] = set()
        self.published: list[Message] = []
        self.links: list[ScriptedLink] = []
        self.down = ""
        self.fail: Callable[[str], None] = lambda _: None
        self.answer: Callable[[Message], Published] = lambda _: Published()
        self.gate: asyncio.Event | None = None
        """If set, publishes wait for it."""
        self.urls: list[str] = []
        self.postpones = False
        self.limit_is_costly = True
        self._tags = count(1)

    def put(self, source: str, *messages: Message) -> None:
        self.queues[source] += [Stored(message) for message in messages]
        for link in self.links:
            link.news.set()

    def open_link(self, url: str) -> ScriptedLink:
        self.urls.append(url)
        link = ScriptedLink(self)
        self.links.append(link)
        return link

    @property
    def waiting(self) -> dict[str, int]:
        """The numbers of messages that no link holds, by source."""
        return {source: len(found) for source, found in self.queues.items() if found}

    @property
    def held(self) -> int:
        """The number of messages that links hold unacknowledged."""
        return sum(len(link.held) for link in self.links)

    @property
    def left(self) -> list[Message]:
        """Every message that is not acknowledged."""
        own = [stored.message for found in self.queues.values() for stored in found]
        return own + [stored.message for link in self.links for _, stored in link.held.values()]


class ScriptedLink:
    """A `BrokerLink`. At most `limit` messages are delivered and not acknowledged."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.is_open = False
        self.held: dict[int, tuple[str, Stored]] = {}
        self.given: set[int] = set()
        self.limits: list[int] = []
        self.postponed: list[int] = []
        self.news = asyncio.Event()

    @property
    def limit_is_costly(self) -> bool:
        return self.broker.limit_is_costly

    async def open(self) -> None:
        self._check("open", opening=True)
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        self._return(list(self.held))

    async def receive(self, source: str, limit: int, wait_ms: int) -> list[Message]:
        self._check("receive")
        if source in self.broker.missing:
            raise ConfigError(f"the queue {source} does not exist at the broker: create it")
        self.limits.append(limit)
        queue = self.broker.queues[source]
        while queue and len(self.held) < limit:
            tag = next(self.broker._tags)
            self.held[tag] = (source, queue.popleft())
        found = [
            replace(stored.message, tag=tag, is_redelivered=stored.returned > 0)
            for tag, (_, stored) in self.held.items()
            if tag not in self.given
        ][:limit]
        self.given.update(message.tag for message in found)
        return found

    async def acknowledge(self, source: str, messages: Sequence[Message]) -> None:
        self._check("acknowledge")
        for message in messages:
            del self.held[message.tag]
        self._check("acknowledged")

    async def give_back(self, source: str, messages: Sequence[Message]) -> None:
        self._check("give_back")
        self._return([message.tag for message in messages])

    async def pause(self, source: str) -> None:
        self._check("pause")
        self._return([tag for tag, (own, _) in self.held.items() if own == source])

    async def postpone(self, source: str, delay_ms: int) -> bool:
        self._check("postpone")
        self.postponed.append(delay_ms)
        if not self.broker.postpones:
            return False
        self._return([tag for tag, (own, _) in self.held.items() if own == source])
        return True

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        self._check("publish")
        if self.broker.gate is not None:
            await self.broker.gate.wait()
        answers = []
        for message in messages:
            answer = self.broker.answer(message)
            if not answer.error:
                self.broker.published.append(message)
            answers.append(answer)
        self._check("published")
        return answers

    async def status(self) -> BrokerStatus:
        return BrokerStatus(error=self.broker.down)

    def _check(self, call: str, *, opening: bool = False) -> None:
        if self.broker.down:
            raise EngineUnavailable(self.broker.down)
        if not self.is_open and not opening:
            raise EngineUnavailable("the link is closed")
        self.broker.fail(call)

    def _return(self, tags: Sequence[int]) -> None:
        for tag in reversed(tags):
            source, stored = self.held.pop(tag)
            again = stored._replace(returned=stored.returned + 1)
            self.broker.queues[source].appendleft(again)
