"""A worker in poor health: its leases, its record, and its recovery."""

import asyncio
from typing import Any

import pytest

from holdfast.core.model import Failure, Overrides, State
from holdfast.core.workers import Health
from holdfast.errors import ConfigError
from holdfast.ops.workers import Workers
from holdfast.worker.supervisor import health, supervisor
from holdfast.worker.wire import ChildBroken
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import until
from tests.worker.supervisor_driver import TASKS, Story

pytestmark = pytest.mark.usefixtures("hurried")


async def test_a_degraded_worker_leases_half_its_room(troubled: TroubledEngine) -> None:
    story = Story(troubled)
    await story.enqueue(
        *(f"j{number}" for number in range(30)), overrides=Overrides(max_attempts=100)
    )
    async with story.running():
        (first, *others) = await story.calls(4)
        story.end(first, failed=True)
        story.end(others[0], failed=True)
        story.end(others[1], failed=True)
        # Three failures in a row: of three free slots, two may be taken.
        await until(lambda: story.supervisor._capacity._health is Health.DEGRADED)
        story.supervisor._intake.look()
        assert story.supervisor._capacity.room("python") <= 2
        story.end(*story.open_calls)
        await until(lambda: story.supervisor._capacity._health is Health.HEALTHY)
        await story.calls(4)


async def test_an_unhealthy_worker_leases_nothing_and_recovers(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(troubled)
    async with story.running():
        fortune = story.supervisor._outcomes
        for task in ("work", "other") * 10:
            fortune.failed_at(task)
        await until(lambda: story.supervisor._capacity._health is Health.UNHEALTHY)
        await story.enqueue("a")

        async def red() -> bool:
            return (await story.view()).health is Health.UNHEALTHY

        await until(red, "the registry to say so")
        assert story.child.calls == []
        fortune._failed_at -= 60.0
        story.end(*await story.calls(1))
        await until(lambda: story.supervisor._capacity._health is Health.HEALTHY)


async def test_a_worker_that_leases_no_due_work_is_unhealthy_until_it_does(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intake hangs, as with an engine that never answers; it must be able to recover."""
    monkeypatch.setattr(health, "STALL_MS", 20)
    monkeypatch.setattr(supervisor, "STALL_MS", 20)
    story = Story(troubled)
    gate = asyncio.Event()
    lease = troubled.lease

    async def wedged(request: Any) -> Any:
        await gate.wait()
        return await lease(request)

    troubled.lease = wedged  # type: ignore[method-assign]
    await story.enqueue("a")
    async with story.running():

        async def red() -> str:
            view = await story.view()
            return view.why if view and view.health is Health.UNHEALTHY else ""

        why = await until(red, "it to be red")
        assert why == "room is free, work waits in default and nothing is leased"
        beats = troubled.asked["save"]
        await until(lambda: troubled.asked["save"] > beats + 3, "some heartbeats")
        assert await red() == why
        gate.set()
        story.end(*await story.calls(1))

        async def well() -> bool:
            return (await story.view()).health is Health.HEALTHY

        await until(well, "it to be well again")


async def test_an_application_that_never_could_be_imported(troubled: TroubledEngine) -> None:
    story = Story(troubled)
    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.children)
    story.child.answer(ChildBroken(Failure(type="ImportError", message="no module")))
    with pytest.raises(ConfigError, match="a:app cannot be imported: ImportError: no module"):
        await task
    assert await Workers(troubled).all() == []


async def test_an_application_that_is_being_changed(troubled: TroubledEngine) -> None:
    story = Story(troubled)
    async with story.running():
        await until(lambda: story.supervisor._pool.tasks)
        await story.another_child(1)
        story.child.answer(ChildBroken(Failure(type="SyntaxError", message="half a line")))

        async def red() -> str:
            view = await story.view()
            return view.why if view.health is Health.UNHEALTHY else ""

        assert "half a line" in await until(red)
        await story.another_child(0)
        story.child.ready(*TASKS)
        await story.enqueue("a")
        story.end(*await story.calls(1))


async def test_an_application_that_cannot_start_holds_no_jobs(
    troubled: TroubledEngine,
) -> None:
    """Otherwise they would be renewed while it is broken, and run nowhere."""
    story = Story(troubled)
    async with story.running():
        await until(lambda: story.supervisor._pool.tasks)
        await story.another_child(1)
        await story.enqueue(*"ab")
        await until(lambda: len(story.supervisor._held) == 2, "them to be leased")
        story.child.answer(ChildBroken(Failure(type="SyntaxError", message="half a line")))
        await until(lambda: len(story.supervisor._held) == 0, "them to be released")
        asked = len(troubled.requests)
        await story.enqueue("c")
        await until(lambda: story.supervisor._capacity.wanted()[0] == 0)
        for id_ in "abc":
            job = await troubled.get(id_)
            assert job is not None
            assert (job.state, job.attempt) == (State.WAITING, 0)
        assert len(troubled.requests) <= asked + 1
        await story.another_child(0)
        story.child.ready(*TASKS)
        story.end(*await story.calls(3))
