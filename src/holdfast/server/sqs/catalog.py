"""Finds the queues of one namespace for SQS clients: a record and settings, cached for a second.

A queue that the CLI or a program made has no record: its attributes follow from its settings. It is
visible if Amazon SQS allows its name; the generated names of queues in other regions are not
allowed there. Reads here are not restricted to a caller: `SqsCall.queue` checks the prefix.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from holdfast.core.model import Queue, QueueView
from holdfast.engines.base import Engine
from holdfast.ops.queue_counts import QueueCountCache
from holdfast.ops.queues import count_all, find_queue, queue_settings
from holdfast.ops.sqs import QUEUE_NAME, SQS_QUEUES, SqsQueue, queue_key
from holdfast.server.access.quotas import SharedRead
from holdfast.server.sqs.queue_attributes import QueueAttributes
from holdfast.server.sqs.queue_settings import attributes_of

_CACHED_MAX = 10_000
_DEFAULT_QUEUE = "default"
"""The queue that exists in every namespace. It is listed once it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownQueue:
    """A queue as it was read. `version` is that of the stored record, and 0 if there is none; the
    record is then derived from the settings. `holds_dead_letters` says that another queue names it
    as its dead-letter queue."""

    record: SqsQueue
    version: int
    settings: Queue
    attributes: QueueAttributes
    holds_dead_letters: bool

    @property
    def name(self) -> str:
        """The name that SQS clients use."""
        return self.record.name

    @property
    def queue(self) -> str:
        """The name of the Holdfast queue."""
        return self.record.queue

    @property
    def is_fifo(self) -> bool:
        """True for a FIFO queue."""
        return self.attributes.fifo_queue

    @property
    def shows_dead_letters(self) -> bool:
        """True if clients find the dead letters in the queue, also those of a source that has
        another policy since. Clients do not see those in a queue that another program made."""
        return self.holds_dead_letters or self.record.created_at > 0

    @property
    def epoch(self) -> int:
        """Deduplication ids are valid within one epoch."""
        return self.record.epoch


class ListedQueue(NamedTuple):
    """A queue in a list: its record, stored or derived, and its settings."""

    record: SqsQueue
    settings: Queue


class QueueCatalog:
    """The queues of one namespace. A change made here is seen at once, one of another process
    within a second."""

    def __init__(self, engine: Callable[[], Engine], account: str, region: str) -> None:
        """Queues of the default `region` have plain names. `engine` is not restricted."""
        self._engine = engine
        self.account = account
        self._region = region
        self._cache: OrderedDict[tuple[str, str], SharedRead[tuple[KnownQueue | None]]]
        self._cache = OrderedDict()
        self._dead_queues = SharedRead(self._read_dead_queues)
        self._counts: QueueCountCache | None = None

    async def find(self, region: str, name: str) -> KnownQueue | None:
        """The queue, at most a second old; None if it does not exist. A missing queue is never
        cached, because another server may create it."""
        key = (region, name)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = SharedRead(partial(self._read, region, name))
            if len(self._cache) > _CACHED_MAX:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
        (known,) = await cached.get()
        if known is None:
            if self._cache.get(key) is cached:
                del self._cache[key]
            return None
        # Another queue may have named it as its dead-letter queue since.
        holds_dead_letters = known.queue in await self.dead_queues()
        if holds_dead_letters is not known.holds_dead_letters:
            known = dataclasses.replace(known, holds_dead_letters=holds_dead_letters)
        return known

    def forget(self, region: str, name: str) -> None:
        """Drop a queue from the cache after a change made here."""
        cached = self._cache.pop((region, name), None)
        if cached is not None:
            cached.forget()
        self._dead_queues.forget()

    async def read(self, region: str, name: str) -> KnownQueue | None:
        """The queue as it is stored now."""
        (known,) = await self._read(region, name)
        return known

    async def list(self, region: str) -> list[ListedQueue]:
        """The queues of a region, by name."""
        engine = self._engine()
        settings = await queue_settings(engine)
        found: dict[str, ListedQueue] = {}
        prefix = queue_key(region, "")
        async for stored in SQS_QUEUES.read_all(engine, after=prefix):
            if not stored.key.startswith(prefix):
                break
            record = stored.value
            if record is not None and record.deleted_at is None and record.queue in settings:
                found[record.name] = ListedQueue(record, settings[record.queue])
        if region == self._region:
            for name, queue in settings.items():
                is_new = name not in found and QUEUE_NAME.match(name)
                if is_new and (name != _DEFAULT_QUEUE or await self._is_used(name)):
                    found[name] = ListedQueue(default_record(name, region), queue)
        return [found[name] for name in sorted(found)]

    async def count(self, queue: str) -> QueueView | None:
        """A Holdfast queue with its counts; those beyond 10,000 may be seconds old."""
        if self._counts is None:
            self._counts = QueueCountCache(self._engine())
        views = await self._counts.read([queue])
        return views[0] if views else None

    async def dead_queues(self) -> frozenset[str]:
        """The queues that others name as their dead queue, at most a second old."""
        return await self._dead_queues.get()

    async def _read(self, region: str, name: str) -> tuple[KnownQueue | None]:
        if not QUEUE_NAME.match(name):
            return (None,)
        stored = await SQS_QUEUES.read(self._engine(), queue_key(region, name))
        record = None if stored is None else stored.value
        if record is None or record.deleted_at is not None:
            # If there is a queue with the name of a deleted one, another program made it.
            if region != self._region:
                return (None,)
            record = default_record(name, region)
        view = await find_queue(self._engine(), record.queue)
        if view is None:
            return (None,)
        known = KnownQueue(
            record=record,
            version=0 if stored is None else stored.version,
            settings=view.queue,
            attributes=attributes_of(record, view.queue, self.account),
            holds_dead_letters=record.queue in await self.dead_queues(),
        )
        return (known,)

    async def _read_dead_queues(self) -> frozenset[str]:
        queues = await queue_settings(self._engine())
        return frozenset(each.dead_queue for each in queues.values() if each.dead_queue is not None)

    async def _is_used(self, queue: str) -> bool:
        view = await find_queue(self._engine(), queue, counts=True)
        return view is not None and count_all(view) > 0


def default_record(name: str, region: str) -> SqsQueue:
    """The record of a queue that has none stored."""
    return SqsQueue(name=name, region=region, queue=name, epoch=0, created_at=0, modified_at=0)
