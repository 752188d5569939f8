"""Every page opens, in both themes, wide and on a phone, without a fault."""

from tests.dashboard.conftest import Site, one_store, other_store
from tests.dashboard.viewer import WIDTH, Viewer
from tests.dashboard.walk import DETAILS, Place, places, visit

PHONE = 360


async def look(viewer: Viewer, place: Place) -> list[str]:
    """Look at the page in light on a desk, and in dark on a phone."""
    faults = await visit(viewer, place)
    faults += [f"desk: {each}" for each in await viewer.axe()]
    if place.name:
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
