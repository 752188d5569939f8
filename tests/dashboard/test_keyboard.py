"""The dashboard by keyboard only."""

from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.core.model import State
from tests.dashboard.conftest import Site, one_store
from tests.dashboard.viewer import Viewer

_TABS_MAX = 100
_RECORD_FOCUS = """() => {
  const dialog = document.querySelector("dialog[open]");
  window.focusAtRemoval = new Promise((resolve) => new MutationObserver(() => {
    if (!dialog.isConnected) resolve(document.activeElement.id);
  }).observe(document.body, { childList: true, subtree: true }));
}"""


async def tab_to(viewer: Viewer, name: str) -> None:
    """Press Tab until the element with this name has the focus."""
    for _ in range(_TABS_MAX):
        await viewer.page.keyboard.press("Tab")
        if await viewer.focused() == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


@one_store
async def test_a_job_is_found_and_cancelled_without_a_mouse(
    viewer: Viewer, site: Site, app: Holdfast, queue: str
) -> None:
    id_ = (await app.enqueue("mail.send", {}, queue=queue)).id
    keyboard = viewer.page.keyboard
    await viewer.open(site.url, shows="table tbody a[href*='queues/']")
    await keyboard.press("Tab")
    assert await viewer.focused() == "Skip to the content"
    await keyboard.press("Enter")

    await keyboard.press("?")
    await expect(viewer.dialog).to_contain_text("Search the queues")
    assert await viewer.axe() == []
    await keyboard.press("Escape")
    await expect(viewer.dialog).to_have_count(0)

    await keyboard.press("/")
    assert await viewer.focused() == "Search the queues"
    await keyboard.type(queue)
    await expect(viewer.page.locator("table tbody a[href*='queues/']")).to_have_text([queue])
    assert viewer.page.url.endswith(f"q={queue}")
    await keyboard.press("Tab")
    await keyboard.press("j")
    await keyboard.press("Enter")
    await viewer.sees(f"h1:has-text('{queue}')")

    await tab_to(viewer, "Ready\n1")
    await keyboard.press("Enter")
    await viewer.sees(f"tr[data-key='{id_}']")
    await keyboard.press("j")
    await keyboard.press("x")
    await expect(viewer.page.get_by_label("Selected jobs")).to_contain_text("1 selected")
    await keyboard.press("x")
    await keyboard.press("j")
    await keyboard.press("Enter")
    await viewer.sees("text=Cancel…")
    await tab_to(viewer, "Cancel…")
    await keyboard.press("Enter")
    await expect(viewer.dialog).to_be_visible()
    await tab_to(viewer, "Reason")
    await keyboard.type("not needed")
    await keyboard.press("Enter")
    await expect(viewer.page.locator(".job-state")).to_have_text("cancelled")
    job = await app.get(id_)
    assert job is not None
    assert job.state is State.CANCELLED
    await keyboard.press("g")
    await keyboard.press("w")
    await viewer.sees("h1:has-text('Workers')")


@one_store
async def test_a_closed_dialog_has_given_the_focus_back(viewer: Viewer, site: Site) -> None:
    """Before it is gone: a key that is pressed next may move the focus elsewhere."""
    await viewer.open(site.url, shows="table tbody a[href*='queues/']")
    await viewer.page.evaluate("() => document.getElementById('main').focus()")
    await viewer.page.keyboard.press("?")
    await expect(viewer.dialog).to_be_visible()
    await viewer.page.evaluate(_RECORD_FOCUS)
    await viewer.page.keyboard.press("Escape")
    assert await viewer.page.evaluate("() => window.focusAtRemoval") == "main"
