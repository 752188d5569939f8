"""The page of dead letters: put back, edit, delete, download and quarantine."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core.model import Failure, FailureKind, Job, JobFilter, Reason, State
from holdfast.core.verdict import Bury, Settlement
from tests.dashboard import sample_data
from tests.dashboard.conftest import Site, one_store
from tests.dashboard.viewer import Viewer

LETTERS = 3
OUT_OF_MEMORY = Failure(kind=FailureKind.CRASH, message="killed", signal=9)


async def jobs_of(app: Holdfast, queue: str) -> list[Job]:
    return [job async for job in app.jobs(JobFilter(queue=queue))]


async def bury(
    app: Holdfast,
    queue: str,
    failure: Failure,
    reason: Reason = Reason.ATTEMPTS,
    letters: int = LETTERS,
) -> None:
    jobs = [app.job("shop.charge", {"cents": str(n)}, queue=queue) for n in range(letters)]
    await app.enqueue_many(jobs)
    leases = await app.lease(queue, limit=letters, worker="worker-1")
    await app.settle([Settlement(lease=each, verdict=Bury(reason, failure)) for each in leases])


@pytest.fixture
async def letters(app: Holdfast, queue: str) -> str:
    """A queue with dead letters of two causes."""
    await bury(app, queue, sample_data.failed("no such card", "LookupError"))
    await bury(app, queue, sample_data.failed("cents is text", "TypeError"))
    return queue


async def test_all_letters_of_a_cause_are_put_back(
    dashboard: Viewer, app: Holdfast, letters: str
) -> None:
    await dashboard.go(f"#/dead?queue={letters}", shows="text=LookupError")
    await dashboard.press("Put back 3 letters: LookupError")
    await dashboard.press("Put 3 letters back")
    await expect(dashboard.page.get_by_role("link", name="LookupError")).to_have_count(0)
    await expect(dashboard.page.get_by_role("link", name="TypeError")).to_be_visible()
    states = [str(job.state) for job in await jobs_of(app, letters)]
    assert sorted(states) == ["dead"] * LETTERS + ["waiting"] * LETTERS


@one_store
async def test_letters_go_back_gradually_with_progress(
    dashboard: Viewer, app: Holdfast, letters: str
) -> None:
    dashboard.allow("status of 4.. .*/v1/redrives")
    await dashboard.go(f"#/dead?queue={letters}", shows="text=Put all back…")
    await dashboard.press("Put all back…")
    await dashboard.press("Gradually")
    await dashboard.fill("Rate", "often")
    await dashboard.press("Put 6 letters back")
    await expect(dashboard.dialog.locator(".field-error")).to_be_visible()
    await dashboard.fill("Rate", "100/s")
    await dashboard.press("Put 6 letters back")
    current = dashboard.page.get_by_label("Current redrives").locator("li", has_text=letters)
    await expect(current.first).to_contain_text("6 of 6 put back")
    await dashboard.sees("text=No dead letters of queue")
    assert {job.state for job in await jobs_of(app, letters)} == {State.WAITING}


@one_store
async def test_a_redrive_tries_a_few_letters_first_and_is_cancelled(
    dashboard: Viewer, app: Holdfast, letters: str
) -> None:
    await dashboard.go(f"#/dead?queue={letters}", shows="text=Put all back…")
    await dashboard.press("Put all back…")
    await dashboard.press("Gradually")
    await dashboard.dialog.get_by_label("Try a few first").check()
    await dashboard.fill("Watch the first ones for", "1h")
    await dashboard.press("Put 6 letters back")
    current = dashboard.page.get_by_label("Current redrives").locator("li", has_text=letters)
    await expect(current.first).to_contain_text("watching the first ones")
    await expect(current.first).to_contain_text("1 of 6 put back")
    await dashboard.press("Cancel", current.first)
    await expect(current.first).to_contain_text("cancelled")
    states = [str(job.state) for job in await jobs_of(app, letters)]
    assert sorted(states) == ["dead"] * (2 * LETTERS - 1) + ["waiting"]


@one_store
async def test_one_letter_is_edited_and_put_back(
    dashboard: Viewer, app: Holdfast, letters: str
) -> None:
    await dashboard.go(f"#/dead?queue={letters}", shows="text=TypeError")
    await dashboard.page.get_by_role("link", name="TypeError").click()
    letter = dashboard.page.locator(".letter").first
    await dashboard.press("Edit…", letter)
    await dashboard.fill("Merge patch", '{"cents": 7, "currency": "EUR"}')
    await expect(dashboard.dialog.locator(".diff-new").first).to_contain_text('"cents": 7')
    await dashboard.press("Put 1 letter back")
    await expect(dashboard.page.locator(".letter")).to_have_count(LETTERS - 1)
    [back] = [job for job in await jobs_of(app, letters) if job.state is State.WAITING]
    assert msgspec.json.decode(back.payload) == {"cents": 7, "currency": "EUR"}


@one_store
async def test_letters_do_not_move_under_the_pointer(
    dashboard: Viewer, app: Holdfast, letters: str
) -> None:
    await dashboard.go(f"#/dead?queue={letters}", shows="text=LookupError")
    await dashboard.page.get_by_role("link", name="LookupError").click()
    shown = dashboard.page.locator(".letter code")
    await expect(shown).to_have_count(LETTERS)
    before = await shown.all_inner_texts()
    await shown.last.hover()
    await bury(app, letters, sample_data.failed("no such card", "LookupError"))
    await dashboard.sees("text=The letters have changed")
    assert await shown.all_inner_texts() == before
    await dashboard.page.mouse.move(0, 0)
    await expect(shown).to_have_count(LETTERS + 2)


@one_store
async def test_the_causes_are_current_while_letters_come_and_go(
    dashboard: Viewer, site: Site, app: Holdfast, queue: str
) -> None:
    many = 1_000
    await bury(app, queue, sample_data.failed("no such card", "LookupError"), letters=many)
    await dashboard.go(f"#/dead?queue={queue}", shows="text=LookupError")
    count = dashboard.row("LookupError").locator(".cause-count")
    await expect(count).to_have_text("1,000")
    left = [job.id for job in await jobs_of(app, queue)]

    async def retry_one_by_one() -> None:
        while left:
            reply = await dashboard.page.request.post(f"{site.url}v1/jobs/{left.pop()}/retry")
            assert reply.ok

    retrying = asyncio.create_task(retry_one_by_one())
    try:
        await expect(count).not_to_have_text("1,000")
        assert left, "the page waited for the end"
    finally:
        retrying.cancel()
        with suppress(asyncio.CancelledError):
            await retrying


@one_store
async def test_letters_are_downloaded_and_then_deleted(
    dashboard: Viewer, app: Holdfast, letters: str, tmp_path: Path
) -> None:
    await dashboard.go(f"#/dead?queue={letters}", shows="text=Delete all…")
    async with dashboard.page.expect_download() as downloading:
        await dashboard.press("Download JSONL")
    path = tmp_path / "letters.jsonl"
    await (await downloading.value).save_as(path)
    saved = [json.loads(line) for line in path.read_text().splitlines()]
    assert {each["id"] for each in saved} == {job.id for job in await jobs_of(app, letters)}
    await dashboard.press("Delete all…")
    await dashboard.press("Delete 6 dead letters")
    await dashboard.sees("text=No dead letters of queue")
    assert await jobs_of(app, letters) == []


@one_store
async def test_a_job_leaves_quarantine(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    await bury(app, queue, OUT_OF_MEMORY, Reason.CRASHED)
    await dashboard.go(f"#/dead?queue={queue}&view=quarantine", shows="text=SIGKILL")
    crashed = dashboard.page.locator(".letter")
    await expect(crashed).to_have_count(LETTERS)
    await dashboard.press("Put back", crashed.first)
    await expect(crashed).to_have_count(LETTERS - 1)
    states = [str(job.state) for job in await jobs_of(app, queue)]
    assert sorted(states) == ["dead"] * (LETTERS - 1) + ["waiting"]
