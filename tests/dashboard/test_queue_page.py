"""The page of a queue: pause, settings, clear and delete."""

from playwright.async_api import Locator, expect

from holdfast.app.application import Holdfast
from holdfast.core.model import QueueView
from tests.dashboard.conftest import one_store
from tests.dashboard.viewer import Viewer

MANY = 1_001
"""So many that the count must be typed."""


async def view_of(app: Holdfast, queue: str) -> QueueView:
    [view] = await app.queues(names=[queue])
    return view


async def enqueue(app: Holdfast, queue: str, count: int) -> None:
    await app.enqueue_many([app.job("mail.send", number, queue=queue) for number in range(count)])


def ready(viewer: Viewer) -> Locator:
    return viewer.page.get_by_label("Jobs by state").get_by_role("link", name="Ready")


async def test_a_queue_is_paused_with_a_reason_and_resumed(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await dashboard.go(f"#/queues/{queue}", shows="text=Drain…")
    await dashboard.press("Pause…")
    await dashboard.fill("Reason", "the mail server moves")
    await dashboard.press("Pause")
    notice = dashboard.page.locator(".notice", has_text="no job of this queue starts")
    await expect(notice).to_contain_text("the mail server moves")
    assert (await view_of(app, queue)).queue.paused
    await dashboard.press("Resume", notice)
    await expect(notice).to_have_count(0)
    assert not (await view_of(app, queue)).queue.paused


@one_store
async def test_what_others_do_is_shown_without_a_reload(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await dashboard.go(f"#/queues/{queue}", shows="text=Drain…")
    await app.declare(queue, paused=True)
    await dashboard.sees("text=Paused: no job of this queue starts.")
    await enqueue(app, queue, 3)
    await expect(ready(dashboard)).to_contain_text("3")


@one_store
async def test_a_setting_is_changed_after_a_look_at_the_difference(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    dashboard.allow("status of 4.. .*/v1/queues/own-")
    await dashboard.go(f"#/queues/{queue}?tab=settings", shows="text=Review changes…")
    attempts = dashboard.page.locator(".field", has_text="A job that fails so often is dead")
    await attempts.get_by_role("textbox").fill("many")
    await dashboard.press("Review changes…")
    await dashboard.press("Save 1 change")
    await expect(attempts.locator(".field-error")).to_be_visible()
    await dashboard.sees(".save-bar:has-text('Not saved.')")
    await attempts.get_by_role("textbox").fill("7")
    await dashboard.press("Review changes…")
    await expect(dashboard.dialog.locator(".diff-old")).to_contain_text("Attempts: 4")
    await expect(dashboard.dialog.locator(".diff-new")).to_contain_text("Attempts: 7")
    assert await dashboard.axe() == []
    assert (await view_of(app, queue)).queue.max_attempts == 4
    await dashboard.press("Save 1 change")
    await expect(dashboard.page.get_by_text("Changes apply at once")).to_be_visible()
    assert (await view_of(app, queue)).queue.max_attempts == 7


@one_store
async def test_the_count_of_many_jobs_is_typed_before_they_are_deleted(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await enqueue(app, queue, MANY)
    await dashboard.go(f"#/queues/{queue}", shows="text=Clear…")
    await dashboard.press("Clear…")
    await dashboard.press("Delete 1,001 jobs…")
    sure = dashboard.dialog.get_by_role("button", name="Delete 1,001 jobs", exact=True)
    await expect(sure).to_be_disabled()
    await dashboard.fill("Type 1,001 to confirm", "1000")
    await expect(sure).to_be_disabled()
    assert (await view_of(app, queue)).ready == MANY
    await dashboard.fill("Type 1,001 to confirm", "1,001")
    await sure.click()
    await expect(dashboard.dialog).to_have_count(0)
    assert (await view_of(app, queue)).ready == 0
    await expect(ready(dashboard)).to_contain_text("0")


@one_store
async def test_a_queue_is_drained_and_deleted(dashboard: Viewer, app: Holdfast, queue: str) -> None:
    await enqueue(app, queue, 2)
    await dashboard.go(f"#/queues/{queue}", shows="text=Drain…")
    await dashboard.press("Drain…")
    await dashboard.press("Drain")
    await dashboard.sees("text=Draining: no new job is accepted.")
    assert not (await view_of(app, queue)).queue.accepting
    await dashboard.press("Accept jobs again")
    await expect(dashboard.page.get_by_role("button", name="Drain…")).to_be_visible()
    assert (await view_of(app, queue)).queue.accepting
    await dashboard.press("Delete…")
    await dashboard.press("Delete it and 2 jobs")
    await dashboard.sees("h1:has-text('Overview')")
    assert await app.queues(names=[queue]) == []


@one_store
async def test_what_cannot_be_a_queue_is_not_asked_for(dashboard: Viewer) -> None:
    await dashboard.go("#/queues/no%20queue", shows="text=There is no such queue")
    await dashboard.sees("text=up to 80 letters")
    assert await dashboard.axe() == []
    await dashboard.go("#/queues/%E0%A4%A", shows="text=up to 80 letters")
    await dashboard.go("#/", shows=".dot-fresh")
