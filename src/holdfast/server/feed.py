"""What happens in one namespace, read from the store once for all streams that show it.

Streams read from a short ring of parts that are encoded once. Nothing is kept for a stream: who is
slower than the ring is long is dropped, and may come again with the id it saw last.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic

from holdfast.app import Holdfast
from holdfast.core import limits
from holdfast.engines.base import Engine
from holdfast.errors import HoldfastError
from holdfast.server.parts import BEAT, SIGN, Part, Wanted, activity, part_of
from holdfast.server.seeing import Seen, seen_of
from holdfast.telemetry.accounts import Fleet
from holdfast.telemetry.notable import KIND, at_of, event_key
from holdfast.upkeep import wall_ms
from holdfast.upkeep.paging import records

_log = logging.getLogger("holdfast.server")

_POLL_S = 1.0
_BEAT_S = 15.0
_STREAMS_QUICK = 1_000
"""With more streams than these it looks less often: each look is paid for by all of them."""
_AT_ONCE = 10
_PAUSE_S = 0.002
"""A stream takes some 40 µs to be told something: so many at once, and then a pause, leave the most
of the time to others, however many streams there are."""
_TOGETHER = 16 * 1024
"""What came at once goes out at once: each writing costs more than what is written. A slow reader
has no more than this in memory."""
_RING = 500
_LATE_MS = 15 * limits.SECOND_MS
"""Processes flush every few seconds and their clocks differ a little: what is keyed so much
earlier than the latest is still looked for. What is keyed so much later than now is by a clock that
is wrong: it is told, and nothing goes by it."""


class Feed:
    """`round` is one look; without `poll_s` somebody else makes the rounds."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        seen: Seen,
        *,
        now: Callable[[], int] = wall_ms,
        ticks: Callable[[], float] = monotonic,
        poll_s: float | None = _POLL_S,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._seen = seen
        self._now = now
        self._ticks = ticks
        self._pause = pause
        self.poll_s = poll_s
        self._ring: deque[Part] = deque(maxlen=_RING)
        self._end = 0
        """The number of the next part."""
        self._top = ""
        """The latest key."""
        self._keys: set[str] = set()
        """Those that a look finds again."""
        self._recent: deque[Part] = deque(maxlen=_RING)
        """What was last, with its keys: many may come back at once, as when a server restarts."""
        self._fleet: Fleet | None = None
        self._beat_at = ticks()
        self._waiting: list[asyncio.Future[None]] = []
        self._begun = False
        self._starting = asyncio.Lock()
        self._streams = 0
        self._poller: asyncio.Task[None] | None = None

    @property
    def polls(self) -> bool:
        """Whether it looks by itself."""
        return self._poller is not None

    async def stream(self, after: str | None, wanted: Wanted) -> AsyncGenerator[bytes]:
        """What comes from now on; with `after`, first what came since."""
        self._streams += 1
        try:
            await self._start()
            at, top = self._end, self._top
            yield b"retry: 2000\n\n"
            if after is not None and after < top:
                async for part in self._since(after, top):
                    if found := part.encoded(wanted):
                        yield found
            silent = False
            while True:
                told: list[bytes] = []
                while at < self._end and sum(map(len, told)) < _TOGETHER:
                    if at < self._end - len(self._ring):
                        # It was too slow.
                        return
                    part = self._ring[at - self._end]
                    at += 1
                    if found := part.encoded(wanted):
                        silent = False
                        told.append(found)
                    elif part is SIGN:
                        if silent:
                            told.append(BEAT)
                        silent = True
                if told:
                    yield b"".join(told)
                    continue
                # Between the look at the end and this, nobody else had a turn.
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
        finally:
            self._streams -= 1
            if not self._streams and self._poller is not None:
                self._poller.cancel()
                self._poller = None
                self._begun = False

    async def round(self) -> None:
        """What is new, for everybody."""
        try:
            parts = [*await self._news(), *await self._activity()]
        except HoldfastError as error:
            _log.warning("the live feed goes on when the store does: %s", error)
            parts = []
        if self._ticks() - self._beat_at >= _BEAT_S:
            self._beat_at = self._ticks()
            parts.append(SIGN)
        if parts:
            self._ring.extend(parts)
            self._end += len(parts)
            await self._wake()

    async def _wake(self) -> None:
        """Some at a time, so that others are answered in between."""
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), _AT_ONCE):
            if at:
                await self._pause(_PAUSE_S)
            for waiter in waiting[at : at + _AT_ONCE]:
                if not waiter.done():
                    waiter.set_result(None)

    async def _since(self, after: str, top: str) -> AsyncGenerator[Part]:
        recent = list(self._recent)
        if recent and (recent[0].key or "") <= after:
            for part in recent:
                if part.key is not None and after < part.key <= top:
                    yield part
            return
        async for record in records(self._engine(), KIND, after):
            if record.key > top:
                return
            yield part_of(record)

    async def _start(self) -> None:
        async with self._starting:
            if not self._begun:
                # What is there already is no news.
                self._keys = set()
                await self._news()
                self._fleet = None
                await self._activity()
                self._begun = True
            if self._poller is None and self.poll_s is not None:
                self._poller = asyncio.create_task(self._poll(self.poll_s))

    async def _poll(self, poll_s: float) -> None:
        while True:
            await asyncio.sleep(poll_s * max(1.0, self._streams / _STREAMS_QUICK))
            try:
                await self.round()
            except Exception:  # noqa: BLE001 (streams must not wait for a feed that is gone)
                _log.exception("the live feed met something unexpected")

    async def _news(self) -> list[Part]:
        now = self._now()
        earliest = min(at_of(self._top), now) - _LATE_MS if self._top else 0
        found = [
            record
            async for record in records(self._engine(), KIND, event_key(max(0, earliest), "", 0))
        ]
        parts = []
        for record in found:
            if record.key not in self._keys:
                part = part_of(record)
                if record.key > self._top and at_of(record.key) <= now + _LATE_MS:
                    self._top = record.key
                    self._recent.append(part)
                else:
                    part = part._replace(key=None)
                parts.append(part)
        self._keys = {record.key for record in found}
        return parts

    async def _activity(self) -> list[Part]:
        before, self._fleet = self._fleet, await self._seen.fleet()
        return activity(before, self._fleet, self._now())


_FEEDS: weakref.WeakKeyDictionary[Holdfast, Feed] = weakref.WeakKeyDictionary()


def feed_of(app: Holdfast) -> Feed:
    """The one of this application."""
    found = _FEEDS.get(app)
    if found is None:
        held = weakref.ref(app)

        def engine() -> Engine:
            there = held()
            assert there is not None
            return there.engine

        found = _FEEDS[app] = Feed(engine, seen_of(app))
    return found
