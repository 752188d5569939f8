"""SqsLink: whole messages of other programs, for gates and for distributions between queues.

A source is the name or the URL of a queue. The routing key of a message is the name or the URL of
the queue that it is sent to; SQS has no exchanges.
"""

from __future__ import annotations

import asyncio
import fnmatch
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from time import monotonic

from holdfast.engines.broker import BrokerStatus, Message, Published
from holdfast.engines.sqs.client import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    OutgoingSqsMessage,
    SqsClient,
    SqsMessage,
    name_of,
)
from holdfast.engines.sqs.faults import DeniedByPolicy
from holdfast.engines.sqs.foreign import foreign_message, forwarded_message, outgoing_message
from holdfast.engines.sqs.source import SqsSource
from holdfast.errors import (
    ConfigError,
    EngineError,
    HoldfastError,
    NotFound,
    OutcomeUnknown,
)

_CALLS, _RECEIVES = 8, 8
_LIST_S = 5.0
_PROBE = "holdfast-probe"
_VISIBLE, _DELAYED = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"


class SqsLink:
    """See `BrokerLink` and `QueueLink`."""

    limit_is_costly = False

    def __init__(self, region: str, *, endpoint: str | None = None) -> None:
        self._client = SqsClient(
            region, endpoint=endpoint, call_threads=_CALLS, receive_threads=_RECEIVES
        )
        self._sources: dict[str, SqsSource] = {}
        self._tags = itertools.count(1)
        self._listed: dict[str, tuple[float, list[str]]] = {}

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        sources = list(self._sources.values())
        self._sources.clear()
        try:
            await asyncio.gather(*(each.stop() for each in sources), return_exceptions=True)
        finally:
            await self._client.close()

    async def receive(self, source: str, limit: int, wait_ms: int) -> list[Message]:
        queue = await self._source(source)
        try:
            found = await queue.receive(limit, wait_ms)
        except NotFound:
            raise self._missing(source) from None
        return [_foreign(queue, *each) for each in found]

    async def acknowledge(self, source: str, messages: Sequence[Message]) -> None:
        if source in self._sources:
            await self._sources[source].delete([each.tag for each in messages])

    async def give_back(self, source: str, messages: Sequence[Message]) -> None:
        if source in self._sources:
            await self._sources[source].return_messages([each.tag for each in messages])

    async def pause(self, source: str) -> None:
        queue = self._sources.pop(source, None)
        if queue is not None:
            await queue.stop()

    async def postpone(self, source: str, delay_ms: int) -> bool:
        queue = self._sources.get(source)
        if queue is not None:
            await queue.return_messages(list(queue.held), math.ceil(delay_ms / 1000))
        return True

    async def publish(self, messages: Sequence[Message]) -> list[Published]:
        answers: dict[int, Published] = {}
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, message in enumerate(messages):
            if message.exchange:
                answers[place] = Published(
                    error=f"SQS has no exchange {message.exchange[:80]!r}: name the queue in the"
                    " routing key"
                )
            else:
                places[message.routing_key].append(place)

        async def send(queue: str) -> None:
            own = places[queue]
            found = await self._send(queue, [messages[place] for place in own])
            answers.update(zip(own, found, strict=True))

        async with asyncio.TaskGroup() as group:
            for queue in places:
                group.create_task(send(queue))
        return [answers[place] for place in range(len(messages))]

    async def status(self) -> BrokerStatus:
        try:
            await self._client.open()
            await self._client.queue_url(_PROBE)
        except NotFound:
            return BrokerStatus()
        except HoldfastError as error:
            return BrokerStatus(error=str(error))
        return BrokerStatus()

    async def waiting(self, pattern: str) -> dict[str, int]:
        urls = [
            url
            for url in await self._list(re.split(r"[*?\[]", pattern)[0])
            if fnmatch.fnmatchcase(name_of(url), pattern)
        ]
        counts = await asyncio.gather(*(self._count_or_none(url) for url in urls))
        found = {name_of(url): count for url, count in zip(urls, counts, strict=True)}
        return {name: count for name, count in found.items() if count is not None}

    async def depth(self, queue: str) -> int:
        return await self._count(await self._url(queue), _VISIBLE, _DELAYED)

    async def take(self, source: str, limit: int) -> list[Message]:
        queue = await self._source(source)
        return [_foreign(queue, *each) for each in await queue.take(limit)]

    async def forward(
        self, target: str, messages: Sequence[tuple[str, Message]]
    ) -> list[Published]:
        url = await self._url(target)
        is_fifo = url.endswith(".fifo")
        given = [
            forwarded_message(self._held(source, each), source, is_fifo=is_fifo)
            for source, each in messages
        ]
        answers: dict[int, Published] = {}
        for round_ in _rounds(given) if is_fifo else [list(range(len(given)))]:
            failed = {given[place].group for place, each in answers.items() if each.error}
            for place in round_:
                if is_fifo and given[place].group in failed:
                    answers[place] = Published(error="an earlier message of its group was not sent")
            left = [place for place in round_ if place not in answers]
            for start in range(0, len(left), BATCH_MAX):
                # One batch after the other: the order is that of the turns.
                part = left[start : start + BATCH_MAX]
                found = await self._sent(url, [given[place] for place in part])
                answers |= zip(part, found, strict=True)
        return [answers[place] for place in range(len(given))]

    async def _send(self, queue: str, messages: Sequence[Message]) -> list[Published]:
        try:
            url = await self._url(queue)
        except HoldfastError as error:
            return [_published(error)] * len(messages)
        is_fifo = url.endswith(".fifo")
        return await self._sent(url, [outgoing_message(each, is_fifo=is_fifo) for each in messages])

    async def _sent(self, url: str, messages: Sequence[OutgoingSqsMessage]) -> list[Published]:
        """The answer to each message. One that SQS would refuse is not sent: it would fail the
        others of its batch."""
        too_large = {
            place: Published(
                error=f"the message has {each.size:,} bytes with its attributes; the maximum of SQS"
                f" is {BATCH_BYTES_MAX:,}"
            )
            for place, each in enumerate(messages)
            if each.size > BATCH_BYTES_MAX
        }
        places = [place for place in range(len(messages)) if place not in too_large]
        found = await self._client.send(url, [messages[place] for place in places])
        if any(isinstance(each, NotFound) for each in found):
            self._client.forget_url(name_of(url))
        answers = dict(zip(places, map(_published, found), strict=True)) | too_large
        return [answers[place] for place in range(len(messages))]

    async def _source(self, source: str) -> SqsSource:
        found = self._sources.get(source)
        if found is None:
            url = await self._url(source)
            found = self._sources.setdefault(source, SqsSource(self._client, url, self._tags))
        return found

    async def _url(self, queue: str) -> str:
        if re.match("https?://", queue):
            return queue
        try:
            return await self._client.queue_url(queue)
        except NotFound:
            raise self._missing(queue) from None

    def _missing(self, queue: str) -> ConfigError:
        self._client.forget_url(queue)
        return MissingSqsQueue(
            f"Amazon SQS at {self._client.where} has no queue {name_of(queue)[:80]!r}: create it"
            " there, or correct the gate"
        )

    async def _list(self, prefix: str) -> list[str]:
        """The URLs of the queues, read every few seconds."""
        at, urls = self._listed.get(prefix, (float("-inf"), []))
        if monotonic() - at >= _LIST_S:
            urls = await self._client.list_queues(prefix)
            self._listed[prefix] = (monotonic(), urls)
        return urls

    async def _count_or_none(self, url: str) -> int | None:
        try:
            return await self._count(url, _VISIBLE)
        except NotFound:
            return None

    async def _count(self, url: str, *names: str) -> int:
        found = await self._client.attributes(url, names)
        return sum(int(found.get(name, 0)) for name in names)

    def _held(self, source: str, message: Message) -> SqsMessage:
        return self._sources[source].held[message.tag].message


class MissingSqsQueue(ConfigError):
    """A queue does not exist at SQS: a message to it is a failure of its own."""


def _foreign(queue: SqsSource, tag: int, received: SqsMessage) -> Message:
    return foreign_message(received, tag, is_fifo=queue.is_fifo)


def _published(answer: str | HoldfastError) -> Published:
    """The answer of SQS to one message. Credentials that SQS refuses, and a service that does not
    answer, say nothing about the message."""
    if isinstance(answer, str):
        return Published()
    if isinstance(answer, OutcomeUnknown):
        return Published(error=str(answer), is_unknown=True)
    is_about_queue = isinstance(answer, MissingSqsQueue | DeniedByPolicy | NotFound)
    is_about_us = isinstance(answer, EngineError | ConfigError) and not is_about_queue
    return Published(error=str(answer), is_unsent=is_about_us)


def _rounds(messages: Sequence[OutgoingSqsMessage]) -> list[list[int]]:
    """The places of the messages, in rounds with one message of each group: the next of a group is
    sent only after the one before it."""
    rounds: list[list[int]] = []
    seen: defaultdict[str | None, int] = defaultdict(int)
    for place, message in enumerate(messages):
        number = seen[message.group]
        seen[message.group] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds
