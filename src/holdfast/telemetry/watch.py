"""Detect changes of queues, workers, breakers and redrives in the store, and write them as events.

Each scan is compared with the last one, which all processes share as a record. The new events are
saved in that record first, so that another process can write them after a crash, under the same
key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.core import bounds, breaker, workers
from holdfast.core.bounds import Instant
from holdfast.core.breaker import BreakerState
from holdfast.core.workers import Health, addressee
from holdfast.engines.base import Engine
from holdfast.ops.breakers import BREAKERS
from holdfast.ops.queues import PAUSE_KIND, PAUSES
from holdfast.ops.records import RecordKind
from holdfast.ops.redrives import REDRIVE_KIND, REDRIVES
from holdfast.ops.workers import WORKERS, read_unattended
from holdfast.telemetry.event_log import (
    EVENT_KEY,
    FeedEvent,
    FeedEventKind,
    clean_event,
    event_key,
    event_record,
    key_instant,
)

WATCH_KIND: Final = "watched"
_KEY = "now"
_WATCHED_MAX = 1_000
"""Queues, workers and others of each kind that are watched."""
_EVENTS_MAX = 100
"""Events that one scan can write."""
_AHEAD_MS_MAX = 10 * bounds.MINUTE_MS


class WatchState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last scan: whether queues are paused, and when they last were, as a pause may be over
    before a scan; workers with the id of their start and their health; open breakers; redrives
    with their state. `events` are the changes it found, to be written under `key`."""

    queues: dict[str, bool] = {}
    pauses: dict[str, Instant] = {}
    workers: dict[str, tuple[str, str]] = {}
    breakers: dict[str, str] = {}
    redrives: dict[str, str] = {}
    key: str = ""
    events: tuple[FeedEvent, ...] = ()


def _check_stored(_: str, state: WatchState) -> None:
    if state.key and not EVENT_KEY.match(state.key):
        raise ValueError(f"the key of its events is {state.key[:80]!r}")


WATCH = RecordKind(WATCH_KIND, WatchState, check=_check_stored)


class StoreWatcher:
    """Writes the changes since the last scan of any process; run by the bookkeeper."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._written_key = ""

    async def once(self) -> None:
        """Scan once, and write what changed."""
        found = await WATCH.read(self._engine, _KEY)
        version = 0 if found is None else found.version
        before = None if found is None else found.value
        if before is not None and before.key and before.key != self._written_key:
            await self._write_events(before)
        now = await self._scan()
        if before is None:
            # The first scan has nothing to compare with.
            await self._save(now, version)
            return
        events, at = detect_changes(before, now), self._wall_ms()
        if not events and _same(before, now):
            return
        if events:
            # Sort after the last events even if clocks differ, unless that clock was far off.
            last = key_instant(before.key)
            if at <= last < at + _AHEAD_MS_MAX:
                at = last + 1
            key = event_key(at, "upkeep", version)
            kept = tuple(clean_event(each, at) for each in events[:_EVENTS_MAX])
            now = msgspec.structs.replace(now, key=key, events=kept)
        if await self._save(now, version) and events:
            await self._write_events(now)

    async def _write_events(self, state: WatchState) -> None:
        """Write the events; a stale record means that another process did."""
        await self._engine.save([event_record(state.key, state.events)])
        self._written_key = state.key

    async def _save(self, state: WatchState, version: int) -> bool:
        if len(WATCH.encode_value(state)) > bounds.RECORD_MAX:
            return False
        return await WATCH.save(self._engine, _KEY, state, version)

    async def _scan(self) -> WatchState:
        views = await self._engine.queues(counts=False)
        named = [view.queue for view in views if addressee(view.queue.name) is None]
        return WatchState(
            queues={queue.name: queue.paused for queue in named[:_WATCHED_MAX]},
            pauses=await self._pauses(),
            workers=await self._workers(),
            breakers=await self._breakers(),
            redrives=await self._redrives(),
        )

    async def _pauses(self) -> dict[str, int]:
        found = await self._engine.load(PAUSE_KIND, limit=_WATCHED_MAX)
        known = ((record.key, PAUSES.decode(record)) for record in found)
        return {queue: pause.at for queue, pause in known if pause and pause.at is not None}

    async def _workers(self) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        unattended = await read_unattended(self._engine)
        for record in await self._engine.load(workers.KIND, limit=_WATCHED_MAX):
            known = WORKERS.decode(record)
            if known is not None:
                silent = record.age_ms > workers.UNHEALTHY_AGE_MS
                unattended_ms = unattended.get(known.name, 0)
                state, _ = workers.health(known, record.age_ms, unattended_ms)
                found[record.key] = (known.id, "silent" if silent else state)
        return found

    async def _breakers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in await self._engine.load(breaker.KIND, limit=_WATCHED_MAX):
            known = BREAKERS.decode(record)
            if known is not None and known.state is not BreakerState.CLOSED:
                # A breaker that is half open has not closed: that is no change.
                found[record.key] = known.last or known.by
        return found

    async def _redrives(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in await self._engine.load(REDRIVE_KIND, limit=_WATCHED_MAX):
            known = REDRIVES.decode(record)
            if known is not None:
                found[known.id] = known.state
        return found


def detect_changes(before: WatchState, now: WatchState) -> list[FeedEvent]:
    """The events that lead from one scan to the next."""
    return [
        *_of_queues(before, now),
        *_of_workers(before.workers, now.workers),
        *_of_breakers(before.breakers, now.breakers),
        *_of_redrives(before.redrives, now.redrives),
    ]


def _of_queues(before: WatchState, now: WatchState) -> list[FeedEvent]:
    found = []
    for name, paused in now.queues.items():
        if name not in before.queues:
            found.append(FeedEvent(kind=FeedEventKind.QUEUE_MADE, queue=name))
        was = before.queues.get(name, False)
        between = now.pauses.get(name) not in (None, before.pauses.get(name))
        if not was and (paused or between):
            found.append(FeedEvent(kind=FeedEventKind.QUEUE_PAUSED, queue=name))
        if not paused and (was or between):
            found.append(FeedEvent(kind=FeedEventKind.QUEUE_RESUMED, queue=name))
    gone = [name for name in before.queues if name not in now.queues]
    return found + [FeedEvent(kind=FeedEventKind.QUEUE_DROPPED, queue=name) for name in gone]


def _of_workers(
    before: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]
) -> list[FeedEvent]:
    """A silent worker may come back; it is gone when its record is, or belongs to a new start."""
    found = []
    for name, (id_, state) in now.items():
        known, was = before.get(name, ("", ""))
        if id_ != known:
            if known and was != "silent":
                found.append(FeedEvent(kind=FeedEventKind.WORKER_WENT, name=name))
            found.append(FeedEvent(kind=FeedEventKind.WORKER_CAME, name=name))
            was = Health.HEALTHY
        if state == was:
            continue
        if state == "silent":
            found.append(FeedEvent(kind=FeedEventKind.WORKER_WENT, name=name, reason="silent"))
        elif was == "silent":
            found.append(FeedEvent(kind=FeedEventKind.WORKER_CAME, name=name))
        if state in (Health.DEGRADED, Health.UNHEALTHY):
            found.append(FeedEvent(kind=FeedEventKind.WORKER_UNWELL, name=name, reason=state))
        elif was in (Health.DEGRADED, Health.UNHEALTHY) and state == Health.HEALTHY:
            found.append(FeedEvent(kind=FeedEventKind.WORKER_WELL, name=name))
    for name, (_, was) in before.items():
        if name not in now and was != "silent":
            found.append(FeedEvent(kind=FeedEventKind.WORKER_WENT, name=name))
    return found


def _of_breakers(before: dict[str, str], now: dict[str, str]) -> list[FeedEvent]:
    opened = [name for name in now if name not in before]
    closed = [name for name in before if name not in now]
    return [
        *(
            FeedEvent(kind=FeedEventKind.BREAKER_OPENED, name=name, text=now[name])
            for name in opened
        ),
        *(FeedEvent(kind=FeedEventKind.BREAKER_CLOSED, name=name) for name in closed),
    ]


def _of_redrives(before: dict[str, str], now: dict[str, str]) -> list[FeedEvent]:
    found = []
    for id_, state in now.items():
        was = before.get(id_)
        over = state not in ("running", "canary")
        if was is None:
            found.append(FeedEvent(kind=FeedEventKind.REDRIVE_STARTED, id=id_))
        if over and (was is None or was in ("running", "canary")):
            found.append(FeedEvent(kind=FeedEventKind.REDRIVE_ENDED, id=id_, reason=state))
    return found


def _same(before: WatchState, now: WatchState) -> bool:
    names = ("queues", "pauses", "workers", "breakers", "redrives")
    return all(getattr(before, name) == getattr(now, name) for name in names)
