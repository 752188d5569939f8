"""The overview: every queue, what needs attention, and the way from there to an answer."""

from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core.model import Reason, State
from holdfast.core.verdict import Bury, Settlement
from tests.dashboard import sample_data
from tests.dashboard.conftest import one_store
from tests.dashboard.viewer import Viewer

QUEUES = "table tbody a[href*='queues/']"


async def test_every_queue_and_what_needs_attention_are_shown(dashboard: Viewer) -> None:
    await dashboard.go("#/", shows=QUEUES)
    shown = await dashboard.page.locator(QUEUES).all_inner_texts()
    wanted = {*sample_data.QUEUES, sample_data.UNSERVED, sample_data.PAUSED}
    assert wanted <= set(shown)
    await expect(dashboard.row(sample_data.PAUSED)).to_contain_text("paused")
    attention = dashboard.page.locator(".attention-item").filter(has_text=sample_data.UNSERVED)
    await expect(attention.first).to_contain_text("no worker")
    await dashboard.sees(".freshness")


@one_store
async def test_a_problem_leads_to_its_page(dashboard: Viewer) -> None:
    for name, heading in (
        ("Open worker-2", "worker-2"),
        ("See the breakers", "Breakers"),
        (f"Open {sample_data.PAUSED}", sample_data.PAUSED),
        ("Open orders", "Gates"),
    ):
        await dashboard.go("#/", shows=QUEUES)
        if await (more := dashboard.page.get_by_role("button", name="more", exact=False)).count():
            await more.first.click()
        problems = dashboard.page.locator(".attention-item")
        # Other tests have left more of some kinds.
        await problems.get_by_role("link", name=name, exact=True).first.click()
        await dashboard.sees(f"h1:has-text('{heading}')")


async def test_what_others_do_is_shown_without_a_reload(dashboard: Viewer, app: Holdfast) -> None:
    await app.declare("mine")
    await dashboard.go("#/", shows=QUEUES)
    row = dashboard.page.get_by_role("row").filter(
        has=dashboard.page.get_by_role("link", name="mine", exact=True)
    )
    await expect(row).to_be_visible()
    await expect(row).not_to_contain_text("paused")
    await app.declare("mine", paused=True)
    await expect(row).to_contain_text("paused")
    await app.drop("mine")
    await expect(row).to_have_count(0)


@one_store
async def test_a_running_worker_empties_its_queue_on_the_page(
    dashboard: Viewer, app: Holdfast, worker: str
) -> None:
    await dashboard.go("#/", shows=QUEUES)
    row = dashboard.row(worker)
    await expect(row).not_to_contain_text("no worker")
    await app.declare(worker, paused=True)
    await app.enqueue("command", {"command": ["true"]}, queue=worker)
    ready = row.locator(".count-ready")
    await expect(ready).to_have_text("1")
    await app.declare(worker, paused=False)
    await expect(ready).to_have_count(0)


@one_store
async def test_why_a_job_waits_is_two_clicks_away(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    await app.enqueue("mail.send", {}, queue=queue)
    await dashboard.go("#/", shows=QUEUES)
    await dashboard.row(queue).locator(".count-ready").click()
    await dashboard.page.locator("main tbody a.job-id").click()
    why = dashboard.page.locator(".attention-item").first
    await expect(why).to_contain_text(f"No worker serves queue {queue}")


@one_store
async def test_a_dead_letter_is_put_back_with_three_clicks(
    dashboard: Viewer, app: Holdfast, queue: str
) -> None:
    id_ = (await app.enqueue("mail.send", {}, queue=queue)).id
    [lease] = await app.lease(queue, worker="worker-1")
    verdict = Bury(Reason.ATTEMPTS, sample_data.failed("no such user"))
    await app.settle([Settlement(lease=lease, verdict=verdict)])
    await dashboard.go("#/", shows=QUEUES)
    await dashboard.row(queue).locator(".count-dead").click()
    await dashboard.press("Put 1 letter back…")
    await dashboard.press("Put 1 letter back")
    await dashboard.sees("text=No dead letters of queue")
    job = await app.get(id_)
    assert job is not None
    assert job.state is State.WAITING
