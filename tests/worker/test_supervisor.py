"""One worker with doubles for children, on an engine in memory: what it leases and lets go."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.flow import Limit
from holdfast.core.model import JobFilter, Queue, QueueView, State
from holdfast.core.workers import KIND, Health, WorkerRecord, worker_queue
from holdfast.worker.registry import Workers, encode
from holdfast.worker.wire import TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.running import until
from tests.worker.story import ERROR, Story

pytestmark = pytest.mark.usefixtures("hurried")


async def test_jobs_run_and_their_verdicts_are_settled(troubled: TroubledEngine) -> None:
    story = Story(troubled, name="w")
    await story.enqueue(*"abcdef")
    async with story.running():
        story.end(*await story.calls(4))
        story.end(*await story.calls(2))
        await until(lambda: len(story.supervisor._hand) == 0)
        view = await story.view()
        assert (view.name, view.health, view.record.capacity) == ("w", Health.HEALTHY, 4)
    page = await troubled.find(JobFilter(states=(State.DONE,)), limit=10)
    assert len(page.jobs) == 6
    assert await Workers(troubled).all() == []


async def test_nothing_is_leased_until_the_limits_of_its_tasks_are_set(
    troubled: TroubledEngine,
) -> None:
    """Neither of those that have none: such a call would be given up at once for another."""
    story = Story(troubled)
    await story.enqueue("a")
    gate = asyncio.Event()
    declare = troubled.declare

    async def slow(queue: Queue, **given: Any) -> bool:
        await gate.wait()
        return await declare(queue, **given)

    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.links)
    troubled.declare = slow  # type: ignore[method-assign]
    limit = Limit(name="few", task="other", concurrency=1)
    story.link.ready(TaskInfo("work"), TaskInfo("other", limits=(limit,)))
    beats = troubled.asked.get("save", 0)
    await until(lambda: troubled.asked.get("save", 0) > beats + 3, "some heartbeats")
    assert troubled.requests == []
    gate.set()
    story.end(*await story.calls(1))
    assert {request.tasks for request in troubled.requests} == {frozenset(("work", "other"))}
    story.supervisor.stop()
    await task


async def test_a_queue_that_an_operator_made_meanwhile_is_left_as_it_is(
    troubled: TroubledEngine,
) -> None:
    made = Queue(name="mail", paused=True, max_attempts=9)
    looked = troubled.queues

    async def too_early(*, counts: bool = True) -> list[QueueView]:
        found = await looked(counts=counts)
        await troubled.declare(made, instead_of=None)
        return found

    troubled.queues = too_early  # type: ignore[method-assign]
    story = Story(troubled, queues={"mail": 1})
    async with story.running():
        assert story.supervisor._queue_of("mail") == made
    assert made in [view.queue for view in await looked()]


async def test_never_more_in_hand_than_slots_and_prefetch(troubled: TroubledEngine) -> None:
    """However fast jobs end, of which the pace wants many more ahead."""
    story = Story(troubled, prefetch=5)
    ids = [f"j{number}" for number in range(300)]
    await story.enqueue(*ids)
    hand = story.supervisor._hand
    most = 0
    async with story.running():
        while sum(map(len, troubled.settled)) < 300:
            most = max(most, hand.unjudged_all)
            story.end(*story.open_calls)
            await asyncio.sleep(0.001)
    assert 4 < most <= 4 + 5
    page = await troubled.find(JobFilter(states=(State.DONE,)), limit=1000)
    assert len(page.jobs) == 300


async def test_a_worker_whose_name_was_taken_serves_another_queue(troubled: TroubledEngine) -> None:
    """It slept for longer than its record was good; jobs for that name are the other's now."""
    story = Story(troubled, name="w")
    async with story.running():
        await until(lambda: story.supervisor.name == "w")
        mine = next(record for record in await troubled.load(KIND, limit=9) if record.key == "w")
        theirs = WorkerRecord(name="w", id="id-2", host="elsewhere", pid=1, started_at=0)
        taken = replace(mine, value=encode(theirs))
        while (await troubled.save([taken])) != ["saved"]:
            (mine,) = (one for one in await troubled.load(KIND, limit=9) if one.key == "w")
            taken = replace(mine, value=encode(theirs))
        await until(lambda: story.supervisor.name != "w", "another name")
        await story.enqueue("theirs", queue=worker_queue("w"))
        await until(lambda: story.supervisor._rooms.intake._worker != "w")
        await story.enqueue("mine", queue=worker_queue(story.supervisor.name))
        (call,) = await story.calls(1)
        assert [given.id for given in call.jobs] == ["mine"]
        story.end(call)
    left = await troubled.get("theirs")
    assert left is not None
    assert (left.state, left.attempt) == (State.WAITING, 0)


async def test_a_lost_job_leaves_the_hand(troubled: TroubledEngine) -> None:
    story = Story(troubled)
    await story.enqueue(*"abcdef")
    async with story.running():
        await story.calls(4)
        story.link.run(story.link.calls[0].number)
        for held in story.supervisor._hand.all():
            story.supervisor._hand.lose(held)
            story.supervisor._lose(held)
        story.link.die()
        await until(lambda: not any(held.lost for held in story.supervisor._hand.all()))


@pytest.mark.parametrize("how", ["crashed", "lost", "cancelled"])
async def test_whoever_leaves_the_hand_makes_room_for_its_kind(
    troubled: TroubledEngine, how: str
) -> None:
    """That kind was left out of what is being waited for, since it was full."""
    story = Story(troubled)
    await story.enqueue("a")
    async with story.running():
        await story.calls(1)
        (held,) = story.supervisor._hand.all()
        rooms = story.supervisor._rooms
        rooms._left_out = {"python"}
        rooms.intake._interrupted.clear()
        match how:
            case "crashed":
                story.supervisor.crashed(held, ERROR, alone=True)
            case "lost":
                story.supervisor._hand.lose(held)
                story.supervisor._lose(held)
            case _:
                held.call = 0
                story.supervisor._crew._lines.add(held)
                story.supervisor._cancel(held)
        assert rooms.intake._interrupted.is_set()


async def test_a_wish_to_cancel_that_finds_the_job_nowhere_is_told_again(
    troubled: TroubledEngine,
) -> None:
    """It is leased, and not yet in any line."""
    story = Story(troubled)
    await story.enqueue("a")
    async with story.running():
        await story.calls(1)
        (held,) = story.supervisor._hand.all()
        call, held.call, held.cancel_told = held.call, 0, True
        story.supervisor._cancel(held)
        assert not held.cancel_told
        held.call = call
