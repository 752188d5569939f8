"""Acts on a queue as a whole: pause, resume, drain, drop. Each leaves word where one is due."""

from __future__ import annotations

import asyncio
import time

from holdfast.core import admission
from holdfast.core.model import Queue, QueueView
from holdfast.core.pauses import Pause
from holdfast.engines.base import Engine
from holdfast.explaining import end_pause, save_pause
from holdfast.limiting import change_queue
from holdfast.options import QueueOptions, changed_queue

_LOOK_S = 0.5


async def find_queue(engine: Engine, name: str, *, counts: bool = False) -> QueueView | None:
    views = await engine.queues(counts=counts)
    return next((view for view in views if view.queue.name == name), None)


async def alter_queue(engine: Engine, name: str, options: QueueOptions) -> Queue:
    """Change settings of a queue that is there; those that are not given stay."""

    def changed(known: Queue | None) -> Queue:
        if known is None:
            raise admission.unknown(name)
        return changed_queue(known, options)

    return await change_queue(engine, name, changed)


async def pause_queue(engine: Engine, name: str, pause: Pause) -> Queue:
    """No job starts until it is resumed; those that run go on."""
    queue = await alter_queue(engine, name, {"paused": True})
    await save_pause(engine, name, pause)
    return queue


async def resume_queue(engine: Engine, name: str) -> Queue:
    queue = await alter_queue(engine, name, {"paused": False})
    await end_pause(engine, name)
    return queue


async def drop_queue(engine: Engine, name: str) -> None:
    """With every job in it, running ones too."""
    await engine.drop(name)
    await save_pause(engine, name, None)


async def until_empty(engine: Engine, name: str, wait_ms_max: int | None) -> int:
    """Until no job waits or runs, or the time is over; how many are left."""
    until = None if wait_ms_max is None else time.monotonic() + wait_ms_max / 1000
    while left := await left_in(engine, name):
        rest_s = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
        if rest_s <= 0:
            break
        await asyncio.sleep(rest_s)
    return left


async def left_in(engine: Engine, name: str) -> int:
    """How many jobs wait or run."""
    view = await find_queue(engine, name, counts=True)
    if view is None:
        raise admission.unknown(name)
    # Overdue jobs are leased ones too.
    return view.ready + view.delayed + view.blocked + view.leased


def held_by(view: QueueView) -> int:
    """All jobs of a queue, finished ones too."""
    names = ("ready", "delayed", "blocked", "leased", "done", "dead", "cancelled")
    return sum(int(getattr(view, each)) for each in names)
