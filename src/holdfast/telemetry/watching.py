"""Notices what changes in the store and tells it as events: queues, workers, breakers, redrives.

Whoever did it and from wherever, it is seen by comparing what is there with what was there at the
last look, which all upkeeps share. What is to be told is saved with that before it is told, so
that whoever finds it after a crash can tell it, under the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from holdfast.core import breaker, limits, pauses, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import Record
from holdfast.core.workers import Health, WorkerRecord, addressee
from holdfast.engines.base import Engine, Saved
from holdfast.telemetry.notable import Kind, Notable, at_of, event_key, record_of, told
from holdfast.upkeep.redrive import RedriveRecord
from holdfast.upkeep.redrives import RECORD_KIND as REDRIVE_KIND

Kept = TypeVar("Kept", bound=msgspec.Struct)

STATE_KIND: Final = "watched"
_KEY = "now"
_MOST = 1_000
"""Of each sort: more are not watched."""
_TOLD_MAX = 100
"""Events of one look."""
_AHEAD_MS_MAX = 10 * limits.MINUTE_MS


class Watched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there was, and what is to be told of how it came, under which key. Workers by name:
    the id of the start and the health; redrives that have not ended; when a queue was last paused,
    which may be over before anybody looks."""

    queues: dict[str, bool] = {}
    pauses: dict[str, int] = {}
    workers: dict[str, tuple[str, str]] = {}
    breakers: dict[str, str] = {}
    redrives: dict[str, str] = {}
    key: str = ""
    events: tuple[Notable, ...] = ()


class Watcher:
    """Part of the bookkeeper's work."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._told = ""

    async def once(self) -> None:
        found = await self._engine.load(STATE_KIND, limit=1)
        version = found[0].version if found else 0
        before = _decoded(found[0], Watched) if found else None
        if before is not None and before.key and before.key != self._told:
            await self._tell(before)
        now = await self._look()
        if before is None:
            # What was there before anybody watched is no news.
            await self._save(now, version)
            return
        events, at = changes(before, now), self._wall_ms()
        if not events and _same(before, now):
            return
        if events:
            # Later than what was told last, whatever the clocks say; but one that was far off must
            # not be followed for ever.
            last = at_of(before.key)
            if at <= last < at + _AHEAD_MS_MAX:
                at = last + 1
            key = event_key(at, "upkeep", version)
            kept = tuple(told(each, at) for each in events[:_TOLD_MAX])
            now = msgspec.structs.replace(now, key=key, events=kept)
        if await self._save(now, version) and events:
            await self._tell(now)

    async def _tell(self, state: Watched) -> None:
        """Stale is what somebody told already."""
        await self._engine.save([record_of(state.key, state.events)])
        self._told = state.key

    async def _save(self, state: Watched, version: int) -> bool:
        value = msgspec.json.encode(state)
        if len(value) > limits.RECORD_MAX:
            return False
        record = Record(kind=STATE_KIND, key=_KEY, value=value, version=version)
        return await self._engine.save([record]) == [Saved.SAVED]

    async def _look(self) -> Watched:
        views = await self._engine.queues(counts=False)
        named = [view.queue for view in views if addressee(view.queue.name) is None]
        return Watched(
            queues={queue.name: queue.paused for queue in named[:_MOST]},
            pauses=await self._pauses(),
            workers=await self._workers(),
            breakers=await self._breakers(),
            redrives=await self._redrives(),
        )

    async def _pauses(self) -> dict[str, int]:
        found = await self._engine.load(pauses.KIND, limit=_MOST)
        known = ((record.key, pauses.pause_of(record).at) for record in found)
        return {queue: at for queue, at in known if at is not None}

    async def _workers(self) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        for record in await self._engine.load(workers.KIND, limit=_MOST):
            known = _decoded(record, WorkerRecord)
            if known is not None:
                silent = record.age_ms > workers.UNHEALTHY_AGE_MS
                state, _ = workers.health(known, record.age_ms)
                found[record.key] = (known.id, "silent" if silent else state)
        return found

    async def _breakers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in await self._engine.load(breaker.KIND, limit=_MOST):
            known = _decoded(record, BreakerRecord)
            if known is not None and known.state is not BreakerState.CLOSED:
                # Whether it is being tried or waits for that makes no difference to who looks.
                found[record.key] = known.last or known.by
        return found

    async def _redrives(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in await self._engine.load(REDRIVE_KIND, limit=_MOST):
            known = _decoded(record, RedriveRecord)
            if known is not None:
                found[known.id] = known.state
        return found


def changes(before: Watched, now: Watched) -> list[Notable]:
    """What happened in between."""
    return [
        *_of_queues(before, now),
        *_of_workers(before.workers, now.workers),
        *_of_breakers(before.breakers, now.breakers),
        *_of_redrives(before.redrives, now.redrives),
    ]


def _of_queues(before: Watched, now: Watched) -> list[Notable]:
    found = []
    for name, paused in now.queues.items():
        if name not in before.queues:
            found.append(Notable(kind=Kind.QUEUE_MADE, queue=name))
        was = before.queues.get(name, False)
        between = now.pauses.get(name) not in (None, before.pauses.get(name))
        if not was and (paused or between):
            found.append(Notable(kind=Kind.QUEUE_PAUSED, queue=name))
        if not paused and (was or between):
            found.append(Notable(kind=Kind.QUEUE_RESUMED, queue=name))
    gone = [name for name in before.queues if name not in now.queues]
    return found + [Notable(kind=Kind.QUEUE_DROPPED, queue=name) for name in gone]


def _of_workers(
    before: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]
) -> list[Notable]:
    """A worker that is silent may come back: it went when its record is gone, or another's."""
    found = []
    for name, (id_, state) in now.items():
        known, was = before.get(name, ("", ""))
        if id_ != known:
            if known and was != "silent":
                found.append(Notable(kind=Kind.WORKER_WENT, name=name))
            found.append(Notable(kind=Kind.WORKER_CAME, name=name))
            was = Health.HEALTHY
        if state == was:
            continue
        if state == "silent":
            found.append(Notable(kind=Kind.WORKER_WENT, name=name, reason="silent"))
        elif was == "silent":
            found.append(Notable(kind=Kind.WORKER_CAME, name=name))
        if state in (Health.DEGRADED, Health.UNHEALTHY):
            found.append(Notable(kind=Kind.WORKER_UNWELL, name=name, reason=state))
        elif was in (Health.DEGRADED, Health.UNHEALTHY) and state == Health.HEALTHY:
            found.append(Notable(kind=Kind.WORKER_WELL, name=name))
    for name, (_, was) in before.items():
        if name not in now and was != "silent":
            found.append(Notable(kind=Kind.WORKER_WENT, name=name))
    return found


def _of_breakers(before: dict[str, str], now: dict[str, str]) -> list[Notable]:
    opened = [name for name in now if name not in before]
    closed = [name for name in before if name not in now]
    return [
        *(Notable(kind=Kind.BREAKER_OPENED, name=name, text=now[name]) for name in opened),
        *(Notable(kind=Kind.BREAKER_CLOSED, name=name) for name in closed),
    ]


def _of_redrives(before: dict[str, str], now: dict[str, str]) -> list[Notable]:
    found = []
    for id_, state in now.items():
        was = before.get(id_)
        over = state not in ("running", "canary")
        if was is None:
            found.append(Notable(kind=Kind.REDRIVE_STARTED, id=id_))
        if over and (was is None or was in ("running", "canary")):
            found.append(Notable(kind=Kind.REDRIVE_ENDED, id=id_, reason=state))
    return found


def _same(before: Watched, now: Watched) -> bool:
    names = ("queues", "pauses", "workers", "breakers", "redrives")
    return all(getattr(before, name) == getattr(now, name) for name in names)


def _decoded(record: Record, kind: type[Kept]) -> Kept | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return msgspec.json.decode(record.value or b"", type=kind)
    except msgspec.DecodeError:
        return None
