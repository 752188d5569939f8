"""One worker with doubles for children, on a memory engine: leases and releases."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Overrides, Queue, QueueView, State
from holdfast.core.workers import KIND, Health, TaskRecord, WorkerRecord, worker_queue
from holdfast.errors import Forbidden
from holdfast.ops.settings import declared_tasks
from holdfast.ops.workers import Workers
from holdfast.worker.supervisor import supervisor
from holdfast.worker.wire import TaskInfo
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import until
from tests.worker.supervisor_driver import ERROR, SupervisorDriver

pytestmark = pytest.mark.usefixtures("hurried")


async def test_jobs_run_and_their_verdicts_are_settled(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled, name="w")
    await driver.enqueue(*"abcdef")
    async with driver.running():
        driver.end(*await driver.calls(4))
        driver.end(*await driver.calls(2))
        await until(lambda: len(driver.supervisor._held) == 0)
        view = await driver.view()
        assert (view.name, view.health, view.record.capacity) == ("w", Health.HEALTHY, 4)
    page = await troubled.find(JobFilter(states=(State.DONE,)), limit=10)
    assert len(page.jobs) == 6
    assert await Workers(troubled).all() == []


async def test_nothing_is_leased_until_the_limits_of_its_tasks_are_set(
    troubled: TroubledEngine,
) -> None:
    """Not even jobs of other tasks: such a request would be given up at once for another."""
    driver = SupervisorDriver(troubled)
    await driver.enqueue("a")
    gate = asyncio.Event()
    declare = troubled.declare

    async def slow(queue: Queue, **given: Any) -> bool:
        await gate.wait()
        return await declare(queue, **given)

    task = asyncio.create_task(driver.supervisor.run())
    await until(lambda: driver.children)
    troubled.declare = slow  # type: ignore[method-assign]
    limit = Limit(name="few", task="other", concurrency=1)
    driver.child.ready(TaskInfo("work"), TaskInfo("other", limits=(limit,)))
    beats = troubled.asked.get("save", 0)
    await until(lambda: troubled.asked.get("save", 0) > beats + 3, "some heartbeats")
    assert troubled.requests == []
    gate.set()
    driver.end(*await driver.calls(1))
    assert {request.tasks for request in troubled.requests} == {frozenset(("work", "other"))}
    driver.supervisor.stop()
    await task


async def test_a_queue_that_an_operator_made_meanwhile_is_left_as_it_is(
    troubled: TroubledEngine,
) -> None:
    made = Queue(name="mail", paused=True, max_attempts=9)
    looked = troubled.queues

    async def too_early(
        *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        found = await looked(names=names, counts=counts)
        await troubled.declare(made, instead_of=None)
        return found

    troubled.queues = too_early  # type: ignore[method-assign]
    driver = SupervisorDriver(troubled, queues={"mail": 1})
    async with driver.running():
        assert driver.supervisor._queue_of("mail") == made
    assert made in [view.queue for view in await looked()]


async def test_never_more_leased_than_slots_and_prefetch(troubled: TroubledEngine) -> None:
    """Even if jobs end so fast that more would be leased ahead."""
    driver = SupervisorDriver(troubled, prefetch=5)
    ids = [f"j{number}" for number in range(300)]
    await driver.enqueue(*ids)
    leases = driver.supervisor._held
    most = 0
    async with driver.running():
        while sum(map(len, troubled.settled)) < 300:
            most = max(most, leases.active_count)
            driver.end(*driver.open_calls)
            await asyncio.sleep(0.001)
    assert 4 < most <= 4 + 5
    page = await troubled.find(JobFilter(states=(State.DONE,)), limit=1000)
    assert len(page.jobs) == 300


async def test_a_worker_whose_name_was_taken_serves_another_queue(troubled: TroubledEngine) -> None:
    """It was frozen until its record was out of date; jobs for that name are the other's now."""
    driver = SupervisorDriver(troubled, name="w")
    async with driver.running():
        await until(lambda: driver.supervisor.name == "w")
        mine = next(record for record in await troubled.load(KIND, limit=9) if record.key == "w")
        theirs = WorkerRecord(name="w", id="id-2", host="elsewhere", pid=1, started_at=0)
        taken = replace(mine, value=msgspec.json.encode(theirs))
        while (await troubled.save([taken])) != ["saved"]:
            (mine,) = (one for one in await troubled.load(KIND, limit=9) if one.key == "w")
            taken = replace(mine, value=msgspec.json.encode(theirs))
        await until(lambda: driver.supervisor.name != "w", "another name")
        await driver.enqueue("theirs", queue=worker_queue("w"))
        await until(lambda: driver.supervisor._intake._worker != "w")
        await driver.enqueue("mine", queue=worker_queue(driver.supervisor.name))
        (call,) = await driver.calls(1)
        assert [given.id for given in call.jobs] == ["mine"]
        driver.end(call)
    left = await troubled.get("theirs")
    assert left is not None
    assert (left.state, left.attempt) == (State.WAITING, 0)


async def test_a_lost_job_is_dropped(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled)
    await driver.enqueue(*"abcdef")
    async with driver.running():
        await driver.calls(4)
        driver.child.run(driver.child.calls[0].number)
        for held in driver.supervisor._held.all():
            driver.supervisor._held.lose(held)
            driver.supervisor._lose(held)
        driver.child.die()
        await until(lambda: not any(held.lost for held in driver.supervisor._held.all()))


@pytest.mark.parametrize("how", ["crashed", "lost", "cancelled"])
async def test_a_job_that_leaves_makes_room_for_its_kind(
    troubled: TroubledEngine, how: str
) -> None:
    """The present request leaves that kind out, because it was full."""
    driver = SupervisorDriver(troubled)
    await driver.enqueue("a")
    async with driver.running():
        await driver.calls(1)
        (held,) = driver.supervisor._held.all()
        intake = driver.supervisor._intake
        driver.supervisor._capacity.left_out = {"python"}
        intake._interrupted.clear()
        match how:
            case "crashed":
                driver.supervisor.crashed([held], ERROR)
            case "lost":
                driver.supervisor._held.lose(held)
                driver.supervisor._lose(held)
            case _:
                held.call = 0
                driver.supervisor._pool.queue.add([held])
                driver.supervisor._cancel(held)
        assert intake._interrupted.is_set()


async def test_a_cancel_request_for_a_job_not_queued_yet_is_repeated(
    troubled: TroubledEngine,
) -> None:
    """It is leased, and not yet in the dispatch queue."""
    driver = SupervisorDriver(troubled)
    await driver.enqueue("a")
    async with driver.running():
        await driver.calls(1)
        (held,) = driver.supervisor._held.all()
        call, held.call, held.cancel_known = held.call, 0, True
        driver.supervisor._cancel(held)
        assert not held.cancel_known
        held.call = call


async def test_the_options_of_its_tasks_are_published(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled, name="w")
    declared = TaskRecord(queue="slow", overrides=Overrides(max_attempts=1))

    async with driver.running():
        driver.child.ready(TaskInfo("slow", declared=declared), TaskInfo("plain"))
        await until(lambda: _has(troubled, {"slow": declared}), "its options")
        # An earlier version declared others for it, and none for the other task.
        driver.child.ready(TaskInfo("slow"), TaskInfo("plain", declared=declared))
        await until(lambda: _has(troubled, {"plain": declared}), "its new options")


async def test_a_worker_that_may_not_publish_options_runs(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise Forbidden("not with this token")

    monkeypatch.setattr(supervisor, "save_declared", refuse)
    driver = SupervisorDriver(troubled, name="w")
    await driver.enqueue("a")
    async with driver.running():
        driver.child.ready(TaskInfo("work", declared=TaskRecord(priority=1)))
        driver.end(*await driver.calls(1))
        await until(lambda: len(driver.supervisor._held) == 0)


async def test_the_schedules_of_its_application_are_stored(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled, name="w")
    app = Holdfast("memory:", name="shop")

    @app.schedule(every="1h", name="a")
    @app.schedule(every="2h", name="b")
    @app.task(name="work")
    def work() -> None: ...

    async def names() -> set[str]:
        return {record.key for record in await troubled.load("schedule", limit=10)}

    async def has(*wanted: str) -> bool:
        return await names() == {*wanted}

    both = msgspec.msgpack.encode(app.declared_schedules)
    app._task_schedules.pop("b")
    one = msgspec.msgpack.encode(app.declared_schedules)
    async with driver.running():
        driver.child.ready(schedules=both)
        await until(lambda: has("a", "b"), "its schedules")
        # Its children import newer code.
        driver.child.ready(schedules=one)
        await until(lambda: has("a"), "the schedules of the newer code")


async def test_a_worker_that_may_not_store_schedules_runs(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise Forbidden("not with this token")

    monkeypatch.setattr(supervisor, "save_schedules", refuse)
    driver = SupervisorDriver(troubled, name="w")
    app = Holdfast("memory:", name="shop")

    @app.schedule(every="1h")
    @app.task(name="work")
    def work() -> None: ...

    await driver.enqueue("a")
    async with driver.running():
        driver.child.ready(schedules=msgspec.msgpack.encode(app.declared_schedules))
        driver.end(*await driver.calls(1))
        await until(lambda: len(driver.supervisor._held) == 0)
        await until(lambda: "schedules of shop are not stored: not with this" in caplog.text)


async def _has(engine: TroubledEngine, wanted: dict[str, TaskRecord]) -> bool:
    return await declared_tasks(engine) == wanted
