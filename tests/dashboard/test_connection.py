"""The way to the server: a lost connection, and a proxy that serves it below a path."""

from contextlib import ExitStack
from pathlib import Path

from playwright.async_api import expect

from tests.dashboard.conftest import Site, one_store
from tests.dashboard.prefix_proxy import behind_prefix
from tests.dashboard.viewer import Viewer
from tests.server.server_process import server_process


async def test_the_page_says_that_the_server_is_gone_and_recovers(
    viewer: Viewer, tmp_path: Path
) -> None:
    viewer.allow("console error: Failed to load resource: net::ERR_")
    with ExitStack() as first:
        server = first.enter_context(server_process(tmp_path))
        await viewer.open(f"{server.url}/", shows="table a[href*='queues/default']")
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


@one_store
async def test_it_works_below_the_path_of_a_proxy(viewer: Viewer, site: Site) -> None:
    with behind_prefix(site.server.address) as url:
        await viewer.open(url, shows="table a[href*='queues/']")
        assert all(each.startswith(url) for each in viewer.requests)
        await viewer.page.close()
