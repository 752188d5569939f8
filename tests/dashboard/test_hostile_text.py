"""Hostile text in every field of every page is shown as text, and breaks nothing."""

import os
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from playwright.async_api import Browser

from tests.dashboard import hostile_data
from tests.dashboard.conftest import Site
from tests.dashboard.hostile_data import DEAD, DONE, GATE, MARKUP, QUEUE, RUNNING, SCHEDULE, WAITING
from tests.dashboard.test_pages import PHONE
from tests.dashboard.viewer import WIDTH, Viewer, open_viewer
from tests.dashboard.walk import Place, places, visit
from tests.server.server_process import server_process

LABELS = int(os.environ.get("HOLDFAST_HOSTILE_LABELS", "1000"))
ERROR_BYTES = int(os.environ.get("HOLDFAST_HOSTILE_ERROR_BYTES", "200000"))
HEAP_MB_MAX = 100
# Nothing that acts is left in a text: escapes, and marks that change the direction.
_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FOREIGN = "() => document.querySelectorAll('main script, main img, main iframe, [onerror]').length"
SAMPLES = {
    "/queues/:name": Place(f"#/queues/{QUEUE}", QUEUE),
    "/jobs/:id": Place(f"#/jobs/{DEAD}", "task."),
}
DETAILS = (
    Place(f"#/queues/{QUEUE}?tab=limits", QUEUE),
    Place(f"#/queues/{QUEUE}?tab=tenants", QUEUE),
    Place(f"#/queues/{QUEUE}?tab=settings", QUEUE),
    Place(f"#/jobs?tenant={quote(hostile_data.TEXT)}&state=dead", "Jobs"),
    Place(f"#/jobs/{RUNNING}", "task."),
    Place(f"#/jobs/{WAITING}", "task."),
    Place(f"#/jobs/{DONE}", "task."),
    Place(f"#/workers?name={quote(hostile_data.WORKER)}", MARKUP),
    Place(f"#/schedules?name={SCHEDULE}", SCHEDULE),
    Place(f"#/gates?name={GATE}", "Gates"),
    Place("#/dead?view=quarantine", "Dead letters"),
    Place("#/dead?view=redrives", "Dead letters"),
)
# Pages whose fields hold no free text, so that they need not show any.
QUIET = ("#/settings", "#/tokens", "#/schedules")


@pytest.fixture(scope="module")
async def hostile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("hostile")
    url = f"sqlite:///{folder}/jobs.db"
    await hostile_data.fill(url, labels=LABELS, error_bytes=ERROR_BYTES)
    with server_process(folder, url=url) as server:
        yield Site(server, url)


async def look(viewer: Viewer, place: Place, heap_mb_max: float = HEAP_MB_MAX) -> list[str]:
    """The faults of the page, wide and on a phone."""
    faults = await visit(viewer, place)
    text = await viewer.main_text()
    faults += [f"acts: {found!r}" for found in set(_ACTING.findall(text))]
    if MARKUP not in text and place.address not in QUIET:
        faults.append("no hostile text is shown")
    if await viewer.page.evaluate(_FOREIGN):
        faults.append("text became an element")
    for width in (PHONE, WIDTH):
        await viewer.at(width)
        if wide := await viewer.overflow():
            faults.append(f"at {width} px: {wide} px too wide")
    if (used := await viewer.heap_mb()) > heap_mb_max:
        faults.append(f"{used:.0f} MB")
    return [f"{place.address}: {fault}" for fault in faults]


async def test_hostile_text_is_shown_as_text(hostile: Site, browser: Browser) -> None:
    async with open_viewer(browser) as viewer:
        await viewer.open(hostile.url, shows="main h1")
        faults = [
            fault for place in (*places(SAMPLES), *DETAILS) for fault in await look(viewer, place)
        ]
        assert not faults, "\n".join(faults)
        await viewer.go(f"#/jobs/{DONE}", shows="main h1")
        await viewer.sees(f"text={hostile_data.EXACT}")
        assert await viewer.page.evaluate("() => ({}).polluted") is None
