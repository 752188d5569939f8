"""A worker that is not well: what it leases, what it says of itself, and how it recovers."""

import asyncio
from typing import Any

import pytest

from holdfast.core.model import Failure, Overrides, State
from holdfast.core.workers import Health
from holdfast.errors import ConfigError
from holdfast.worker import supervisor, watch
from holdfast.worker.registry import Workers
from holdfast.worker.wire import Broken
from tests.worker.doubles import TroubledEngine
from tests.worker.running import until
from tests.worker.story import TASKS, Story

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
        await until(lambda: story.supervisor._rooms._health is Health.DEGRADED)
        story.supervisor._rooms.intake.look()
        assert story.supervisor._rooms.room("python") <= 2
        story.end(*story.open_calls)
        await until(lambda: story.supervisor._rooms._health is Health.HEALTHY)
        await story.calls(4)


async def test_an_unhealthy_worker_leases_nothing_and_recovers(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(troubled)
    async with story.running():
        fortune = story.supervisor._fortune
        for task in ("work", "other") * 10:
            fortune.failed_at(task)
        await until(lambda: story.supervisor._rooms._health is Health.UNHEALTHY)
        await story.enqueue("a")

        async def red() -> bool:
            return (await story.view()).health is Health.UNHEALTHY

        await until(red, "the registry to say so")
        assert story.link.calls == []
        fortune._failed_at -= 60.0
        story.end(*await story.calls(1))
        await until(lambda: story.supervisor._rooms._health is Health.HEALTHY)


async def test_room_and_work_and_nothing_leased_is_red_until_something_is(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intake is wedged, as by an engine that never answers; being red must not keep it so."""
    monkeypatch.setattr(watch, "STALL_MS", 20)
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
    await until(lambda: story.links)
    story.link.speak(Broken(Failure(type="ImportError", message="no module")))
    with pytest.raises(ConfigError, match="a:app cannot be imported: ImportError: no module"):
        await task
    assert await Workers(troubled).all() == []


async def test_an_application_that_is_being_changed(troubled: TroubledEngine) -> None:
    story = Story(troubled)
    async with story.running():
        await until(lambda: story.supervisor._crew.tasks)
        await story.another_child(1)
        story.link.speak(Broken(Failure(type="SyntaxError", message="half a line")))

        async def red() -> str:
            view = await story.view()
            return view.why if view.health is Health.UNHEALTHY else ""

        assert "half a line" in await until(red)
        await story.another_child(0)
        story.link.ready(*TASKS)
        await story.enqueue("a")
        story.end(*await story.calls(1))


async def test_an_application_that_cannot_start_keeps_no_jobs_from_others(
    troubled: TroubledEngine,
) -> None:
    """They would be renewed for as long as it is broken, and run nowhere."""
    story = Story(troubled)
    async with story.running():
        await until(lambda: story.supervisor._crew.tasks)
        await story.another_child(1)
        await story.enqueue(*"ab")
        await until(lambda: len(story.supervisor._hand) == 2, "them to be leased")
        story.link.speak(Broken(Failure(type="SyntaxError", message="half a line")))
        await until(lambda: len(story.supervisor._hand) == 0, "them to be released")
        asked = len(troubled.requests)
        await story.enqueue("c")
        await until(lambda: story.supervisor._rooms.wanted()[0] == 0)
        for id_ in "abc":
            job = await troubled.get(id_)
            assert job is not None
            assert (job.state, job.attempt) == (State.WAITING, 0)
        assert len(troubled.requests) <= asked + 1
        await story.another_child(0)
        story.link.ready(*TASKS)
        story.end(*await story.calls(3))
