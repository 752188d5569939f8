"""Concurrent changes of queue settings, and limits that tasks declare in code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Queue
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import InvalidQueue, UnknownQueue
from holdfast.ops.queues import change_queue, set_task_limits
from holdfast.worker.supervisor.intake import TaskLimits
from holdfast.worker.wire import TaskInfo

TWO = Limit(name="send/concurrency", task="send", concurrency=2)
THREE = replace(TWO, concurrency=3)


@pytest.fixture
async def app() -> AsyncIterator[Holdfast]:
    async with Holdfast(engine=MemoryEngine()) as app:
        yield app


async def limits_of(engine: Engine, name: str = "default") -> tuple[Limit, ...]:
    views = await engine.queues(counts=False)
    return next(view.queue.limits for view in views if view.queue.name == name)


async def test_concurrent_changes_are_all_kept(app: Holdfast) -> None:
    await asyncio.gather(
        *(app.limit("default", f"l{number}", concurrency=1) for number in range(8)),
        app.declare("default", max_attempts=9),
    )
    (view,) = await app.queues()
    assert {limit.name for limit in view.queue.limits} == {f"l{number}" for number in range(8)}
    assert view.queue.max_attempts == 9


async def test_a_dropped_dead_queue_does_not_block_a_pause(app: Holdfast) -> None:
    await app.declare("grave")
    await app.declare("mail", dead_queue="grave")
    await app.drop("grave")
    paused = await app.declare("mail", paused=True)
    assert (paused.paused, paused.dead_queue) == (True, None)
    await app.limit("mail", "few", concurrency=1)
    with pytest.raises(UnknownQueue, match="dead_queue grave does not exist"):
        await app.declare("mail", dead_queue="grave")


async def test_a_limit_is_set_changed_and_removed(app: Holdfast) -> None:
    await app.limit("default", "smtp", rate="5/s burst 2", key="{tenant}")
    rate = Rate(count=5, per_ms=1_000, burst=2)
    assert await limits_of(app.engine) == (Limit(name="smtp", key="{tenant}", rate=rate),)
    await app.limit("default", "smtp", concurrency=1)
    assert await limits_of(app.engine) == (Limit(name="smtp", concurrency=1),)
    await app.unlimit("default", "smtp")
    await app.unlimit("default", "smtp")
    assert await limits_of(app.engine) == ()


async def test_an_invalid_limit_changes_nothing(app: Holdfast) -> None:
    with pytest.raises(UnknownQueue, match="queue mial does not exist"):
        await app.limit("mial", "l", concurrency=1)
    with pytest.raises(InvalidQueue, match="limits nothing"):
        await app.limit("default", "l")
    with pytest.raises(InvalidQueue, match="concurrency 0 is out of range: expected 1 to"):
        await app.limit("default", "l", concurrency=0)
    assert await limits_of(app.engine) == ()


async def test_an_operators_limit_stays_until_the_code_changes(
    app: Holdfast,
) -> None:
    engine = app.engine
    await set_task_limits(engine, "mail", [TWO])
    assert await limits_of(engine, "mail") == (TWO,)
    await app.limit("mail", TWO.name, concurrency=50, task="send")
    await set_task_limits(engine, "mail", [TWO])
    assert [limit.concurrency for limit in await limits_of(engine, "mail")] == [50]
    await set_task_limits(engine, "mail", [THREE])
    assert await limits_of(engine, "mail") == (THREE,)


async def test_a_start_killed_before_the_record_is_repeated(app: Holdfast) -> None:
    """The queue is changed before the record of the declared limits is written."""
    engine = app.engine
    await change_queue(engine, "mail", lambda _: Queue(name="mail", limits=(TWO,)))
    await set_task_limits(engine, "mail", [TWO])
    assert await limits_of(engine, "mail") == (TWO,)


async def test_many_workers_set_limits_at_the_same_time(app: Holdfast) -> None:
    engine = app.engine
    others = [replace(TWO, name=f"t{number}/concurrency") for number in range(8)]
    await asyncio.gather(*(set_task_limits(engine, "mail", [TWO, each]) for each in others))
    assert set(await limits_of(engine, "mail")) == {TWO, *others}


async def test_no_task_is_leased_before_its_limits_are_set(app: Holdfast) -> None:
    tasks = {
        "send": TaskInfo("send", queue="mail", limits=(TWO,)),
        "free": TaskInfo("free"),
    }
    bounds = TaskLimits(app.engine)
    assert not bounds.are_set(tasks)
    assert bounds.are_set({"free": tasks["free"]})
    assert await bounds.set(tasks)
    assert bounds.are_set(tasks)
    assert await limits_of(app.engine, "mail") == (TWO,)
    assert not await bounds.set(tasks)
    # A child process with newer code declares a newer limit.
    assert not bounds.are_set({"send": TaskInfo("send", queue="mail", limits=(THREE,))})
