"""The queues of one prefix: their settings, read at most every ten seconds, and their counts.

Several processes may change a queue at the same time; SQS has no conditional write for that, so the
last one wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Final

from holdfast.core import bounds, checks
from holdfast.core.model import Queue, QueueView
from holdfast.engines.base import ANY, Known
from holdfast.engines.sqs import settings
from holdfast.engines.sqs.client import SqsClient, name_of
from holdfast.engines.sqs.names import QueueNames, is_fifo
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import InvalidQueue, NotFound, UsageError

SETTINGS_S: Final = 10.0
"""How long settings that another process changed may stay unnoticed."""
ESTIMATED: Final = frozenset({"ready", "delayed", "leased", "dead"})
_COUNTS: Final = {
    "ready": "ApproximateNumberOfMessages",
    "delayed": "ApproximateNumberOfMessagesDelayed",
    "leased": "ApproximateNumberOfMessagesNotVisible",
}
IN_FLIGHT_MAX: Final = 120_000
"""SQS delivers no further message of a queue while so many are in flight."""


class SqsQueues:
    """Finds, creates, changes and deletes queues. With `creates`, a missing queue is created on its
    first use."""

    def __init__(self, client: SqsClient, names: QueueNames, *, creates: bool) -> None:
        self._client = client
        self._names = names
        self._creates = creates
        self._known: dict[str, tuple[float, StoredQueue]] = {}
        self._reads: dict[str, asyncio.Task[StoredQueue | None]] = {}

    async def use(self, name: str) -> StoredQueue | None:
        """The queue, for enqueue and lease: created if it is missing and may be."""
        found = await self.find(name)
        if found is None and self._creates:
            await self.declare(Queue(name=name), instead_of=None)
            found = await self.find(name)
        return found

    async def find(self, name: str) -> StoredQueue | None:
        """The queue with settings at most SETTINGS_S old; None if there is none. Concurrent callers
        share one read."""
        known = self._known.get(name)
        if known is not None and known[0] > monotonic():
            return known[1]
        task = self._reads.get(name)
        if task is None:
            task = asyncio.create_task(self._read(name))
            self._reads[name] = task
            task.add_done_callback(lambda _: self._reads.pop(name, None))
        return await asyncio.shield(task)

    def check_name(self, name: str) -> None:
        """Raise InvalidQueue if no queue on SQS can have this name."""
        self._names.write(name)

    def forget(self, name: str) -> None:
        """The queue was deleted, or changed elsewhere: read it anew."""
        self._known.pop(name, None)
        for dead in (False, True):
            try:
                self._client.forget_url(self._names.write(name, dead=dead))
            except InvalidQueue:
                return

    async def dead_url(self, stored: StoredQueue) -> str:
        """The URL of the queue for its dead letters. Raises NotFound if it has none."""
        name = stored.dead_name or self._names.write(stored.queue.name, dead=True)
        try:
            return await self._client.queue_url(name)
        except NotFound:
            if not self._creates or stored.dead_name is not None:
                or_create = "" if stored.dead_name else ", or add create=true to the URL"
                raise NotFound(
                    f"the dead-letter queue {name} of queue {stored.queue.name} does not exist:"
                    f" {settings.how_to_add_dead_letters(stored.queue.name)}{or_create}"
                ) from None
        return await self._created(name, {}, dead=True)

    async def declare(self, queue: Queue, *, instead_of: Known = ANY) -> bool:
        """See `Engine`."""
        checks.check_queue(queue)
        name = self._names.write(queue.name)
        current = await self._read(queue.name)
        if queue.dead_queue is not None:
            if await self.find(queue.dead_queue) is None:
                raise checks.unknown_queue(queue.dead_queue, "dead_queue")
            if is_fifo(queue.dead_queue) != is_fifo(queue.name):
                raise InvalidQueue(
                    f"queue {queue.name} and its dead_queue {queue.dead_queue} must both be FIFO"
                    " queues, or neither"
                )
        if instead_of is not ANY and instead_of != (None if current is None else current.queue):
            return False
        dead_arn = await self._dead_arn(queue, current)
        attributes = settings.attributes_of(queue, dead_arn)
        tags = settings.tags_of(queue)
        if current is None:
            await self._created(name, attributes, tags, dead=False)
        else:
            await self._change(current.url, attributes, tags)
        self._known.pop(queue.name, None)
        return True

    async def drop(self, name: str) -> None:
        """See `Engine`."""
        for dead in (False, True):
            try:
                url = await self._client.queue_url(self._names.write(name, dead=dead))
                await self._client.delete_queue(url)
            except (NotFound, InvalidQueue):
                continue
        self.forget(name)

    async def views(self, names: Collection[str] | None, *, counts: bool) -> list[QueueView]:
        """See `Engine.queues`. All counts are SQS's own, which are approximate."""
        chosen = await self._names_of_all() if names is None else set(names)
        found = await asyncio.gather(*(self._view(name, counts=counts) for name in sorted(chosen)))
        return [view for view in found if view is not None]

    def source(self, arn: str) -> str | None:
        """The queue of an ARN; None if it is none of this prefix."""
        read = self._names.read(name_of(arn))
        return None if read is None else read.queue

    async def trouble(self, name: str) -> list[str]:
        """Attributes of a queue that lose messages without a dead letter, in words."""
        stored = await self.find(name)
        if stored is None:
            return []
        names = ("RedrivePolicy", "MessageRetentionPeriod")
        told = await self._client.attributes(stored.url, names)
        if stored.dead_name is None:
            return [
                f"queue {name} has no dead-letter queue: {settings.how_to_add_dead_letters(name)}"
            ]
        found: list[str] = []
        try:
            dead_url = await self._client.queue_url(stored.dead_name)
            dead = await self._client.attributes(dead_url, names)
        except NotFound:
            remedy = settings.how_to_add_dead_letters(name)
            text = f"the dead-letter queue {stored.dead_name} of queue {name} does not exist"
            return [f"{text}: {remedy}"]
        retention_s, dead_s = (_number(each, "MessageRetentionPeriod") for each in (told, dead))
        if dead_s <= retention_s:
            found.append(
                f"the dead-letter queue {stored.dead_name} keeps messages no longer than queue"
                f" {name}: SQS counts from when a message was first sent, so that one may be"
                " deleted as soon as it is moved; raise its MessageRetentionPeriod"
            )
        policy = settings.read_policy(told.get("RedrivePolicy", ""))
        most = stored.queue.max_attempts
        if policy is not None and (most == 0 or policy.maxReceiveCount < most):
            found.append(
                f"SQS moves messages of queue {name} after {policy.maxReceiveCount} receives, fewer"
                f" than its max_attempts of {most or 'unlimited'}: they become dead letters without"
                " a reason; lower max_attempts, or raise maxReceiveCount in the redrive policy"
            )
        return found

    async def _names_of_all(self) -> set[str]:
        urls = await self._client.list_queues(self._names.prefix)
        read = (self._names.read(name_of(url)) for url in urls)
        return {each.queue for each in read if each is not None and not each.is_dead}

    async def _view(self, name: str, *, counts: bool) -> QueueView | None:
        stored = await self._read(name)
        if stored is None:
            return None
        if not counts:
            return QueueView(queue=stored.queue)
        try:
            told = await self._client.attributes(
                stored.url, (*_COUNTS.values(), "MessageRetentionPeriod")
            )
        except NotFound:
            return None
        dead = 0
        if stored.queue.dead_queue is None:
            dead = await self._dead_count(stored)
        numbers = {kind: _number(told, attribute) for kind, attribute in _COUNTS.items()}
        return QueueView(
            queue=stored.queue,
            dead=dead,
            estimated=ESTIMATED,
            deleted_after_ms=_number(told, "MessageRetentionPeriod") * bounds.SECOND_MS or None,
            leased_max=IN_FLIGHT_MAX,
            **numbers,
        )

    def sqs_name(self, queue: str) -> str:
        """The name of a queue on SQS."""
        return self._names.write(queue)

    async def _dead_count(self, stored: StoredQueue) -> int:
        name = stored.dead_name or self._names.write(stored.queue.name, dead=True)
        try:
            url = await self._client.queue_url(name)
            told = await self._client.attributes(url, tuple(_COUNTS.values()))
        except NotFound:
            return 0
        return sum(_number(told, attribute) for attribute in _COUNTS.values())

    async def _read(self, name: str) -> StoredQueue | None:
        try:
            url = await self._client.queue_url(self._names.write(name))
            attributes, tags = await asyncio.gather(
                self._client.attributes(url, settings.ATTRIBUTES), self._client.tags(url)
            )
        except (NotFound, InvalidQueue, UnicodeError):
            self.forget(name)
            return None
        stored = settings.read_queue(name, url, attributes, tags, self._names)
        self._known[name] = (monotonic() + SETTINGS_S, stored)
        return stored

    async def _dead_arn(self, queue: Queue, current: StoredQueue | None) -> str:
        """The ARN of the queue for dead letters, created if it is missing. One that is not ours by
        its name stays as it is."""
        target = queue.dead_queue or queue.name
        name = self._names.write(target, dead=True)
        if current is not None and current.dead_name and queue.dead_queue is None:
            read = self._names.read(current.dead_name)
            if read is None or not read.is_dead:
                name = current.dead_name
        url = await self._created(name, {}, dead=True)
        told = await self._client.attributes(url, ("QueueArn",))
        return told["QueueArn"]

    async def _created(
        self,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str] | None = None,
        *,
        dead: bool,
    ) -> str:
        """The URL of an SQS queue, created if it is missing."""
        try:
            return await self._client.queue_url(name)
        except NotFound:
            given = {**settings.new_attributes(name, dead=dead), **attributes}
        try:
            return await self._client.create_queue(name, given, tags or {})
        except UsageError:
            # Another process has created it meanwhile, with other settings.
            try:
                return await self._client.queue_url(name)
            except NotFound:
                pass
            raise

    async def _change(self, url: str, attributes: dict[str, str], tags: dict[str, str]) -> None:
        old = await self._client.tags(url)
        gone = (settings.setting_tags() & old.keys()) - tags.keys()
        await self._client.set_attributes(url, attributes)
        if gone:
            await self._client.remove_tags(url, sorted(gone))
        if tags:
            await self._client.set_tags(url, tags)


def _number(attributes: Mapping[str, str], name: str) -> int:
    text = attributes.get(name, "")
    return int(text) if text.isdecimal() else 0
