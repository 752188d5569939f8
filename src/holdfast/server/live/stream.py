"""The live stream: the data of chosen topics, and then its changes, as server-sent events.

Each topic is read and encoded once per tick for all viewers with the same rights, and only while
somebody watches it. Viewers have no buffer: one that reads slowly gets a new snapshot instead of
the changes that it missed.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from math import inf
from time import monotonic
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.app.application import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.extras import Revisioned, extra
from holdfast.errors import EngineError, HoldfastError
from holdfast.notation.durations import show_at
from holdfast.process import wall_ms
from holdfast.server.access.admission import ApiCall
from holdfast.server.access.authorized_engine import AccessControls, AuthorizedEngine
from holdfast.server.access.redaction import Redaction
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.live.metrics import BEHIND_S_MAX, Freshness
from holdfast.server.live.overview import OverviewReader, overview_reader
from holdfast.server.live.poll_loop import POLL_S, PollLoop, poll_loop, wake_in_batches
from holdfast.server.live.topics import TOPIC, Data, Rights, SharedReads, TopicReads, read_topic

TOPICS_MAX: Final = 20
TICK_S: Final = 5.0
"""How often a viewer without a change is told that its data is still right."""

_log = logging.getLogger("holdfast.server")
_RING = 30
_RING_BYTES_MAX = 256 * 1024
"""Changes of a topic that are kept for viewers that are behind."""
_REST = 25
_REST_S_MAX = 1.5
"""A topic rests this many times as long as its read took, if that is longer than the time between
two ticks, and up to this."""
_UNCHANGED = 400
_UNCHANGED_S_MIN, _UNCHANGED_S_MAX = 5.0, 300.0
"""While nothing is written to the store, a topic is read again only for what changes with time:
after this many times as long as its last read took, within these bounds."""
_COUNTS_S_MAX = 120.0
"""The same bound for counts while no job is written; records may be, such as heartbeats."""
_LATE_S = 11.0
"""A change of counts shows in `count_revision` at most this long after its commit: PostgreSQL adds
up the writes of an idle connection after ten seconds."""
_NEW_S_MAX = 0.2
"""The highest age of the data that a new viewer gets of a topic that had no viewer before."""


class LiveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic` is `overview`, `queue:NAME`, `job:ID`, `redrives`, `workers` or `acts`; give up to
    20."""

    topic: Annotated[
        list[Annotated[str, Meta(pattern=TOPIC, max_length=140)]],
        Meta(min_length=1, max_length=TOPICS_MAX),
    ]


@operation("GET", "/v1/live", needs=Scope.OBSERVE, streams=True)
async def stream_live(call: ApiCall, query: LiveQuery) -> AsyncGenerator[bytes]:
    """Stream the data of topics: an event `snapshot` for each, and then an event `change` with a
    JSON merge patch whenever its data changes. `gone` says that there is no such data, and `tick`
    that the data is still right."""
    topics = tuple(dict.fromkeys(query.topic))
    redaction = call.server.redaction_of(call.caller.namespace, call.app)
    hub = live_hub(call.app, redaction)
    async with aclosing(hub.stream(Rights.of(call.caller), topics)) as parts:
        async for part in parts:
            if not await call.is_good():
                return
            yield part


OPERATIONS: tuple[Operation, ...] = (stream_live,)


class WatchedTopic:
    """One topic for viewers with the same rights: its data, and the last encoded changes."""

    def __init__(self, reads: TopicReads, topic: str) -> None:
        self.reads = reads
        self.topic = topic
        self.viewers = 0
        self.number: int = 0
        """Grows with every change."""
        self.as_of: int = 0
        """The time of the last read."""
        self.read_at: float = float("-inf")
        """Writes to the store up to then are in its data."""
        self.awaits_counts: bool = False
        """True if its counts are older, because counting takes long."""
        self.fresh_until: float = float("-inf")
        """Until then nothing changes but by a write."""
        self.demanded_at: float = float("-inf")
        """What has changed with time up to then must be in its data, too."""
        self.counted_at: float = float("-inf")
        """As `read_at`, for the counts of queues, which are not read again with everything else."""
        self.counts_fresh_until: float = float("-inf")
        """As `fresh_until`, for the counts."""
        self.counts_demanded_at: float = float("-inf")
        """As `demanded_at`, for the counts."""
        self.rests_until: float = float("-inf")
        self.reading: Final = asyncio.Lock()
        self._data: Data | None = None
        self._gone = b""
        self._ring: deque[bytes] = deque()
        self._snapshot: tuple[int, int, bytes] = (-1, -1, b"")

    @property
    def is_gone(self) -> bool:
        """True if there is no such data."""
        return bool(self._gone)

    @property
    def is_new(self) -> bool:
        """True before the first read."""
        return self.number == 0

    def is_resting(self, at: float) -> bool:
        """True if it took long to read, a moment ago."""
        return at < self.rests_until

    def update(self, data: Data, as_of: int) -> bool:
        """Take the data of a read; True if it changed. The time of an overview is no change."""
        self.as_of = as_of
        before, self._data = self._data, data
        if before is None:
            self._gone = b""
            self._ring.clear()
            self.number += 1
            return True
        patch = merge_patch(before, {**data, "as_of": before["as_of"]} if "as_of" in data else data)
        if not patch:
            return False
        body = {"topic": self.topic, "as_of": show_at(as_of), "patch": patch}
        self._ring.append(_event(b"change", body))
        while len(self._ring) > _RING or sum(map(len, self._ring)) > _RING_BYTES_MAX:
            self._ring.popleft()
        self.number += 1
        return True

    def end(self, error: HoldfastError) -> None:
        """Take the error of a read: there is no such data, or no longer."""
        body = {"topic": self.topic, "code": error.code, "message": str(error)}
        gone = _event(b"gone", body)
        if gone != self._gone:
            self._gone = gone
            self._data = None
            self.number += 1

    def since(self, number: int) -> bytes:
        """The changes after this number, for a viewer that has seen it; or a snapshot."""
        if number == self.number:
            return b""
        if self._data is None:
            return self._gone
        missed = self.number - number
        if number and missed <= len(self._ring):
            return b"".join([self._ring[at] for at in range(-missed, 0)])
        if self._snapshot[:2] != (self.number, self.as_of):
            body = {"topic": self.topic, "as_of": show_at(self.as_of), "data": self._data}
            self._snapshot = (self.number, self.as_of, _event(b"snapshot", body))
        return self._snapshot[2]


class LiveHub:
    """The live streams of one namespace. `poll` is one tick; `loop` calls it while there are
    viewers."""

    def __init__(
        self,
        engine: Engine,
        reader: OverviewReader,
        loop: PollLoop,
        redaction: Redaction | None = None,
        *,
        now: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reads = SharedReads(engine)
        self._revisioned = extra(engine, Revisioned)
        self._revision: str | None = None
        self._changed_at = float("-inf")
        """When it was first seen that the store had changed."""
        self._count_revision: str | None = None
        self._counts_changed_at = float("-inf")
        """The same for the counts of the queues."""
        self._late_until = float("-inf")
        """Until then the counts may show a change of the store late."""
        self._reader = reader
        self._loop = loop
        self._controls = AccessControls(redaction=redaction)
        self._now = now
        self._ticks = ticks
        self._pause = pause
        self._topic_reads: dict[Rights, TopicReads] = {}
        self._watched: dict[tuple[Rights, str], WatchedTopic] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._beat = 0
        self._beat_at = ticks()
        self._is_down = False
        self._forgot_at = float("-inf")

    async def stream(self, rights: Rights, topics: tuple[str, ...]) -> AsyncGenerator[bytes]:
        """The events for one viewer. Raises the error of the store before the first part."""
        self._loop.join(self.poll)
        watched = [self._join(rights, topic) for topic in topics]
        try:
            for each in watched:
                async with each.reading:
                    if each.is_new or each.is_gone:
                        self._forget(age_s_max=_NEW_S_MAX)
                        await self._read(each, self._ticks(), counts_demanded_at=self._ticks())
            yield b"retry: 2000\n\n"
            seen = dict.fromkeys(watched, 0)
            beat = self._beat
            while True:
                sent, current = False, self._beat
                for each in watched:
                    if part := each.since(seen[each]):
                        seen[each] = each.number
                        sent = True
                        yield part
                if not sent and beat != current:
                    sent = True
                    at = min((each.as_of for each in watched if not each.is_gone), default=0)
                    yield _event(b"tick", {"as_of": show_at(at or self._now())})
                if sent:
                    beat = current
                    continue
                # No await since the checks above: no change can be missed.
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
        finally:
            self._loop.leave(self.poll)
            self._leave(rights, watched)

    async def poll(self) -> None:
        """Read every topic that somebody watches, unless nothing was written to the store since it
        was read, and wake the viewers if anything changed."""
        await self._look_for_changes()
        changed = await self._read_all()
        if self._ticks() - self._beat_at >= TICK_S:
            self._beat_at = self._ticks()
            self._beat += 1
            changed = True
        if changed:
            await self._wake()

    async def _look_for_changes(self) -> None:
        """Data and counts that were read before a change was seen must be read again: a write may
        have come in between."""
        known, known_counts = self._revision, self._count_revision
        self._revision = await self._read_revision(lambda store: store.revision())
        now = self._ticks()
        if self._revision is None or self._revision != known:
            self._changed_at = now
            self._late_until = now + _LATE_S
        elif now >= self._late_until:
            return
        self._count_revision = await self._read_revision(lambda store: store.count_revision())
        if self._count_revision is None or self._count_revision != known_counts:
            self._counts_changed_at = self._ticks()

    async def _read_revision(
        self, read: Callable[[Revisioned], Awaitable[str | None]]
    ) -> str | None:
        if self._revisioned is not None:
            with suppress(EngineError):
                return await read(self._revisioned)
        return None

    async def _read_all(self) -> bool:
        """Read the topics; True if one of them changed. One that cannot be read now stays as it
        is."""
        self._forget()
        at, started_at, changed, error = self._now(), self._ticks(), False, None
        for each in list(self._watched.values()):
            if each.is_new:
                continue
            if started_at >= each.fresh_until:
                each.demanded_at = each.fresh_until
            if started_at >= each.counts_fresh_until:
                each.counts_demanded_at = each.counts_fresh_until
            counts_demanded_at = max(self._counts_changed_at, each.counts_demanded_at)
            demanded_at = max(self._changed_at, each.demanded_at, counts_demanded_at)
            if each.read_at >= demanded_at:
                if not each.awaits_counts:
                    each.as_of = at
                    continue
                if not self._reader.has_counts(started_at - counts_demanded_at):
                    continue
            if each.is_resting(started_at) and not self._loop.is_woken:
                continue
            async with each.reading:
                number = each.number
                try:
                    await self._read(each, demanded_at, counts_demanded_at=counts_demanded_at)
                except EngineError as failure:
                    error = failure
                changed = changed or each.number != number
        if error is not None and not self._is_down:
            _log.warning("live streams pause until the store answers: %s", error)
        self._is_down = error is not None
        return changed

    def _forget(self, age_s_max: float = 0.0) -> None:
        """Read everything anew, unless it was read within this time."""
        at = self._ticks()
        if at - self._forgot_at >= age_s_max:
            self._forgot_at = at
            self._reads.forget()
            for reads in self._topic_reads.values():
                reads.forget()

    def _join(self, rights: Rights, topic: str) -> WatchedTopic:
        found = self._watched.get((rights, topic))
        if found is None:
            reads = self._topic_reads.get(rights)
            if reads is None:
                caller = rights.caller()
                engine = AuthorizedEngine(self._reads, caller, self._controls)
                reads = self._topic_reads[rights] = TopicReads(engine, caller, self._reader)
            found = self._watched[rights, topic] = WatchedTopic(reads, topic)
        found.viewers += 1
        return found

    def _leave(self, rights: Rights, watched: list[WatchedTopic]) -> None:
        for each in watched:
            each.viewers -= 1
            if not each.viewers:
                del self._watched[rights, each.topic]
        if all(known != rights for known, _ in self._watched):
            self._topic_reads.pop(rights, None)
        if not self._watched:
            self._forget()

    async def _read(
        self, watched: WatchedTopic, demanded_at: float, *, counts_demanded_at: float
    ) -> None:
        """Read a topic; writes up to `demanded_at` must be in its data, or it will be read again.
        Since `counts_demanded_at` no write has changed the counts of queues. Raises EngineError;
        any other error is that of the topic."""
        at, started_at, reads = self._now(), self._ticks(), watched.reads
        reads.wanted = Freshness(
            age_s_max=max(0.0, started_at - demanded_at),
            right_s_max=max(0.0, started_at - counts_demanded_at),
            # A page that is on the screen changes at once, and its counts when they are known.
            behind_s_max=BEHIND_S_MAX if watched.is_new else inf,
        )
        read_at, awaits_counts, count_s = self._forgot_at, False, 0.0
        try:
            data = await read_topic(reads, watched.topic)
        except EngineError:
            raise
        except HoldfastError as error:
            watched.end(error)
        else:
            facts = reads.facts_of_topic(watched.topic)
            if facts is not None:
                count_s, awaits_counts = facts.count_s, facts.behind
                at = min(at, facts.as_of) if facts.behind else at
            watched.update(data, at)
        watched.read_at, watched.awaits_counts = read_at, awaits_counts
        ended_at = self._ticks()
        took_s = ended_at - started_at
        if _REST * took_s > POLL_S:
            watched.rests_until = ended_at + min(_REST * took_s, _REST_S_MAX)
        fresh_s = max(_UNCHANGED_S_MIN, _UNCHANGED * max(took_s, count_s))
        watched.fresh_until = ended_at + min(fresh_s, _UNCHANGED_S_MAX)
        if counts_demanded_at > watched.counted_at and not awaits_counts:
            fresh_s = max(_UNCHANGED_S_MIN, min(_UNCHANGED * count_s, _COUNTS_S_MAX))
            watched.counted_at, watched.counts_fresh_until = read_at, ended_at + fresh_s

    async def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        await wake_in_batches(waiting, self._pause)


_HUBS: weakref.WeakKeyDictionary[Holdfast, LiveHub] = weakref.WeakKeyDictionary()


def live_hub(app: Holdfast, redaction: Redaction | None = None) -> LiveHub:
    """The hub of an application. `redaction` hides values from viewers without `operate`."""
    found = _HUBS.get(app)
    if found is None:
        reader, loop = overview_reader(app), poll_loop(app)
        found = _HUBS[app] = LiveHub(app.engine, reader, loop, redaction)
    return found


def merge_patch(before: Data, after: Data) -> Data:
    """The JSON merge patch (RFC 7396) from one object to another; empty if they are the same. Such
    a patch has no null, only missing members: one that becomes null is removed."""
    patch: dict[str, Any] = {
        name: None for name, old in before.items() if old is not None and after.get(name) is None
    }
    for name, new in after.items():
        old = before.get(name)
        if new is None or new == old:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            if nested := merge_patch(old, new):
                patch[name] = nested
        else:
            patch[name] = new
    return patch


def _event(name: bytes, body: Data) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name, msgspec.json.encode(body))
