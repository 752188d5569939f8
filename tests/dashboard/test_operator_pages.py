"""Workers, schedules, breakers, gates and settings: every act on them."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core import bounds, breaker
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import JobFilter
from holdfast.core.workers import WorkerOrder, WorkerRecord
from holdfast.ops.breakers import BREAKERS
from holdfast.ops.gates import GATES
from holdfast.ops.settings import read_settings, save_setting
from holdfast.ops.ticks import Schedule
from holdfast.ops.workers import ORDERS, WORKERS
from tests.dashboard.conftest import one_store
from tests.dashboard.test_pages import PHONE
from tests.dashboard.viewer import WIDTH, Viewer


async def order_to(app: Holdfast, worker: str) -> WorkerOrder:
    found = await ORDERS.read(app.engine, worker)
    assert found is not None
    return ORDERS.require(found.record)


@one_store
async def test_a_worker_is_cordoned_and_drained(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    record = WorkerRecord(name=queue, id="9", host="host-9", pid=9, started_at=1, capacity=4)
    assert await WORKERS.create(app.engine, queue, record)
    await dashboard.go("#/workers", shows=f"a:has-text('{queue}')")
    await dashboard.page.get_by_label(f"Select {queue}").check()
    await dashboard.press("Cordon")
    row = dashboard.row(queue)
    await expect(dashboard.page.get_by_text(f"Cordoned {queue}")).to_be_visible()
    assert (await order_to(app, queue)).cordoned
    # The worker obeys, which the page shows without a reload.
    cordoned = msgspec.structs.replace(record, cordoned=True)
    assert await WORKERS.update(app.engine, queue, lambda _: cordoned)
    await expect(row.locator(".badge", has_text="cordoned")).to_be_visible()

    await row.get_by_role("link", name=queue).click()
    await dashboard.press("Uncordon")
    await expect(dashboard.page.get_by_text(f"Uncordoned {queue}")).to_be_visible()
    assert not (await order_to(app, queue)).cordoned
    await dashboard.press("Drain…")
    await dashboard.press(f"Drain {queue}")
    await expect(dashboard.page.get_by_text(f"Told to drain: {queue}")).to_be_visible()
    assert (await order_to(app, queue)).ending == "drain"
    await dashboard.press("Stop…")
    await dashboard.fill("Grace period", "5s")
    await dashboard.press(f"Stop {queue}")
    await expect(dashboard.page.get_by_text(f"Told to stop: {queue}")).to_be_visible()
    order = await order_to(app, queue)
    assert (order.ending, order.grace_ms) == ("stop", 5_000)


@one_store
async def test_a_worker_that_does_not_exist_is_none(dashboard: Viewer) -> None:
    for name in ("nobody", "constructor", "__proto__"):
        await dashboard.go(f"#/workers?name={name}", shows=f"h1:has-text('{name}')")
        await dashboard.sees("text=There is no worker with this name")


@one_store
async def test_selected_workers_are_stopped(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(3)]
    for name in names:
        record = WorkerRecord(name=name, id="9", host="host-9", pid=9, started_at=1, running=1)
        assert await WORKERS.create(app.engine, name, record)
    await dashboard.go("#/workers", shows=f"a:has-text('{names[0]}')")
    for name in names[:2]:
        await dashboard.page.get_by_label(f"Select {name}").check()
    await dashboard.press("Stop…")
    await expect(dashboard.dialog).to_contain_text("once the 2 running jobs have ended")
    await dashboard.press("Stop 2 workers")
    await expect(dashboard.page.get_by_text("Told to stop: 2 workers")).to_be_visible()
    assert [(await order_to(app, name)).ending for name in names[:2]] == ["stop", "stop"]
    assert await ORDERS.read(app.engine, names[2]) is None


@one_store
async def test_a_schedule_is_run_paused_and_edited(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    dashboard.allow("status of 4.. .*/v1/(ticks|schedules/own-)")
    job = app.job("mail.send", {"to": "all@example.org"}, queue=queue)
    await app.schedules.add(Schedule(name=queue, job=job, every_ms=bounds.DAY_MS))
    await dashboard.go("#/schedules", shows=f"a:has-text('{queue}')")
    await dashboard.press(f"Run now {queue}")
    await dashboard.sees(f".toast:has-text('{queue}')")
    [run] = [each async for each in app.jobs(JobFilter(queue=queue))]
    assert run.payload == job.payload
    await dashboard.press(f"Pause {queue}")
    await expect(dashboard.row(queue)).to_contain_text("paused")
    assert (await _schedule(app, queue)).paused
    await dashboard.press(f"Resume {queue}")
    await expect(dashboard.row(queue)).not_to_contain_text("paused")

    await dashboard.row(queue).get_by_role("link", name=queue).first.click()
    await dashboard.press("Edit")
    await dashboard.press("Cron rule")
    await dashboard.fill("Cron rule", "61 * * * *")
    await expect(dashboard.dialog.locator(".preview .field-error")).to_be_visible()
    await dashboard.fill("Cron rule", "*/5 * * * *")
    await expect(dashboard.dialog.locator(".preview tbody tr")).to_have_count(10)
    await dashboard.at(PHONE)
    assert await dashboard.axe() == []
    await dashboard.at(WIDTH)
    await dashboard.press("Save the changes")
    await expect(dashboard.page.locator(".lead")).to_contain_text("*/5 * * * *")
    assert (await _schedule(app, queue)).cron == "*/5 * * * *"
    await dashboard.press("Delete")
    await dashboard.press("Delete the schedule")
    await dashboard.sees("h1:has-text('Schedules')")
    assert await app.schedules.get(queue) is None


async def _schedule(app: Holdfast, name: str) -> Schedule:
    found = await app.schedules.get(name)
    assert found is not None
    return found


@one_store
async def test_a_breaker_is_closed_and_opened(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    key = f"{breaker.TASK_PREFIX}{queue}"
    opened = breaker.opened_by(BreakerRecord(last="503"), "ana")
    assert await BREAKERS.create(app.engine, key, opened)
    await dashboard.go("#/breakers", shows=f"a:has-text('{queue}')")
    row = dashboard.row(queue)
    await dashboard.press(f"Close {queue}")
    await expect(row.locator(".badge", has_text="closed")).to_be_visible()
    assert (await _breaker(app, key)).state is BreakerState.CLOSED
    await dashboard.press(f"Open… {queue}")
    await dashboard.press("Open the breaker")
    await expect(row.locator(".badge", has_text="open")).to_be_visible()
    assert (await _breaker(app, key)).state is BreakerState.OPEN


async def _breaker(app: Holdfast, key: str) -> BreakerRecord:
    found = await BREAKERS.read(app.engine, key)
    assert found is not None
    return BREAKERS.require(found.record)


@one_store
async def test_a_gate_is_added_paused_and_removed(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    dashboard.allow("status of 4.. .*/v1/gates/")
    await dashboard.go("#/gates", shows="text=Add a gate")
    await dashboard.press("Add a gate")
    await dashboard.fill("Name", queue)
    await dashboard.fill("Into the queue", queue)
    await dashboard.fill("Queue at the broker", "orders.new")
    await dashboard.fill("Task", "{nonsense}")
    await dashboard.press("Add the gate")
    error = dashboard.dialog.locator(".field", has_text="Task").locator(".field-error")
    await expect(error).to_contain_text("nonsense")
    await dashboard.fill("Task", "mail.send")
    await dashboard.press("Add the gate")
    row = dashboard.row(queue)
    await expect(row).to_contain_text("orders.new")
    assert (await GATES.values(app.engine))[queue].task == "mail.send"
    await dashboard.press(f"Pause {queue}")
    await expect(row).to_contain_text("paused")
    assert (await GATES.values(app.engine))[queue].paused
    await dashboard.press(f"Resume {queue}")
    await expect(row).not_to_contain_text("paused")
    await row.get_by_role("link", name=queue).first.click()
    await dashboard.press("Remove…")
    await dashboard.press("Remove the gate")
    await expect(row).to_have_count(0)
    assert queue not in await GATES.values(app.engine)


@pytest.fixture
async def setting(app: Holdfast) -> AsyncIterator[str]:
    """The name of a setting that is not set before and after the test."""
    name = "alert-cool-down"
    yield name
    await save_setting(app.engine, name, None)


@one_store
async def test_a_setting_is_stored_and_unset(
    dashboard: Viewer, app: Holdfast, setting: str
) -> None:
    dashboard.allow("status of 4.. .*/v1/config/")
    await dashboard.go("#/settings", shows=f"code:has-text('{setting}')")
    await dashboard.press(f"Edit {setting}")
    await dashboard.fill("Value", "soon")
    await dashboard.press("Store for everyone")
    await expect(dashboard.dialog.locator(".field-error")).to_be_visible()
    await dashboard.fill("Value", "7m")
    await dashboard.press("Store for everyone")
    await expect(dashboard.row(setting).locator(".badge")).to_have_text("stored")
    assert (await read_settings(app.engine)).shown(setting).text == "7m"
    await dashboard.press(f"Unset {setting}")
    await expect(dashboard.row(setting).locator(".badge")).to_have_count(0)
    assert (await read_settings(app.engine)).shown(setting).text != "7m"
