"""Changing a queue's settings without losing what somebody else changed in between, and setting
the limits that the code of a task asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core.flow import Limit
from holdfast.core.model import Queue, Record
from holdfast.engines.base import Engine, Saved
from holdfast.errors import EngineUnavailable
from holdfast.options import changed_queue

LIMIT_KIND = "task-limit"
_TRIES_MAX = 20
_LIMIT = msgspec.json.Decoder(Limit)


async def change_queue(engine: Engine, name: str, change: Callable[[Queue | None], Queue]) -> Queue:
    """Write what `change` makes of the settings, as often as they move under its feet. A dead
    queue that was dropped since counts no more, and must keep nobody from pausing the queue."""
    for _ in range(_TRIES_MAX):
        queues = {view.queue.name: view.queue for view in await engine.queues(counts=False)}
        known = queues.get(name)
        queue = change(known)
        if queue == known:
            return queue
        if known and queue.dead_queue == known.dead_queue and queue.dead_queue not in queues:
            queue = replace(queue, dead_queue=None)
        if await engine.declare(queue, instead_of=known):
            return queue
    raise EngineUnavailable(f"queue {name} is being changed all the time: try again")


async def set_limit(engine: Engine, queue: str, limit: Limit) -> Queue:
    """Bound the jobs of a queue; a limit of the same name is replaced."""
    return await _change_limits(engine, queue, limit.name, limit)


async def remove_limit(engine: Engine, queue: str, name: str) -> Queue:
    """One that is not there is no error."""
    return await _change_limits(engine, queue, name, None)


async def set_task_limits(engine: Engine, queue: str, wanted: Iterable[Limit]) -> None:
    """The limits that tasks of this queue declare. One that was set before stays as it is, even if
    an operator has changed it since, until the code says something new."""
    said = {
        record.key: (record, _LIMIT.decode(record.value))
        for record in await _all(engine)
        if record.value is not None
    }
    fresh = [
        (limit, said.get(_key(queue, limit)))
        for limit in wanted
        if _key(queue, limit) not in said or said[_key(queue, limit)][1] != limit
    ]
    if not fresh:
        return
    names = {limit.name for limit, _ in fresh}

    def changed(known: Queue | None) -> Queue:
        base = known or Queue(name=queue)
        others = [each for each in base.limits if each.name not in names]
        return replace(base, limits=(*others, *(limit for limit, _ in fresh)))

    await change_queue(engine, queue, changed)
    # Whoever is killed before this sets the same limits once more.
    records = [
        Record(
            kind=LIMIT_KIND,
            key=_key(queue, limit),
            value=msgspec.json.encode(limit),
            version=before[0].version if before else 0,
        )
        for limit, before in fresh
    ]
    saved = await engine.save(records)
    assert all(each in (Saved.SAVED, Saved.STALE) for each in saved)


async def _change_limits(engine: Engine, queue: str, name: str, wanted: Limit | None) -> Queue:
    def changed(known: Queue | None) -> Queue:
        if known is None:
            raise admission.unknown(queue)
        others = [each for each in known.limits if each.name != name]
        kept = others if wanted is None else [*others, wanted]
        return changed_queue(known, {"limits": kept})

    return await change_queue(engine, queue, changed)


def _key(queue: str, limit: Limit) -> str:
    return f"{queue}/{limit.name}"


async def _all(engine: Engine) -> list[Record]:
    records: list[Record] = []
    after = None
    while True:
        page = await engine.load(LIMIT_KIND, after=after, limit=1_000)
        records += page
        if len(page) < 1_000:
            return records
        after = page[-1].key
