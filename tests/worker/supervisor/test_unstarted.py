"""Leased jobs that do not start, and tasks of the newest child; children are doubles."""

import pytest

from holdfast.process import boot_s
from holdfast.worker.supervisor import dispatch
from holdfast.worker.wire import AskedCancel, CallsEnded, GivenBack, Recall, Returned, TaskInfo
from tests.worker.pool_driver import PoolDriver, ids_of

pytestmark = pytest.mark.usefixtures("pool_doubles")


async def test_jobs_that_do_not_start_come_back_and_are_removed(
    driver: PoolDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leased, given to a child, and behind calls that never end."""
    (child,) = await driver.start()
    (pooled,) = driver.pool._children.values()
    pooled._rate = 1_000.0
    helds = driver.give("abc")
    child.run(*(call.number for call in child.calls[:2]))
    driver.pool.tick()
    assert Recall() not in child.sent
    monkeypatch.setattr(dispatch, "UNSTARTED_S", -1.0)
    driver.pool.tick()
    assert child.sent[-1] == Recall()
    pooled._rate = 0.0
    child.answer(GivenBack((helds[2].call,)))
    helds[2].came_at -= 60
    assert driver.pool.queue.remove_older(boot_s() - dispatch.UNSTARTED_S) == [helds[2]]
    assert driver.pool.queue.remove_older(boot_s() - dispatch.UNSTARTED_S) == []


async def test_a_new_job_is_not_removed(driver: PoolDriver) -> None:
    await driver.start()
    driver.give("abc")
    assert driver.pool.queue.remove_older(boot_s() - dispatch.UNSTARTED_S) == []


async def test_the_newest_child_defines_the_tasks() -> None:
    driver = PoolDriver(commands=True)
    python = next(child for child in await driver.start() if child.setup.target)
    commands = next(child for child in driver.children if not child.setup.target)
    commands.ready(TaskInfo("command"))
    python.ready(TaskInfo("work"), TaskInfo("new"))
    assert set(driver.pool.tasks) == {"command", "work", "new"}
    python.ready(TaskInfo("new"))
    assert set(driver.pool.tasks) == {"command", "new"}
    await driver.pool.stop("the test is over")


async def test_a_job_cancelled_before_it_started_does_not_start_elsewhere(
    driver: PoolDriver,
) -> None:
    (child,) = await driver.start()
    pooled = driver.pool._children[child]
    pooled._rate = 1_000.0
    helds = driver.give("abc")
    child.run(*(call.number for call in child.calls[:2]))
    helds[2].cancel_known = True
    child.answer(GivenBack((helds[2].call,)))
    assert isinstance(driver.listener.endings["c"], AskedCancel)


async def test_how_long_no_child_could_run_python(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    driver.pool.tick()
    assert driver.pool.unready_s < 60
    child.die(1)
    driver.pool._ready_at -= 60
    driver.pool.tick()
    assert driver.pool.unready_s >= 60
    (await driver.newest(1)).ready(TaskInfo("work"))
    assert driver.pool.unready_s < 60


async def test_a_job_with_a_lapsed_lease_waits_for_its_renewal(
    driver: PoolDriver,
) -> None:
    """The worker was frozen: another worker may run it by now."""
    (child,) = await driver.start()
    (running, other, frozen) = driver.give("abc")
    frozen.begin_before -= 120
    child.answer(*(CallsEnded([call.number], (Returned(),)) for call in child.calls))
    assert len(child.calls) == 2
    frozen.begin_before += 120
    driver.pool.tick()
    assert [given.id for given in child.calls[-1].jobs] == ["c"]
    assert {running.job.id, other.job.id} == set(driver.listener.endings)


async def test_a_removed_job_is_not_dispatched(driver: PoolDriver) -> None:
    (child,) = await driver.start()
    helds = driver.give("abc")
    assert (driver.pool.queue.remove(helds[2]), driver.pool.queue.remove(helds[0])) == (True, False)
    child.answer(CallsEnded([child.calls[0].number], (Returned(),)))
    assert ids_of(child) == ["a", "b"]
