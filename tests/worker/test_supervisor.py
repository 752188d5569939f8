"""One worker with doubles for children, on an engine in memory: health, outages, its end."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.flow import Limit
from holdfast.core.model import Failure, JobFilter, Overrides, Queue, QueueView, State
from holdfast.core.workers import KIND, Health, WorkerRecord, worker_queue
from holdfast.errors import ConfigError, EngineUnavailable, StorageFull
from holdfast.worker import births, processes, renewer, settler, supervisor, watch
from holdfast.worker.registry import Workers, encode
from holdfast.worker.wire import Broken, TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.running import until
from tests.worker.story import ERROR, TASKS, Story


@pytest.fixture
async def engine() -> TroubledEngine:
    engine = TroubledEngine()
    await engine.open()
    return engine


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TICK_S", 0.005)
    monkeypatch.setattr(supervisor, "_ORDERS_S", 0.01)
    monkeypatch.setattr(settler, "_PAUSE_S_MAX", 0.01)
    monkeypatch.setattr(renewer, "_PAUSE_S", 0.01)
    monkeypatch.setattr(births, "_PAUSE_S_FIRST", 0.001)
    monkeypatch.setattr(processes, "sweep_strangers", lambda _known: 0)
    monkeypatch.setattr(processes, "kill_marked", lambda _marker: 0)


async def test_jobs_run_and_their_verdicts_are_settled(engine: TroubledEngine) -> None:
    story = Story(engine, name="w")
    await story.enqueue(*"abcdef")
    async with story.running():
        story.end(*await story.calls(4))
        story.end(*await story.calls(2))
        await until(lambda: len(story.supervisor._hand) == 0)
        view = await story.view()
        assert (view.name, view.health, view.record.capacity) == ("w", Health.HEALTHY, 4)
    page = await engine.find(JobFilter(states=(State.DONE,)), limit=10)
    assert len(page.jobs) == 6
    assert await Workers(engine).all() == []


async def test_nothing_is_leased_until_the_limits_of_its_tasks_are_set(
    engine: TroubledEngine,
) -> None:
    """Neither of those that have none: such a call would be given up at once for another."""
    story = Story(engine)
    await story.enqueue("a")
    gate = asyncio.Event()
    declare = engine.declare

    async def slow(queue: Queue, **given: Any) -> bool:
        await gate.wait()
        return await declare(queue, **given)

    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.links)
    engine.declare = slow  # type: ignore[method-assign]
    limit = Limit(name="few", task="other", concurrency=1)
    story.link.ready(TaskInfo("work"), TaskInfo("other", limits=(limit,)))
    beats = engine.asked.get("save", 0)
    await until(lambda: engine.asked.get("save", 0) > beats + 3, "some heartbeats")
    assert engine.requests == []
    gate.set()
    story.end(*await story.calls(1))
    assert {request.tasks for request in engine.requests} == {frozenset(("work", "other"))}
    story.supervisor.stop()
    await task


async def test_a_queue_that_an_operator_made_meanwhile_is_left_as_it_is(
    engine: TroubledEngine,
) -> None:
    made = Queue(name="mail", paused=True, max_attempts=9)
    looked = engine.queues

    async def too_early(*, counts: bool = True) -> list[QueueView]:
        found = await looked(counts=counts)
        await engine.declare(made, instead_of=None)
        return found

    engine.queues = too_early  # type: ignore[method-assign]
    story = Story(engine, queues={"mail": 1})
    async with story.running():
        assert story.supervisor._queue_of("mail") == made
    assert made in [view.queue for view in await looked()]


async def test_never_more_in_hand_than_slots_and_prefetch(engine: TroubledEngine) -> None:
    """However fast jobs end, of which the pace wants many more ahead."""
    story = Story(engine, prefetch=5)
    ids = [f"j{number}" for number in range(300)]
    await story.enqueue(*ids)
    hand = story.supervisor._hand
    most = 0
    async with story.running():
        while sum(map(len, engine.settled)) < 300:
            most = max(most, hand.unjudged_all)
            story.end(*story.open_calls)
            await asyncio.sleep(0.001)
    assert 4 < most <= 4 + 5
    page = await engine.find(JobFilter(states=(State.DONE,)), limit=1000)
    assert len(page.jobs) == 300


async def test_a_degraded_worker_leases_half_its_room(engine: TroubledEngine) -> None:
    story = Story(engine)
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
    engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(engine)
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
    engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intake is wedged, as by an engine that never answers; being red must not keep it so."""
    monkeypatch.setattr(watch, "STALL_MS", 20)
    monkeypatch.setattr(supervisor, "STALL_MS", 20)
    story = Story(engine)
    gate = asyncio.Event()
    lease = engine.lease

    async def wedged(request: Any) -> Any:
        await gate.wait()
        return await lease(request)

    engine.lease = wedged  # type: ignore[method-assign]
    await story.enqueue("a")
    async with story.running():

        async def red() -> str:
            view = await story.view()
            return view.why if view and view.health is Health.UNHEALTHY else ""

        why = await until(red, "it to be red")
        assert why == "room is free, work waits in default and nothing is leased"
        beats = engine.asked["save"]
        await until(lambda: engine.asked["save"] > beats + 3, "some heartbeats")
        assert await red() == why
        gate.set()
        story.end(*await story.calls(1))

        async def well() -> bool:
            return (await story.view()).health is Health.HEALTHY

        await until(well, "it to be well again")


@pytest.mark.parametrize("error", [EngineUnavailable, StorageFull])
async def test_verdicts_are_kept_through_an_outage_and_its_end(
    engine: TroubledEngine, error: type[Exception]
) -> None:
    """Nothing can be written, the worker is told to stop, and then something can be."""
    story = Story(engine, name="w")
    await story.enqueue(*"abc")
    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.links)
    story.link.ready(*TASKS)
    calls = await story.calls(3)
    for verb in ("settle", "renew", "lease", "save"):
        engine.for_ever[verb] = error("down")
    story.end(calls[0], calls[1])
    await until(lambda: engine.asked.get("settle", 0) > 2, "some tries")
    assert len(story.supervisor._hand) == 3
    story.supervisor.stop()
    await until(lambda: story.link.killed)
    tries = engine.asked["settle"]
    await until(lambda: engine.asked["settle"] > tries + 1, "more tries")
    assert not task.done()
    engine.for_ever.clear()
    await task
    states = [job.state for id_ in "abc" if (job := await engine.get(id_))]
    assert states == [State.DONE, State.DONE, State.WAITING]
    released = await engine.get("c")
    assert released is not None
    assert released.attempt == 0


async def test_a_worker_whose_name_was_taken_serves_another_queue(engine: TroubledEngine) -> None:
    """It slept for longer than its record was good; jobs for that name are the other's now."""
    story = Story(engine, name="w")
    async with story.running():
        await until(lambda: story.supervisor.name == "w")
        mine = next(record for record in await engine.load(KIND, limit=9) if record.key == "w")
        theirs = WorkerRecord(name="w", id="id-2", host="elsewhere", pid=1, started_at=0)
        taken = replace(mine, value=encode(theirs))
        while (await engine.save([taken])) != ["saved"]:
            (mine,) = (one for one in await engine.load(KIND, limit=9) if one.key == "w")
            taken = replace(mine, value=encode(theirs))
        await until(lambda: story.supervisor.name != "w", "another name")
        await story.enqueue("theirs", queue=worker_queue("w"))
        await until(lambda: story.supervisor._rooms.intake._worker != "w")
        await story.enqueue("mine", queue=worker_queue(story.supervisor.name))
        (call,) = await story.calls(1)
        assert [given.id for given in call.jobs] == ["mine"]
        story.end(call)
    left = await engine.get("theirs")
    assert left is not None
    assert (left.state, left.attempt) == (State.WAITING, 0)


async def test_an_application_that_never_could_be_imported(engine: TroubledEngine) -> None:
    story = Story(engine)
    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.links)
    story.link.speak(Broken(Failure(type="ImportError", message="no module")))
    with pytest.raises(ConfigError, match="a:app cannot be imported: ImportError: no module"):
        await task
    assert await Workers(engine).all() == []


async def test_an_application_that_is_being_changed(engine: TroubledEngine) -> None:
    story = Story(engine)
    async with story.running():
        await until(lambda: story.supervisor._crew.tasks)
        first = story.link
        first.die(1)
        await until(lambda: story.link is not first, "another child")
        story.link.speak(Broken(Failure(type="SyntaxError", message="half a line")))

        async def red() -> str:
            view = await story.view()
            return view.why if view.health is Health.UNHEALTHY else ""

        assert "half a line" in await until(red)
        broken = story.link
        broken.die(0)
        await until(lambda: story.link is not broken, "another try")
        story.link.ready(*TASKS)
        await story.enqueue("a")
        story.end(*await story.calls(1))


async def test_an_application_that_cannot_start_keeps_no_jobs_from_others(
    engine: TroubledEngine,
) -> None:
    """They would be renewed for as long as it is broken, and run nowhere."""
    story = Story(engine)
    async with story.running():
        await until(lambda: story.supervisor._crew.tasks)
        first = story.link
        first.die(1)
        await until(lambda: story.link is not first, "another child")
        await story.enqueue(*"ab")
        await until(lambda: len(story.supervisor._hand) == 2, "them to be leased")
        broken = story.link
        broken.speak(Broken(Failure(type="SyntaxError", message="half a line")))
        await until(lambda: len(story.supervisor._hand) == 0, "them to be released")
        asked = len(engine.requests)
        await story.enqueue("c")
        await until(lambda: story.supervisor._rooms.wanted()[0] == 0)
        for id_ in "abc":
            job = await engine.get(id_)
            assert job is not None
            assert (job.state, job.attempt) == (State.WAITING, 0)
        assert len(engine.requests) <= asked + 1
        broken.die(0)
        await until(lambda: story.link is not broken, "another try")
        story.link.ready(*TASKS)
        story.end(*await story.calls(3))


async def test_a_lost_job_leaves_the_hand(engine: TroubledEngine) -> None:
    story = Story(engine)
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
    engine: TroubledEngine, how: str
) -> None:
    """That kind was left out of what is being waited for, since it was full."""
    story = Story(engine)
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
    engine: TroubledEngine,
) -> None:
    """It is leased, and not yet in any line."""
    story = Story(engine)
    await story.enqueue("a")
    async with story.running():
        await story.calls(1)
        (held,) = story.supervisor._hand.all()
        call, held.call, held.cancel_told = held.call, 0, True
        story.supervisor._cancel(held)
        assert not held.cancel_told
        held.call = call


async def test_an_order_is_obeyed_and_told_once(
    engine: TroubledEngine, caplog: pytest.LogCaptureFixture
) -> None:
    story = Story(engine, name="w")
    await story.enqueue("a")
    with caplog.at_level("INFO", "holdfast.worker"):
        async with story.running():
            calls = await story.calls(1)
            await Workers(engine).drain("w", by="ada")
            await until(story.supervisor._draining.is_set)
            for _ in range(3):
                await story.supervisor._read_order()
            story.end(*calls)
    told = [record for record in caplog.records if "asked to drain by ada" in record.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("for_ever", [True, False])
async def test_verdicts_wait_for_the_store_as_long_as_a_drain_may_take(
    engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch, for_ever: bool
) -> None:
    monkeypatch.setattr(supervisor, "_LAST_SETTLE_S", 0.0)
    story = Story(engine, name="w", grace_ms=60_000)
    await story.enqueue("a")
    task = asyncio.create_task(story.supervisor.run())
    await until(lambda: story.links)
    story.link.ready(*TASKS)
    calls = await story.calls(1)
    engine.for_ever["settle"] = EngineUnavailable("down")
    story.supervisor.drain(for_ever=for_ever)
    story.end(*calls)
    await until(lambda: story.link.killed)
    tries = engine.asked["settle"]
    await until(lambda: task.done() or engine.asked["settle"] > tries + 2, "more tries")
    assert not task.done()
    del engine.for_ever["settle"]
    await task
    job = await engine.get("a")
    assert job is not None
    assert job.state is State.DONE


async def test_a_stop_gives_up_on_a_store_that_stays_away(
    engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_LAST_SETTLE_S", 0.0)
    story = Story(engine, name="w")
    await story.enqueue("a")
    async with story.running():
        calls = await story.calls(1)
        engine.for_ever["settle"] = EngineUnavailable("down")
        story.end(*calls)
    assert "1 verdict could not be settled and got lost" in caplog.text
