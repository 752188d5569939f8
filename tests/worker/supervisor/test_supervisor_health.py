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
from tests.worker.supervisor_driver import TASKS, SupervisorDriver

pytestmark = pytest.mark.usefixtures("hurried")


async def test_a_degraded_worker_leases_half_its_room(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled)
    await driver.enqueue(
        *(f"j{number}" for number in range(30)), overrides=Overrides(max_attempts=100)
    )
    async with driver.running():
        (first, *others) = await driver.calls(4)
        driver.end(first, failed=True)
        driver.end(others[0], failed=True)
        driver.end(others[1], failed=True)
        # Three failures in a row: of three free slots, two may be taken.
        await until(lambda: driver.supervisor._capacity._health is Health.DEGRADED)
        driver.supervisor._intake.wake()
        assert driver.supervisor._capacity.room("python") <= 2
        driver.end(*driver.open_calls)
        await until(lambda: driver.supervisor._capacity._health is Health.HEALTHY)
        await driver.calls(4)


async def test_an_unhealthy_worker_leases_nothing_and_recovers(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = SupervisorDriver(troubled)
    async with driver.running():
        outcomes = driver.supervisor._outcomes
        for task in ("work", "other") * 10:
            outcomes.failed_at(task)
        await until(lambda: driver.supervisor._capacity._health is Health.UNHEALTHY)
        await driver.enqueue("a")

        async def red() -> bool:
            return (await driver.view()).health is Health.UNHEALTHY

        await until(red, "the registry to say so")
        assert driver.child.calls == []
        outcomes._failed_at -= 60.0
        driver.end(*await driver.calls(1))
        await until(lambda: driver.supervisor._capacity._health is Health.HEALTHY)


async def test_a_worker_that_leases_no_due_work_is_unhealthy_until_it_does(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intake hangs, as with an engine that never answers; it must be able to recover."""
    monkeypatch.setattr(health, "STALL_MS", 20)
    monkeypatch.setattr(supervisor, "STALL_MS", 20)
    driver = SupervisorDriver(troubled)
    gate = asyncio.Event()
    lease = troubled.lease

    async def wedged(request: Any) -> Any:
        await gate.wait()
        return await lease(request)

    troubled.lease = wedged  # type: ignore[method-assign]
    await driver.enqueue("a")
    async with driver.running():

        async def red() -> str:
            view = await driver.view()
            return view.why if view and view.health is Health.UNHEALTHY else ""

        why = await until(red, "it to be red")
        assert why == "slots are free and work waits in default, but nothing is leased"
        beats = troubled.asked["save"]
        await until(lambda: troubled.asked["save"] > beats + 3, "some heartbeats")
        assert await red() == why
        gate.set()
        driver.end(*await driver.calls(1))

        async def well() -> bool:
            return (await driver.view()).health is Health.HEALTHY

        await until(well, "it to be well again")


async def test_an_application_that_never_could_be_imported(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled)
    task = asyncio.create_task(driver.supervisor.run())
    await until(lambda: driver.children)
    driver.child.answer(ChildBroken(Failure(type="ImportError", message="no module")))
    with pytest.raises(ConfigError, match="a:app cannot be imported: ImportError: no module"):
        await task
    assert await Workers(troubled).all() == []


async def test_an_application_that_is_being_changed(troubled: TroubledEngine) -> None:
    driver = SupervisorDriver(troubled)
    async with driver.running():
        await until(lambda: driver.supervisor._pool.tasks)
        await driver.another_child(1)
        trace = '  File "/home/ada/shop.py", line 7, in <module>'
        failure = Failure(type="NameError", message="half a line", trace=trace)
        driver.child.answer(ChildBroken(failure))

        async def red() -> str:
            view = await driver.view()
            return view.why if view.health is Health.UNHEALTHY else ""

        why = "its application cannot be imported: NameError: half a line at shop.py:7 in <module>"
        assert await until(red) == why
        await driver.another_child(0)
        driver.child.ready(*TASKS)
        await driver.enqueue("a")
        driver.end(*await driver.calls(1))


async def test_an_application_that_cannot_start_holds_no_jobs(
    troubled: TroubledEngine,
) -> None:
    """Otherwise they would be renewed while it is broken, and run nowhere."""
    driver = SupervisorDriver(troubled)
    async with driver.running():
        await until(lambda: driver.supervisor._pool.tasks)
        await driver.another_child(1)
        await driver.enqueue(*"ab")
        await until(lambda: len(driver.supervisor._held) == 2, "them to be leased")
        driver.child.answer(ChildBroken(Failure(type="SyntaxError", message="half a line")))
        await until(lambda: len(driver.supervisor._held) == 0, "them to be released")
        asked = len(troubled.requests)
        await driver.enqueue("c")
        await until(lambda: driver.supervisor._capacity.wanted()[0] == 0)
        for id_ in "abc":
            job = await troubled.get(id_)
            assert job is not None
            assert (job.state, job.attempt) == (State.WAITING, 0)
        assert len(troubled.requests) <= asked + 1
        await driver.another_child(0)
        driver.child.ready(*TASKS)
        driver.end(*await driver.calls(3))
