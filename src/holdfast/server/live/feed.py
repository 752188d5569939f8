"""The live feed: events of a namespace as server-sent events, resumable by their ids.

The store is polled once for all streams of a namespace, and each event is encoded once for all of
them. Streams read from a short ring of encoded events and have no buffer of their own: a stream
that falls behind the ring is dropped, and its client resumes with the last id it saw.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic
from typing import Annotated, Final, NamedTuple

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.notation.durations import show_at
from holdfast.notation.job import QueueName
from holdfast.ops.records import scan
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.http.problems import BadRequest
from holdfast.server.live.metrics import SnapshotReader, snapshot_reader
from holdfast.server.live.poll_loop import PollLoop, poll_loop, wake_in_batches
from holdfast.telemetry.accounts import FleetTotals, counts_restarted
from holdfast.telemetry.event_log import (
    EVENT_KEY,
    EVENTS_KIND,
    FeedEvent,
    FeedEventKind,
    decode_events,
    event_key,
    key_instant,
)

KEEPALIVE: Final = b": still there\n\n"

_log = logging.getLogger("holdfast.server")
_HEARTBEAT_S = 15.0
_WRITE_BYTES = 16 * 1024
"""Events are written together up to this size, since each write has a fixed cost. A slow reader has
no more than this in memory."""
_RING = 500
_LATE_MS = 15 * bounds.SECOND_MS
"""Processes flush every few seconds and their clocks differ a little: records up to this much
older than the latest are still expected. A record further in the future comes from a wrong clock:
it is sent, but streams do not resume from it."""

Wanted = Callable[[FeedEvent], bool]


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Only events of these queues and kinds; by default all. `after` is the id of the last event
    seen, for clients that cannot set the header Last-Event-ID."""

    queue: Annotated[list[QueueName], msgspec.Meta(max_length=100)] = []
    kind: Annotated[list[FeedEventKind], msgspec.Meta(max_length=100)] = []
    after: Annotated[str, msgspec.Meta(pattern=r"^\d{13}-[a-z0-9-]{1,100}$")] | None = None


class EventBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. `counts` are the increases of a queue's counters."""

    kind: FeedEventKind
    at: str
    queue: str = ""
    id: str = ""
    name: str = ""
    reason: str = ""
    text: str = ""
    count: int = 0
    counts: dict[str, int] = {}


@operation("GET", "/v1/events", needs=Scope.OBSERVE, streams=True)
async def stream_events(call: ApiCall, query: EventsQuery) -> AsyncGenerator[bytes]:
    """Stream events: dead jobs, workers that start and stop, paused queues, open breakers, and the
    activity of each queue. Resumes after Last-Event-ID."""
    after = call.headers.get("last-event-id") or query.after
    if after is not None and not EVENT_KEY.match(after):
        raise BadRequest("Last-Event-ID is not the id of an event: leave it out to start from now")
    queues, kinds, caller = frozenset(query.queue), frozenset(query.kind), call.caller

    def wanted(event: FeedEvent) -> bool:
        if caller.prefix and not (event.queue and caller.owns(event.queue)):
            return False
        return (not queues or event.queue in queues) and (not kinds or event.kind in kinds)

    async with aclosing(event_feed(call.app).stream(after, wanted)) as parts:
        async for part in parts:
            if not await call.is_good():
                return
            yield part


OPERATIONS: tuple[Operation, ...] = (stream_events,)


class EventFeed:
    """The feed of one namespace. `poll` reads once; `loop` calls it while there are streams."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        snapshots: SnapshotReader,
        loop: PollLoop,
        *,
        now: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._loop = loop
        self._now = now
        self._ticks = ticks
        self._pause = pause
        self._ring: deque[EncodedEvents] = deque(maxlen=_RING)
        self._end = 0
        """The number of the next entry of the ring."""
        self._latest_key = ""
        self._keys: set[str] = set()
        """Keys of the records that the next poll finds again."""
        self._recent: deque[EncodedEvents] = deque(maxlen=_RING)
        """The last resumable entries, for many clients that reconnect at once."""
        self._fleet: FleetTotals | None = None
        self._heartbeat_at = ticks()
        self._waiting: list[asyncio.Future[None]] = []
        self._is_started = False
        self._start_lock = asyncio.Lock()
        self._streams = 0

    async def stream(self, after: str | None, wanted: Wanted) -> AsyncGenerator[bytes]:
        """Events from now on; with `after`, first those since that id."""
        self._streams += 1
        self._loop.join(self.poll)
        try:
            await self._start()
            at, latest_key = self._end, self._latest_key
            yield b"retry: 2000\n\n"
            if after is not None and after < latest_key:
                async for part in self._since(after, latest_key):
                    if found := part.encoded(wanted):
                        yield found
            silent = False
            while True:
                batch: list[bytes] = []
                while at < self._end and sum(map(len, batch)) < _WRITE_BYTES:
                    if at < self._end - len(self._ring):
                        # The stream fell behind the ring.
                        return
                    part = self._ring[at - self._end]
                    at += 1
                    if found := part.encoded(wanted):
                        silent = False
                        batch.append(found)
                    elif part is HEARTBEAT:
                        if silent:
                            batch.append(KEEPALIVE)
                        silent = True
                if batch:
                    yield b"".join(batch)
                    continue
                # No await since the check of the end above: no event can be missed.
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
        finally:
            self._streams -= 1
            self._loop.leave(self.poll)
            self._is_started = self._is_started and self._streams > 0

    async def poll(self) -> None:
        """Read new events, and wake all streams."""
        if not self._is_started:
            return
        try:
            entries = [*await self._new_events(), *await self._activity()]
        except HoldfastError as error:
            _log.warning("the live feed pauses until the store answers: %s", error)
            entries = []
        if self._ticks() - self._heartbeat_at >= _HEARTBEAT_S:
            self._heartbeat_at = self._ticks()
            entries.append(HEARTBEAT)
        if entries:
            self._ring.extend(entries)
            self._end += len(entries)
            await self._wake()

    async def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        await wake_in_batches(waiting, self._pause)

    async def _since(self, after: str, latest_key: str) -> AsyncGenerator[EncodedEvents]:
        recent = list(self._recent)
        if recent and (recent[0].key or "") <= after:
            for part in recent:
                if part.key is not None and after < part.key <= latest_key:
                    yield part
            return
        async for record in scan(self._engine(), EVENTS_KIND, after):
            if record.key > latest_key:
                return
            yield encode_record(record)

    async def _start(self) -> None:
        async with self._start_lock:
            if not self._is_started:
                # Events that exist already are not new.
                self._keys = set()
                await self._new_events()
                self._fleet = None
                await self._activity()
                self._is_started = True

    async def _new_events(self) -> list[EncodedEvents]:
        now = self._now()
        earliest = min(key_instant(self._latest_key), now) - _LATE_MS if self._latest_key else 0
        found = [
            record
            async for record in scan(
                self._engine(), EVENTS_KIND, event_key(max(0, earliest), "", 0)
            )
        ]
        parts = []
        for record in found:
            if record.key not in self._keys:
                part = encode_record(record)
                if record.key > self._latest_key and key_instant(record.key) <= now + _LATE_MS:
                    self._latest_key = record.key
                    self._recent.append(part)
                else:
                    part = part._replace(key=None)
                parts.append(part)
        self._keys = {record.key for record in found}
        return parts

    async def _activity(self) -> list[EncodedEvents]:
        before, self._fleet = self._fleet, await self._snapshots.fleet()
        return activity(before, self._fleet, self._now())


_FEEDS: weakref.WeakKeyDictionary[Holdfast, EventFeed] = weakref.WeakKeyDictionary()


def event_feed(app: Holdfast) -> EventFeed:
    """The feed of an application."""
    found = _FEEDS.get(app)
    if found is None:
        app_ref = weakref.ref(app)

        def engine() -> Engine:
            app = app_ref()
            assert app is not None
            return app.engine

        found = _FEEDS[app] = EventFeed(engine, snapshot_reader(app), poll_loop(app))
    return found


class EncodedEvents(NamedTuple):
    """The encoded events of one record. `key` is None if a stream cannot resume after it: for late
    records and sums."""

    key: str | None
    events: tuple[tuple[FeedEvent, bytes], ...]

    def encoded(self, wanted: Wanted) -> bytes:
        """The wanted events. Only the last one has the id: a client cut off before it gets all of
        them again.
        """
        texts = [text for event, text in self.events if wanted(event)]
        if not texts:
            return b""
        if self.key is not None:
            texts[-1] = b"id: %s\n%s" % (self.key.encode(), texts[-1])
        return b"\n".join((*texts, b""))


HEARTBEAT: Final = EncodedEvents(None, ())
"""A stream that sent nothing since the last heartbeat sends a keepalive."""


def encode_record(record: Record) -> EncodedEvents:
    """The events of a record, encoded."""
    return EncodedEvents(
        record.key, tuple((event, _encode_event(event)) for event in decode_events(record))
    )


def activity(before: FleetTotals | None, fleet: FleetTotals, at: int) -> list[EncodedEvents]:
    """An event for each queue whose counters grew."""
    if before is None or before is fleet or counts_restarted(before.epoch, fleet.epoch):
        return []
    found = []
    for name, totals in fleet.totals.queues.items():
        earlier = before.totals.queues.get(name)
        known = {} if earlier is None else earlier.counts
        grown = {
            counter: count - known.get(counter, 0)
            for counter, count in totals.counts.items()
            if count > known.get(counter, 0)
        }
        if grown:
            event = FeedEvent(kind=FeedEventKind.ACTIVITY, at=at, queue=name)
            found.append((event, _encode_event(event, grown)))
    return [EncodedEvents(None, tuple(found))] if found else []


def _encode_event(event: FeedEvent, counts: dict[str, int] | None = None) -> bytes:
    body = EventBody(
        kind=event.kind,
        at=show_at(event.at),
        queue=event.queue,
        id=event.id,
        name=event.name,
        reason=event.reason,
        text=event.text,
        count=event.count,
        counts=counts or {},
    )
    return b"event: %s\ndata: %s\n" % (event.kind.encode(), msgspec.json.encode(body))
