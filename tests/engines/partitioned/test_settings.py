"""Queue settings stay equal in all partitions, through outages and kills."""

import asyncio
from collections.abc import Collection

import pytest

from holdfast.conformance.contract.cases import a_queue
from holdfast.core.model import Queue, QueueView
from holdfast.core.partitions import home_of
from holdfast.engines.partitioned import settings
from holdfast.errors import OutcomeUnknown
from tests.engines.partitioned.fragile import GONE, Trio, shut_out
from tests.killed import Killed

pytestmark = pytest.mark.anyio


async def test_a_returning_partition_gets_missed_settings_first(trio: Trio) -> None:
    engine = trio.engine
    await engine.declare(a_queue("old"))
    await shut_out(trio, 1)
    await engine.declare(a_queue("grave"))
    await engine.declare(a_queue("q", dead_queue="grave", lease_ms=77))
    await engine.declare(a_queue("default", paused=True))
    await engine.drop("old")
    trio.fragile[1].fault = None
    await trio.back()
    views = [await each.engine.queues(counts=False) for each in trio.fragile]
    assert views[0] == views[1] == views[2]
    assert [view.queue.name for view in views[1]] == ["default", "grave", "q"]
    assert views[1][0].queue.paused


async def test_settings_changed_during_the_return_are_applied_too(trio: Trio) -> None:
    await trio.engine.declare(a_queue("old"))
    await shut_out(trio, 1)
    inner = trio.fragile[1].engine
    queues = inner.queues

    async def late(*, names: Collection[str] | None = None, counts: bool = True) -> list[QueueView]:
        found = await queues(names=names, counts=counts)
        if not counts:
            # It has heard what the others know, and is not in use yet.
            inner.queues = queues  # type: ignore[method-assign]
            await trio.engine.declare(a_queue("new"))
        return found

    inner.queues = late  # type: ignore[method-assign]
    trio.fragile[1].fault = None
    await trio.back()
    names = [view.queue.name for view in await queues()]
    assert names == ["default", "new", "old"]


async def test_a_new_queue_is_created_once_and_everywhere(trio: Trio) -> None:
    engine = trio.engine
    made = await asyncio.gather(
        *(engine.declare(a_queue("q", lease_ms=100 + n), instead_of=None) for n in range(5))
    )
    assert sum(made) == 1
    assert not await engine.declare(a_queue("q"), instead_of=None)
    await trio.fragile[home_of("half", 3)].engine.declare(a_queue("half", lease_ms=77))
    assert not await engine.declare(a_queue("half"), instead_of=None)
    views = [await each.engine.queues(counts=False) for each in trio.fragile]
    assert views[0] == views[1] == views[2]
    assert views[0][1].queue == a_queue("half", lease_ms=77)
    assert not await engine.declare(a_queue("none"), instead_of=a_queue("none"))
    assert await engine.declare(a_queue("half"), instead_of=a_queue("half", lease_ms=77))
    assert [view.queue.name for view in await engine.queues()] == ["default", "half", "q"]


async def test_all_partitions_keep_the_same_of_two_concurrent_changes(trio: Trio) -> None:
    engine = trio.engine
    for _ in range(5):
        await asyncio.gather(
            *(engine.declare(a_queue("q", lease_ms=100 + n)) for n in range(5)),
            engine.drop("q"),
        )
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert views[0] == views[1] == views[2]


async def test_no_concurrent_change_is_lost(trio: Trio) -> None:
    async def add() -> None:
        written = False
        while not written:
            known = (await trio.engine.queues(counts=False))[0].queue
            more = a_queue(lease_ms=known.lease_ms + 1)
            written = await trio.engine.declare(more, instead_of=known)

    before = (await trio.engine.queues())[0].queue.lease_ms
    await asyncio.gather(*(add() for _ in range(8)))
    views = [await each.engine.queues(counts=False) for each in trio.fragile]
    assert [view[0].queue.lease_ms for view in views] == [before + 8] * 3


async def test_the_last_process_applies_the_highest_version(trio: Trio) -> None:
    """Another process says and does a greater one while this one is about to act."""
    engine = trio.fragile[0].engine
    old, new = (settings.SettingsVersion(n, a_queue("q", lease_ms=n * 100)) for n in (1, 2))
    declare = engine.declare

    async def late(queue: Queue) -> bool:
        engine.declare = declare  # type: ignore[method-assign]
        await settings.apply_version(engine, "q", new)
        return await declare(queue)

    engine.declare = late  # type: ignore[method-assign,assignment]
    await settings.apply_version(engine, "q", old)
    assert (await engine.queues(counts=False))[1].queue == new.queue


async def test_a_change_of_a_killed_process_is_completed_at_the_next_opening() -> None:
    trio = Trio()
    await trio.engine.open()
    trio.fragile[2].engine.declare = _killed  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        await trio.engine.declare(a_queue("q", lease_ms=50))
    del trio.fragile[2].engine.declare
    await trio.engine.close()
    await trio.engine.open()
    views = [await each.engine.queues(counts=False) for each in trio.fragile]
    assert views[0] == views[1] == views[2]
    await trio.engine.close()


async def test_a_decided_change_that_reached_no_partition_is_unknown() -> None:
    trio = Trio()
    await trio.engine.open()
    for each in trio.fragile:
        each.engine.declare = _gone  # type: ignore[method-assign,assignment]
    with pytest.raises(OutcomeUnknown, match="a part of the call has taken effect"):
        await trio.engine.declare(a_queue("q", lease_ms=50))
    for each in trio.fragile:
        del each.engine.declare
    await trio.engine.close()
    await trio.engine.open()
    views = [await each.engine.queues(counts=False) for each in trio.fragile]
    assert [view[1].queue.lease_ms for view in views] == [50] * 3
    await trio.engine.close()


async def _gone(queue: Queue) -> None:
    raise GONE


async def _killed(queue: Queue) -> None:
    raise Killed
