"""The way to the server: a lost connection, a hidden tab, a proxy that serves it below a path, and
its namespaces."""

from contextlib import ExitStack
from pathlib import Path

from playwright.async_api import Request, Route, expect

from holdfast.app.application import Holdfast
from tests.dashboard.conftest import Site, one_store
from tests.dashboard.prefix_proxy import behind_prefix
from tests.dashboard.viewer import Viewer
from tests.server.server_process import server_process


async def test_the_page_recovers_with_the_server_and_an_act_that_was_running_goes_on(
    viewer: Viewer, tmp_path: Path
) -> None:
    viewer.allow("console error: Failed to load resource: net::ERR_")
    with ExitStack() as first:
        # Without upkeep, nobody carries out the act before the second server does.
        server = first.enter_context(server_process(tmp_path, "--no-upkeep"))
        await viewer.open(f"{server.url}/", shows="table a[href*='queues/default']")
        async with Holdfast(f"sqlite:///{tmp_path}/jobs.db") as app:
            await app.enqueue_many([app.job("mail.send", number) for number in range(3)])
        await viewer.go("#/jobs", shows="main tbody tr[data-key]")
        await viewer.press("Act on all")
        await viewer.press("Cancel…")
        await viewer.press("Count the jobs")
        await viewer.press("Cancel 3 jobs")
        act = viewer.page.locator(".act")
        await expect(act).to_contain_text("running · 0 of 3 changed")
        await viewer.press("Stop", act)
        await expect(act).to_contain_text("stopped")
        await viewer.press("Continue", act)
        await expect(act).to_contain_text("running · 0 of 3 changed")
        stale = viewer.page.get_by_text("may be out of date")
        await expect(stale).to_have_count(0)
        server.popen.kill()
        server.popen.wait()
        await expect(stale).to_be_visible()
        assert await viewer.axe() == []
    _, port = server.address
    with server_process(tmp_path, port=port):
        # It tries again by itself; this only shortens the pause.
        await viewer.page.evaluate("() => dispatchEvent(new Event('online'))")
        await expect(stale).to_have_count(0)
        await viewer.sees(".dot-fresh")
        await expect(act).to_contain_text("done · 3 of 3 changed")
        await expect(viewer.page.locator("tbody .state-cancelled")).to_have_count(3)


@one_store
async def test_it_works_below_the_path_of_a_proxy(viewer: Viewer, site: Site) -> None:
    with behind_prefix(site.server.address) as url:
        await viewer.open(url, shows="table a[href*='queues/']")
        assert all(each.startswith(url) for each in viewer.requests)
        await viewer.page.wait_for_load_state()
        # The server is updated: the index names other files, which the page notices when it goes
        # on to a page that it has not shown yet.
        await viewer.page.route(url, other_index, times=1)
        async with viewer.page.expect_event("load"):
            await viewer.go("#/gates", shows="main h1:has-text('Gates')")
        await viewer.sees("main h1:has-text('Gates')")
        assert viewer.requests.count(url) == 3
        await viewer.page.close()


async def other_index(route: Route) -> None:
    await route.fulfill(body='<script type="module" src="dashboard/0/dashboard.js"></script>')


_HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def is_stream(request: Request) -> bool:
    return "/v1/live?" in request.url


@one_store
async def test_a_hidden_tab_pauses_its_stream(
    viewer: Viewer, site: Site, app: Holdfast, queue: str
) -> None:
    await viewer.page.clock.install()
    await viewer.open(site.url, shows=".dot-fresh")
    async with viewer.page.expect_event("requestfailed", is_stream):
        await viewer.page.evaluate(_HIDE, True)
        await viewer.page.clock.fast_forward(10_000)
    await app.declare(queue, paused=True)
    async with viewer.page.expect_request(is_stream):
        await viewer.page.evaluate(_HIDE, False)
        await viewer.page.clock.fast_forward(1_000)
    await expect(viewer.row(queue)).to_contain_text("paused")


async def test_the_namespace_is_switched(viewer: Viewer, tmp_path: Path) -> None:
    viewer.allow("status of 404 .*/v1/jobs/job-shop-eu")
    url = f"sqlite:///{tmp_path}/jobs.db"
    for place, queue in ((url, "shop"), (f"{url}?namespace=eu", "shop-eu")):
        async with Holdfast(place) as app:
            await app.declare(queue)
            await app.enqueue("mail.send", {}, queue=queue, id=f"job-{queue}")
    with server_process(tmp_path, "--namespace", "eu", url=url) as server:
        queues = viewer.page.locator("table tbody a[href*='queues/']")
        await viewer.open(f"{server.url}/", shows="table a[href$='queues/shop']")
        await expect(queues.filter(has_text="shop")).to_have_text(["shop"])
        await viewer.page.get_by_label("Namespace").select_option("eu")
        await expect(queues.filter(has_text="shop")).to_have_text(["shop-eu"])
        await viewer.go("#/jobs/job-shop-eu", shows=".job-line")
        await viewer.page.reload()
        await viewer.sees(".job-line")
        await viewer.page.get_by_label("Namespace").select_option("default")
        await viewer.sees("text=There is no such job")
        await viewer.page.close()
