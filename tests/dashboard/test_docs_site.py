"""The documentation site, opened from a folder: search works, and nothing comes from elsewhere."""

from pathlib import Path

from playwright.async_api import expect

from tests.dashboard.viewer import Viewer
from tests.docs.site import build


async def test_search_works_without_a_web_server(tmp_path: Path, viewer: Viewer) -> None:
    start = build(tmp_path / "site")
    await viewer.open(start.as_uri(), "h1:has-text('Holdfast')")
    assert await viewer.overflow() == 0
    # The page listens to keys once its scripts have run.
    await viewer.page.wait_for_load_state("load")
    await viewer.page.keyboard.press("Control+k")
    await (await viewer.sees("input")).fill("redrive")
    found = viewer.page.locator("a[href*='dead-letters.html?h=redrive']").first
    await expect(found).to_be_visible()
    viewer.allow("Autofocus processing was blocked")  # of the theme's search field
    await found.click()
    await viewer.sees("h1:has-text('Dead letters')")
    assert {url.partition(":")[0] for url in viewer.requests} <= {"file", "data", "blob"}
