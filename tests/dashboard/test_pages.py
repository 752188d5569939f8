"""Every page opens, in both themes, wide and on a phone, without a fault."""

import re

from playwright.async_api import expect

from tests.dashboard.conftest import Site, one_store, other_store
from tests.dashboard.viewer import WIDTH, Viewer
from tests.dashboard.walk import DETAILS, Place, places, visit

PHONE = 360


async def look(viewer: Viewer, place: Place) -> list[str]:
    """Look at the page in light on a desk, and in dark on a phone."""
    faults = await visit(viewer, place)
    faults += [f"desk: {each}" for each in await viewer.axe()]
    # The server's own user sees no tokens: their picture is taken where an admin signs in.
    if place.name not in ("", "tokens"):
        await viewer.screenshot(f"{place.name}-light")
    await viewer.prefers("dark")
    if place.name == "overview":
        await viewer.screenshot("overview-dark")
    await viewer.at(PHONE)
    if wide := await viewer.overflow():
        faults.append(f"phone: {wide} px too wide")
    faults += [f"phone: {each}" for each in await viewer.axe("color-contrast")]
    if place.name == "overview":
        await viewer.screenshot("overview-dark-phone")
    await viewer.prefers("light")
    if place.name == "overview":
        await viewer.screenshot("overview-light-phone")
    await viewer.at(WIDTH)
    if wide := await viewer.overflow():
        faults.append(f"desk: {wide} px too wide")
    return [f"{place.address}: {each}" for each in faults]


@one_store
async def test_every_page_is_accessible_in_every_size_and_theme(dashboard: Viewer) -> None:
    dashboard.allow("status of 404 .*/v1/jobs/unknown")
    faults = [fault for place in (*places(), *DETAILS) for fault in await look(dashboard, place)]
    assert not faults, "\n".join(faults)


@other_store
async def test_every_page_opens_on_the_other_store(dashboard: Viewer, site: Site) -> None:
    faults = [fault for place in places() for fault in await visit(dashboard, place)]
    assert not faults, "\n".join(faults)
    assert all(url.startswith(site.url) for url in dashboard.requests)


@one_store
async def test_theme_and_times_are_chosen(dashboard: Viewer) -> None:
    await dashboard.go("#/jobs?state=dead", shows="main tbody tr[data-key]")
    time = dashboard.page.locator("main tbody time").first
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = await dashboard.page.evaluate(background)
    await dashboard.page.get_by_label("Theme").select_option("dark")
    assert await dashboard.page.evaluate(background) != light
    await dashboard.page.get_by_label("Theme").select_option("auto")
    assert await dashboard.page.evaluate(background) == light
    for chosen, form in (
        ("utc", r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"),
        ("local", r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"),
        ("relative", r"^(now|.* ago)$"),
    ):
        await dashboard.page.get_by_label("Times").select_option(chosen)
        await expect(time).to_have_text(re.compile(form))
