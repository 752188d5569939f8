"""The page of jobs: filters, and acts on a selection or on everything that matches."""

from typing import Any

import msgspec
import pytest
from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, Reason
from holdfast.core.verdict import Bury, Settlement
from tests.dashboard import sample_data
from tests.dashboard.conftest import one_store
from tests.dashboard.test_pages import PHONE
from tests.dashboard.viewer import WIDTH, Viewer

ROWS = "main tbody tr[data-key]"
JOBS = 3


async def jobs_of(app: Holdfast, queue: str) -> list[Job]:
    return [job async for job in app.jobs(JobFilter(queue=queue))]


async def enqueue(app: Holdfast, queue: str, count: int = JOBS) -> list[str]:
    jobs = [app.job("mail.send", {"number": number}, queue=queue) for number in range(count)]
    return [receipt.id for receipt in await app.enqueue_many(jobs)]


async def start(dashboard: Viewer, act: str, fields: dict[str, str]) -> None:
    """Fill the form of an act, let the jobs be counted, and confirm."""
    for label, text in fields.items():
        await dashboard.fill(label, text)
    await dashboard.press("Count the jobs")
    await dashboard.press(f"{act} {JOBS} jobs")


@pytest.mark.parametrize(
    ("act", "fields", "wanted"),
    [
        ("Cancel", {"Reason": "not needed"}, {"state": "cancelled"}),
        ("Expedite", {}, {"priority": bounds.PRIORITY_MAX}),
        ("Delay", {"Delay": "2h"}, {"is_delayed": True}),
        ("Edit", {"Patch for each payload": '{"number": 7}', "Labels to set": "region=eu"},
         {"payload": {"number": 7}, "labels": {"region": "eu"}}),
        ("Move", {}, {"queue": "moved"}),
        ("Put back", {}, {"state": "waiting"}),
        ("Delete", {}, None),
    ],
)  # fmt: skip
@one_store
async def test_acts_on_everything_that_matches(
    dashboard: Viewer,
    app: Holdfast,
    queue: str,
    act: str,
    fields: dict[str, str],
    wanted: dict[str, Any] | None,
) -> None:
    ids = await enqueue(app, queue)
    await app.declare("moved", paused=True)
    if act == "Put back":
        failure = sample_data.failed("no such user")
        leases = await app.lease(queue, limit=JOBS, worker="worker-1")
        verdict = Bury(Reason.ATTEMPTS, failure)
        await app.settle([Settlement(lease=lease, verdict=verdict) for lease in leases])
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await dashboard.press("Act on all")
    await dashboard.press(f"{act}…")
    if act == "Move":
        await dashboard.dialog.get_by_label("To queue").select_option("moved")
    await start(dashboard, act, fields)
    progress = dashboard.page.locator(".act", has_text=queue)
    await expect(progress).to_contain_text(f"{JOBS} of {JOBS} changed")
    found = [job for id_ in ids if (job := await app.get(id_)) is not None]
    if wanted is None:
        assert found == []
        return
    assert [{name: _value(job, name) for name in wanted} for job in found] == [wanted] * JOBS


def _value(job: Job, name: str) -> Any:
    match name:
        case "is_delayed":
            return job.due_at > job.created_at + bounds.HOUR_MS
        case "payload":
            return msgspec.json.decode(job.payload)
        case _:
            return getattr(job, name)


async def test_acts_on_a_selection(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    ids = await enqueue(app, queue, JOBS + 2)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    for id_ in ids[:JOBS]:
        await dashboard.page.get_by_label(f"Select {id_}").check()
    chosen = dashboard.page.get_by_label("Selected jobs")
    await expect(chosen).to_contain_text(f"{JOBS} selected")
    await dashboard.press("Cancel…", chosen)
    await start(dashboard, "Cancel", {})
    # The list shows it without being asked.
    await expect(dashboard.page.locator(f"{ROWS} .state-cancelled")).to_have_count(JOBS)
    await expect(dashboard.page.get_by_role("button", name="Cancelled")).to_contain_text(f"{JOBS}")
    states = {job.id: str(job.state) for job in await jobs_of(app, queue)}
    assert [states[id_] for id_ in ids] == ["cancelled"] * JOBS + ["waiting"] * 2


@one_store
async def test_a_form_shows_its_error_wherever_it_was_scrolled_to(
    dashboard: Viewer, queue: str
) -> None:
    await dashboard.at(PHONE, 480)
    await dashboard.go(f"#/jobs?queue={queue}", shows="text=No job matches")
    await dashboard.press("Act on all")
    await dashboard.press("Edit…")
    await dashboard.fill("Patch for each payload", "{")
    await dashboard.dialog.get_by_text("Copy as curl").scroll_into_view_if_needed()
    await dashboard.press("Count the jobs")
    error = dashboard.dialog.locator(".field-error")
    await expect(error).to_contain_text("not JSON")
    await expect(error).to_be_in_viewport()
    await dashboard.press("Keep as is")
    await dashboard.at(WIDTH)


@one_store
async def test_the_count_of_many_jobs_is_typed(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    many = 1_001
    await enqueue(app, queue, many)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await dashboard.press("Act on all")
    await dashboard.press("Delete…")
    await dashboard.press("Count the jobs")
    sure = dashboard.dialog.get_by_role("button", name="Delete 1,001 jobs")
    await expect(sure).to_be_disabled()
    await dashboard.fill("Type 1,001 to confirm", "1001")
    await sure.click()
    await dashboard.sees("text=No job matches")
    assert await jobs_of(app, queue) == []


@one_store
async def test_filters_are_chips_in_the_address_and_have_names(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await app.enqueue("mail.send", {"to": "a"}, queue=queue, tenant="acme", labels={"no": "1"})
    await app.enqueue("mail.send", {"to": "b"}, queue=queue, tenant="globex")
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await expect(dashboard.page.locator(ROWS)).to_have_count(2)
    await dashboard.page.keyboard.press("/")
    for chip in ("tenant:acme", "label:no=1", "contains:to"):
        await dashboard.page.keyboard.type(chip)
        await dashboard.page.keyboard.press("Enter")
    await expect(dashboard.page.locator(ROWS)).to_have_count(1)
    assert "tenant=acme&label=no%3D1&contains=to" in dashboard.page.url
    await dashboard.press("Saved")
    await dashboard.page.get_by_label("Save this filter as").fill("of acme")
    await dashboard.press("Save")
    await dashboard.press("Remove the filter tenant acme")
    await dashboard.press("Remove the filter label no=1")
    await expect(dashboard.page.locator(ROWS)).to_have_count(2)
    await dashboard.press("Saved")
    await dashboard.page.get_by_role("button", name="of acme").first.click()
    await expect(dashboard.page.locator(ROWS)).to_have_count(1)


@one_store
async def test_a_filter_that_is_refused_shows_no_jobs_of_another(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    dashboard.allow("status of 422 .*/v1/(jobs|tally)")
    await enqueue(app, queue)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await dashboard.go(f"#/jobs?queue={queue}&since=never", shows="text=expected an age such as 1h")
    await expect(dashboard.page.locator(ROWS)).to_have_count(0)
    await expect(dashboard.page.locator(".loading")).to_have_count(0)
    await dashboard.press("Remove the filter since never")
    await expect(dashboard.page.locator(ROWS)).to_have_count(JOBS)


@one_store
async def test_pages_of_jobs_are_turned_by_keys(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await enqueue(app, queue, 51)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await expect(dashboard.page.locator(ROWS)).to_have_count(50)
    await expect(dashboard.page.get_by_role("button", name="Older")).to_be_enabled()
    await dashboard.page.keyboard.press("n")
    await expect(dashboard.page.locator(ROWS)).to_have_count(1)
    await dashboard.page.keyboard.press("p")
    await expect(dashboard.page.locator(ROWS)).to_have_count(50)


@one_store
async def test_filters_are_completed(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    await app.enqueue("mail.send", {}, queue=queue, tenant="acme", labels={"region": "eu"})
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    await dashboard.page.keyboard.press("/")
    offered = dashboard.page.locator("datalist option")
    for begun, completed in (
        ("ten", "tenant:"),
        ("tenant:ac", "tenant:acme"),
        ("label:reg", "label:region=eu"),
        (f"queue:{queue[:8]}", f"queue:{queue}"),
        ("state:sch", "state:scheduled"),
    ):
        await dashboard.page.get_by_label("Filter the jobs").last.fill(begun)
        await expect(offered.and_(dashboard.page.locator(f"[value='{completed}']"))).to_have_count(
            1
        )
    await dashboard.page.get_by_label("Filter the jobs").last.fill("label:eu")
    await dashboard.page.keyboard.press("Enter")
    await dashboard.sees("text=label: NAME=VALUE")
    # Members of every object of JavaScript are no filters, but texts to search for.
    await dashboard.page.get_by_label("Filter the jobs").last.fill("constructor:x")
    await dashboard.page.keyboard.press("Enter")
    await dashboard.sees(".chip:has-text('constructor:x')")


@one_store
async def test_columns_are_chosen(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    await app.enqueue("mail.send", {}, queue=queue, key=f"key-{queue}", priority=9)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    row = dashboard.page.locator(ROWS)
    await expect(row).not_to_contain_text(f"key-{queue}")
    await dashboard.press("Columns")
    await dashboard.page.get_by_label("Key", exact=True).check()
    await dashboard.page.get_by_label("Tenant", exact=True).uncheck()
    await expect(row).to_contain_text(f"key-{queue}")
    await expect(dashboard.page.locator("thead")).not_to_contain_text("Tenant")
    await dashboard.page.get_by_role("button", name="As at first").click()
    await expect(row).not_to_contain_text(f"key-{queue}")
    await dashboard.page.keyboard.press("Escape")


@one_store
async def test_jobs_do_not_move_under_the_pointer(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    old = await enqueue(app, queue)
    await dashboard.go(f"#/jobs?queue={queue}", shows=ROWS)
    rows = dashboard.page.locator(ROWS)
    await rows.first.hover()
    await app.cancel(old[0])
    new = await enqueue(app, queue, 1)
    await dashboard.sees("text=The list has changed")
    # A known row shows its new state where it is.
    await expect(rows.last.locator(".state-cancelled")).to_be_visible()
    await expect(rows).to_have_count(JOBS)
    await dashboard.press("The list has changed: show it")
    await expect(rows.first).to_have_attribute("data-key", new[0])
    await dashboard.page.mouse.move(0, 0)
