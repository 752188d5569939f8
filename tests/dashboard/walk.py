"""A walk over every page of the dashboard and its most important details.

The pages are those that the dashboard itself lists, so that a new one is included.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.server.dashboard.files import WEB
from tests.dashboard import sample_data
from tests.dashboard.viewer import Viewer

_PAGE = re.compile(
    r'\{\n    path: "(?P<path>[^"]+)",\n    title: "(?P<title>[^"]+)",\n(?P<rest>(?:    .*\n)+)  \}'
)
# A page shows no value that its author forgot.
_MISTAKE = re.compile(r"\bundefined\b|\bNaN\b|\[object |\bInvalid Date\b|\bnull\b")


class ListedPage(NamedTuple):
    """A page as the dashboard lists it; `listed` if it is in the navigation."""

    path: str
    title: str
    scope: str
    listed: bool


class Place(NamedTuple):
    """An address of the dashboard, the heading that is seen there, and the name of the page, which
    details do not have."""

    address: str
    heading: str
    name: str = ""


DETAILS = (
    Place("#/queues/shop.payments?tab=limits", "shop.payments"),
    Place("#/queues/shop.orders?tab=tenants", "shop.orders"),
    Place("#/queues/shop.orders?tab=settings", "shop.orders"),
    Place("#/jobs?state=dead&queue=shop.payments", "Jobs"),
    Place(f"#/jobs/{sample_data.RUNNING}", "media.transcode"),
    Place(f"#/jobs/{sample_data.BLOCKED}", "mail.send"),
    Place("#/dead?queue=crm", "Dead letters"),
    Place("#/dead?view=quarantine", "Dead letters"),
    Place("#/workers?name=worker-1", "worker-1"),
    Place("#/schedules?name=nightly", "nightly"),
    Place("#/jobs/unknown", "Job"),
)
"""What is not a page of its own, but looks like one."""

_SAMPLES = {
    "/queues/:name": Place("#/queues/shop.orders", "shop.orders"),
    "/jobs/:id": Place(f"#/jobs/{sample_data.DEAD}", "shop.charge"),
}
"""Where the path of a page has a parameter."""


def listed_pages() -> list[ListedPage]:
    """Every page, for all scopes."""
    text = (WEB / "pages.js").read_text()
    found = []
    for each in _PAGE.finditer(text):
        [scope] = re.findall(r'scope: "(\w+)"', each["rest"])
        found.append(ListedPage(each["path"], each["title"], scope, "icon: " in each["rest"]))
    assert len(found) == text.count("import(")
    return found


def places(samples: Mapping[str, Place] = _SAMPLES) -> list[Place]:
    """An address of every page."""
    return [
        (samples[page.path] if ":" in page.path else Place(f"#{page.path}", page.title))._replace(
            name=page.title.lower().replace(" ", "-")
        )
        for page in listed_pages()
    ]


async def visit(viewer: Viewer, place: Place) -> list[str]:
    """Go there; what is wrong with what is seen."""
    await viewer.go(
        place.address, shows=f"main h1:has-text({msgspec.json.encode(place.heading).decode()})"
    )
    await viewer.loaded()
    found = await viewer.take_faults()
    found += [f"mistake: {text}" for text in _MISTAKE.findall(await viewer.main_text())]
    found += [
        f"failure: {await each.inner_text()}"
        for each in await viewer.page.locator("[role=alert]").all()
    ]
    return [f"{place.address}: {each}" for each in found]
