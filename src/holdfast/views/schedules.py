"""A schedule, and its next tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.upkeep import Schedule
from holdfast.upkeep.schedule import Missed
from holdfast.views.values import at_of, value_of


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, and the job that each tick enqueues. One that is paused has no next tick."""

    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    missed: Missed
    missed_max: int
    grace_ms: int
    paused: bool
    last_tick: str | None
    next_tick: str | None
    queue: str
    task: str
    payload: Any
    priority: int
    tenant: str | None


def schedule_view(
    schedule: Schedule,
    next_tick: int | None,
    *,
    value: Callable[[bytes, str], Any] = value_of,
) -> ScheduleView:
    """`value` makes something of the payload."""
    job = schedule.job
    return ScheduleView(
        name=schedule.name,
        cron=schedule.cron,
        every_ms=schedule.every_ms,
        zone=schedule.zone,
        missed=schedule.missed,
        missed_max=schedule.missed_max,
        grace_ms=schedule.grace_ms,
        paused=schedule.paused,
        last_tick=at_of(schedule.last_tick),
        next_tick=None if schedule.paused else at_of(next_tick),
        queue=job.queue,
        task=job.task,
        payload=value(job.payload, job.content_type),
        priority=job.priority,
        tenant=job.tenant,
    )
