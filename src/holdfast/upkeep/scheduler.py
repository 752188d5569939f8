"""Ticks that are due → jobs, once each over any number of schedulers.

The enqueue is the truth: its id and its once-only key are the tick's own, so a second scheduler,
a restart between two steps or a wall clock set back adds nothing. The record's note of what was
dealt with is only a hint that saves asking again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import NewJob, Receipt, Record, Status
from holdfast.durations import show_at
from holdfast.engines.base import Engine
from holdfast.errors import UsageError
from holdfast.events import Tell, Ticked, tell_nobody
from holdfast.upkeep.paging import records
from holdfast.upkeep.schedule import Schedule, due_ticks, next_tick
from holdfast.upkeep.schedules import RECORD_KIND, decode, encode, job_of

_log = logging.getLogger("holdfast.upkeep")

KEY_WINDOW_MS = 7 * limits.DAY_MS
"""How long a tick stays once-only after it was enqueued, whatever became of its job."""

_AHEAD_MS_MAX = 15 * limits.MINUTE_MS
"""A note further in the future than this was made by a wrong clock and is set back: until then
nothing ticks. Less would make schedulers whose clocks differ a little undo each other's notes."""


class Scheduler:
    """`wall_ms` is this machine's wall clock, which decides when it is time."""

    name = "scheduler"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        tell: Tell = tell_nobody,
        net_ms: int = 5 * limits.SECOND_MS,
    ) -> None:
        self.net_ms = net_ms
        self._engine = engine
        self._wall_ms = wall_ms
        self._tell = tell

    async def once(self) -> int | None:
        """Enqueue every tick that is due; the time to the next one."""
        now = self._wall_ms()
        due: list[_Due] = []
        next_ms: int | None = None
        async for record in records(self._engine, RECORD_KIND):
            try:
                found = _look(record, now)
            except UsageError as error:
                # One that cannot be read or reckoned here must not hold up the others.
                _log.warning("schedule %s is passed over: %s", record.key, error)
                continue
            if found.ticks or found.passed_at != found.schedule.passed_at:
                due.append(found)
            if found.next_ms is not None:
                next_ms = found.next_ms if next_ms is None else min(next_ms, found.next_ms)
        if due:
            await self._enqueue(due)
        return next_ms

    async def _enqueue(self, due: list[_Due]) -> None:
        jobs = [_tick_job(each.schedule, tick) for each in due for tick in each.ticks]
        receipts: list[Receipt] = []
        for at in range(0, len(jobs), limits.BATCH_MAX):
            receipts += await self._engine.enqueue(jobs[at : at + limits.BATCH_MAX])
        notes = []
        for each in due:
            own, receipts = receipts[: len(each.ticks)], receipts[len(each.ticks) :]
            noted = self._noted(each, own)
            if noted != each.schedule:
                notes.append(encode(noted, each.version))
        for at in range(0, len(notes), limits.BATCH_MAX):
            # A stale note is no loss: somebody else's is there, and the keys hold.
            await self._engine.save(notes[at : at + limits.BATCH_MAX])

    def _noted(self, due: _Due, receipts: list[Receipt]) -> Schedule:
        """What is now dealt with; a refused tick is not, and comes again or is missed."""
        schedule, passed_at, last_tick = due.schedule, due.passed_at, due.schedule.last_tick
        for tick, receipt in zip(due.ticks, receipts, strict=True):
            self._tell(
                Ticked(
                    schedule=schedule.name, tick_at=tick, status=receipt.status, text=receipt.text
                )
            )
            if receipt.status is Status.REFUSED:
                _log.warning("schedule %s cannot enqueue: %s", schedule.name, receipt.text)
                passed_at = max(schedule.passed_at, last_tick or 0)
                break
            last_tick = tick
        return replace(schedule, passed_at=passed_at, last_tick=last_tick)


class _Due(NamedTuple):
    schedule: Schedule
    version: int
    ticks: list[int]
    passed_at: int
    next_ms: int | None


def _look(record: Record, now: int) -> _Due:
    schedule = decode(record)
    if schedule.paused:
        return _Due(schedule, record.version, [], schedule.passed_at, None)
    if schedule.passed_at > now + _AHEAD_MS_MAX:
        return _Due(schedule, record.version, [], now, 0)
    ticks, passed_at = due_ticks(schedule, now)
    ahead = next_tick(schedule, max(now, passed_at))
    next_ms = None if ahead is None else ahead - now
    return _Due(schedule, record.version, ticks, passed_at, next_ms)


def _tick_job(schedule: Schedule, tick: int) -> NewJob:
    text = show_at(tick)
    job = job_of(
        schedule,
        f"schedule:{schedule.name}:{text}",
        key=f"schedule/{schedule.name}/{text}",
        key_window_ms=KEY_WINDOW_MS,
        key_policy="keep",
    )
    return replace(job, headers={**job.headers, "tick": text})
