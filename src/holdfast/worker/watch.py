"""Health is progress: room free, work waiting and nothing leased is red, whatever the heartbeat.

It asks the store, not the intake: a loop that is wedged would say that all is well.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core import lifecycle, limits
from holdfast.core.model import JobFilter, State
from holdfast.engines.base import Engine

_LOOK_MAX = 50
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
        for job in page.jobs:
            known = job.task in tasks and job.expires_at is None
            if known and lifecycle.is_ready(job, now - STALL_MS):
                return f"room is free, work waits in {queue.name} and nothing is leased"
    return ""
