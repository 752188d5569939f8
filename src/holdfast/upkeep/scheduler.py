"""The loop that enqueues the ticks of schedules, once each over any number of schedulers.

The enqueue decides: the id and the once-only key of the job are those of the tick, so a second
scheduler, a restart between two steps or a wall clock set back adds nothing. The `passed_at` of the
record only saves repeated enqueues.

On an engine without once-only keys the record decides: a scheduler claims the tick in it, enqueues,
and then records the tick as passed. If it dies in between, another one enqueues the tick again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import NewJob, Receipt, Record, Status
from holdfast.engines.base import Engine, Saved
from holdfast.events import Tell, Ticked, ignore_event
from holdfast.notation.durations import show_at
from holdfast.ops.jobs.bulk import enqueue_batches
from holdfast.ops.records import SkippedRecords, scan
from holdfast.ops.schedules import SCHEDULE_KIND, SCHEDULES, schedule_job, tick_id
from holdfast.ops.ticks import Schedule, due_ticks, next_tick

_log = logging.getLogger("holdfast.upkeep")

KEY_WINDOW_MS = 7 * bounds.DAY_MS
"""How long the key of a tick is held after its enqueue, however its job ended."""

TAKEOVER_MS = 30 * bounds.SECOND_MS
"""How long a scheduler that claimed a tick has to enqueue it."""

_AHEAD_MS_MAX = 15 * bounds.MINUTE_MS
"""A `passed_at` further in the future than this was written by a wrong clock, and is set back, as
nothing would tick until then. A smaller bound would make schedulers whose clocks differ a little
undo each other's writes."""


class Scheduler:
    """Enqueues due ticks by `wall_ms`, this machine's wall clock."""

    name = "scheduler"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        tell: Tell = ignore_event,
        sleep_ms_max: int = 5 * bounds.SECOND_MS,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._wall_ms = wall_ms
        self._tell = tell
        self._claims = not engine.traits.keys
        self._skipped = SkippedRecords(_log)

    async def once(self) -> int | None:
        """Enqueue every tick that is due; the time to the next one."""
        now = self._wall_ms()
        due: list[_Due] = []
        ticks = 0
        next_ms: int | None = None
        async for record in scan(self._engine, SCHEDULE_KIND):
            # Finding the ticks of one schedule may take a while: others run in between.
            await asyncio.sleep(0)
            try:
                found = _due(record, now, claims=self._claims)
            except Exception as error:  # noqa: BLE001 (it must not hold up the other schedules)
                self._skipped.skip(record, error)
                continue
            if found.ticks or found.passed_at != found.schedule.passed_at:
                due.append(found)
                ticks += len(found.ticks)
            if found.next_ms is not None:
                next_ms = found.next_ms if next_ms is None else min(next_ms, found.next_ms)
            if ticks >= bounds.BATCH_MAX:
                await self._enqueue(due)
                due, ticks = [], 0
        if due:
            await self._enqueue(due)
        self._skipped.end_round()
        return next_ms

    async def _enqueue(self, due: list[_Due]) -> None:
        if self._claims:
            due = await self._claim(due)
        receipts: list[Receipt] = []
        for jobs in enqueue_batches(
            _tick_job(each.schedule, tick, keyed=not self._claims)
            for each in due
            for tick in each.ticks
        ):
            receipts += await self._engine.enqueue(jobs)
        records = []
        for each in due:
            own, receipts = receipts[: len(each.ticks)], receipts[len(each.ticks) :]
            handled = self._handled(each, own)
            if handled != each.schedule or self._claims:
                records.append(SCHEDULES.record(handled.name, handled, each.version))
        for start in range(0, len(records), bounds.BATCH_MAX):
            # A stale record does no harm: another process wrote one, and the keys prevent
            # duplicates.
            await self._engine.save(records[start : start + bounds.BATCH_MAX])

    async def _claim(self, due: list[_Due]) -> list[_Due]:
        """Those schedules that this scheduler may handle: no other one has claimed their ticks."""
        claimed = [each for each in due if not each.ticks]
        ticking = [each for each in due if each.ticks]
        for start in range(0, len(ticking), bounds.BATCH_MAX):
            part = ticking[start : start + bounds.BATCH_MAX]
            records = [
                SCHEDULES.record(
                    each.schedule.name,
                    replace(each.schedule, enqueueing=each.ticks[-1]),
                    each.version,
                )
                for each in part
            ]
            saved = await self._engine.save(records)
            claimed += [
                each._replace(version=each.version + 1)
                for each, answer in zip(part, saved, strict=True)
                if answer is Saved.SAVED
            ]
        return claimed

    def _handled(self, due: _Due, receipts: list[Receipt]) -> Schedule:
        """The schedule after its ticks; a refused tick is due again, or missed."""
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
        return replace(schedule, passed_at=passed_at, last_tick=last_tick, enqueueing=None)


class _Due(NamedTuple):
    """A schedule, its due ticks, and its new `passed_at`."""

    schedule: Schedule
    version: int
    ticks: list[int]
    passed_at: int
    next_ms: int | None


def _due(record: Record, now: int, *, claims: bool) -> _Due:
    schedule = SCHEDULES.require(record)
    if claims and schedule.enqueueing is not None and record.age_ms < TAKEOVER_MS:
        left_ms = TAKEOVER_MS - record.age_ms
        return _Due(schedule, record.version, [], schedule.passed_at, left_ms)
    if schedule.paused:
        return _Due(schedule, record.version, [], schedule.passed_at, None)
    if schedule.passed_at > now + _AHEAD_MS_MAX:
        return _Due(schedule, record.version, [], now, 0)
    ticks, passed_at = due_ticks(schedule, now)
    ahead = next_tick(schedule, max(now, passed_at))
    next_ms = None if ahead is None else ahead - now
    return _Due(schedule, record.version, ticks, passed_at, next_ms)


def _tick_job(schedule: Schedule, tick: int, *, keyed: bool = True) -> NewJob:
    text = show_at(tick)
    key: dict[str, Any] = {
        "key": f"schedule/{schedule.name}/{text}",
        "key_window_ms": KEY_WINDOW_MS,
        "key_policy": "keep",
    }
    job = schedule_job(schedule, tick_id(schedule.name, tick), **(key if keyed else {}))
    return replace(job, headers={**job.headers, "tick": text})
