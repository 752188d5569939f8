"""The end of a worker, by order or in an outage: verdicts are kept as long as allowed."""

import asyncio

import pytest

from holdfast.core.model import State
from holdfast.errors import EngineUnavailable, StorageFull
from holdfast.ops.workers import Workers
from holdfast.worker.supervisor import supervisor
from tests.worker.doubles import TroubledEngine
from tests.worker.live_workers import until
from tests.worker.supervisor_driver import TASKS, SupervisorDriver

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.mark.parametrize("error", [EngineUnavailable, StorageFull])
async def test_verdicts_are_kept_through_an_outage_and_its_end(
    troubled: TroubledEngine, error: type[Exception]
) -> None:
    """The store is out of reach, the worker is stopped, and then the store is back."""
    driver = SupervisorDriver(troubled, name="w")
    await driver.enqueue(*"abc")
    task = asyncio.create_task(driver.supervisor.run())
    await until(lambda: driver.children)
    driver.child.ready(*TASKS)
    calls = await driver.calls(3)
    for verb in ("settle", "renew", "lease", "save"):
        troubled.for_ever[verb] = error("down")
    driver.end(calls[0], calls[1])
    await until(lambda: troubled.asked.get("settle", 0) > 2, "some tries")
    assert len(driver.supervisor._held) == 3
    driver.supervisor.stop()
    await until(lambda: driver.child.killed)
    tries = troubled.asked["settle"]
    await until(lambda: troubled.asked["settle"] > tries + 1, "more tries")
    assert not task.done()
    troubled.for_ever.clear()
    await task
    states = [job.state for id_ in "abc" if (job := await troubled.get(id_))]
    assert states == [State.DONE, State.DONE, State.WAITING]
    released = await troubled.get("c")
    assert released is not None
    assert released.attempt == 0


async def test_an_order_is_obeyed_and_logged_once(
    troubled: TroubledEngine, caplog: pytest.LogCaptureFixture
) -> None:
    driver = SupervisorDriver(troubled, name="w")
    await driver.enqueue("a")
    with caplog.at_level("INFO", "holdfast.worker"):
        async with driver.running():
            calls = await driver.calls(1)
            await Workers(troubled).drain("w", by="ada")
            await until(driver.supervisor._draining.is_set)
            for _ in range(3):
                await driver.supervisor._read_order()
            driver.end(*calls)
    logged = [
        record for record in caplog.records if "drain, as requested by ada" in record.getMessage()
    ]
    assert len(logged) == 1


@pytest.mark.parametrize("for_ever", [True, False])
async def test_verdicts_wait_for_the_store_as_long_as_a_drain_may_take(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch, for_ever: bool
) -> None:
    monkeypatch.setattr(supervisor, "_LAST_SETTLE_S", 0.0)
    driver = SupervisorDriver(troubled, name="w", grace_ms=60_000)
    await driver.enqueue("a")
    task = asyncio.create_task(driver.supervisor.run())
    await until(lambda: driver.children)
    driver.child.ready(*TASKS)
    calls = await driver.calls(1)
    troubled.for_ever["settle"] = EngineUnavailable("down")
    driver.supervisor.drain(for_ever=for_ever)
    driver.end(*calls)
    await until(lambda: driver.child.killed)
    tries = troubled.asked["settle"]
    await until(lambda: task.done() or troubled.asked["settle"] > tries + 2, "more tries")
    assert not task.done()
    del troubled.for_ever["settle"]
    await task
    job = await troubled.get("a")
    assert job is not None
    assert job.state is State.DONE


async def test_a_stop_gives_up_on_a_store_out_of_reach(
    troubled: TroubledEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_LAST_SETTLE_S", 0.0)
    driver = SupervisorDriver(troubled, name="w")
    await driver.enqueue("a")
    async with driver.running():
        calls = await driver.calls(1)
        troubled.for_ever["settle"] = EngineUnavailable("down")
        driver.end(*calls)
    assert "could not store how 1 job ended" in caplog.text
