"""Health is progress: room free, work waiting and nothing leased is red, whatever the heartbeat.

It asks the store, not the intake: a loop that is wedged would say that all is well.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core import lifecycle, limits
from holdfast.core.causes import has_room
from holdfast.core.model import JobFilter, State
from holdfast.engines.base import Engine

_LOOK_MAX = 50
_ASKED_MAX = 10
STALL_MS = 15 * limits.SECOND_MS
"""How long due work may wait beside free room before somebody must be told."""


async def find_stall(engine: Engine, queues: Collection[str], tasks: Collection[str]) -> str:
    """Work that this worker could do and that has been due for too long; "" when there is none."""
    for view in await engine.queues():
        queue = view.queue
        age_ms = view.oldest_age_ms
        if queue.name not in queues or queue.paused or not view.ready:
            continue
        if age_ms is None or age_ms < STALL_MS:
            continue
        page = await engine.find(
            JobFilter(queue=queue.name, states=(State.WAITING,)), limit=_LOOK_MAX
        )
        # By the store's own clock, which the longest-due job tells, if it is among these.
        now = min((job.due_at for job in page.jobs), default=0) + age_ms
        ready = [
            job
            for job in page.jobs
            if job.task in tasks
            and job.expires_at is None
            and lifecycle.is_ready(job, now - STALL_MS)
        ]
        # The oldest stand last, and are the likeliest to be in nobody's way.
        for job in reversed(ready[-_ASKED_MAX:]):
            if await _could_start(engine, job.id):
                return f"room is free, work waits in {queue.name} and nothing is leased"
    return ""


async def _could_start(engine: Engine, id: str) -> bool:
    """Neither its parents nor its group nor a limit keep it."""
    waits = await engine.waits(id)
    if waits is None or waits.parent_count or waits.group_head is not None:
        return False
    return all(map(has_room, waits.slots))
