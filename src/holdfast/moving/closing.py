"""The store that is left comes to rest: its queues are closed, what is leased ends; and the way
back, by which they are opened as they were."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container

from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, Queue, State
from holdfast.core.pauses import Pause
from holdfast.engines.base import Engine
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.explaining import save_pause
from holdfast.moving.records import Leaving, Opening, Slate, leaving
from holdfast.upkeep.reaper import Reaper

_LOOK_S = 0.5
_LEASED = JobFilter(states=(State.LEASED,))
_NAMED_MAX = 10
_ROUNDS_MAX = 100
_BY = "migrate-data"


async def close(engine: Engine, slate: Slate[Leaving]) -> None:
    """Every queue takes no job and starts none. How it was is written down first."""
    for _ in range(_ROUNDS_MAX):
        known = slate.value
        assert known is not None
        queues = [view.queue for view in await engine.queues(counts=False)]
        unknown = [queue for queue in queues if queue.name not in known.queues]
        if unknown:
            as_they_are = {each.name: Opening(each.accepting, each.paused) for each in unknown}
            await slate.write(replace(known, queues=known.queues | as_they_are))
        open_ = [queue for queue in queues if queue != closed(queue)]
        names = {queue.name for queue in queues}
        for queue in open_:
            await engine.declare(closed(fitting(queue, names)))
            if not queue.paused:
                word = Pause(by=_BY, text=f"everything is moved to {known.to}")
                await save_pause(engine, queue.name, word)
        if not unknown and not open_:
            return
    raise EngineUnavailable("somebody opens queues again and again: stop that first")


async def drain(
    engine: Engine, slate: Slate[Leaving], *, wait_ms: int, tell: Callable[[int], None]
) -> list[Job]:
    """Until no job is leased or the time is over; those that are, some of them. A lease that
    lapses comes back, also where nobody else keeps time."""
    until = time.monotonic() + wait_ms / 1000
    reaper = Reaper(engine)
    calm = 0
    while True:
        # A worker that starts declares a queue of its own.
        await close(engine, slate)
        await reaper.once()
        leased = sum(each.count for each in await engine.tally(_LEASED, "state", limit=1))
        calm = 0 if leased else calm + 1
        # Twice: one may have been about to be leased while the queues were closed.
        if calm == 2:
            return []
        if leased:
            tell(leased)
            if time.monotonic() >= until:
                return list((await engine.find(_LEASED, limit=_NAMED_MAX)).jobs)
        await asyncio.sleep(_LOOK_S if leased else _LOOK_S / 10)


async def reopen(engine: Engine) -> list[str]:
    """Forget the move, and open the queues as they were; which."""
    slate = leaving(engine)
    known = await slate.read()
    if known is None:
        raise UsageError("no move from this store is written down: its queues are as they are")
    opened = []
    queues = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
    for name, queue in queues.items():
        if name in known.queues:
            await engine.declare(opened_as(fitting(queue, queues), known))
            if not known.queues[name].paused:
                await save_pause(engine, name, None)
            opened.append(name)
    await slate.write(None)
    return opened


def fitting(queue: Queue, names: Container[str]) -> Queue:
    """A dead queue that is gone counts as none, and no engine takes its name."""
    return queue if queue.dead_queue in names else replace(queue, dead_queue=None)


def closed(queue: Queue) -> Queue:
    return replace(queue, accepting=False, paused=True)


def opened_as(queue: Queue, known: Leaving) -> Queue:
    """As it was before it was closed."""
    was = known.queues[queue.name]
    return replace(queue, accepting=was.accepting, paused=was.paused)
