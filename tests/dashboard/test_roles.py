"""Roles: what the scopes of a caller do not allow is not offered."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from holdfast.app.application import Holdfast
from holdfast.ops.quotas import Quotas
from holdfast.ops.tokens import Tokens
from holdfast.process import wall_ms
from tests.dashboard import sample_data
from tests.dashboard.conftest import Site, new_token, one_store, sign_in
from tests.dashboard.viewer import Viewer, open_viewer
from tests.dashboard.walk import ListedPage, Place, listed_pages, places, visit

# The first words of every button that changes something.
_ACTS = re.compile(
    r"(Accept|Act on|Add|Cancel|Cordon|Create|Delete|Drain|Edit|End|Expedite|Move"
    r"|Pause(?! the output)|Put|Remove(?! the filter)|Resume|Retry|Revoke|Run|Set|Stop|Store"
    r"|Uncordon|Unset)\b|(Clear|Close|Delay|Open)…|Close \w"
)
CLOSER = (
    Place("#/queues/shop.orders?tab=settings", "shop.orders"),
    Place(f"#/jobs/{sample_data.RUNNING}", "media.transcode"),
    Place("#/dead?queue=crm", "Dead letters"),
    Place("#/workers?name=worker-1", "worker-1"),
    Place("#/schedules?name=nightly", "nightly"),
)
"""More of their acts than on the pages themselves."""
LISTED = ".side nav a"


async def acts_at(viewer: Viewer, place: Place) -> set[str]:
    """The acts that are offered there."""
    faults = await visit(viewer, place)
    assert not faults, "\n".join(faults)
    buttons = viewer.page.locator("main button")
    names = await buttons.evaluate_all("(all) => all.map((e) => e.ariaLabel || e.innerText)")
    return {name for name in names if _ACTS.match(name)}


@pytest.fixture
async def viewer(browser: Browser) -> AsyncIterator[Viewer]:
    async with open_viewer(browser) as viewer:
        # The browser itself reports the answer to the question who the caller is.
        viewer.allow("console error: Failed to load resource: .* status of 401 .*/v1/session")
        yield viewer


async def _titles(viewer: Viewer) -> list[str]:
    return await viewer.page.locator(LISTED).all_inner_texts()


def _of(pages: list[ListedPage], *scopes: str) -> list[str]:
    return [page.title for page in pages if page.listed and page.scope in scopes]


@one_store
async def test_an_observer_sees_every_page_but_those_of_admins_and_no_act(
    viewer: Viewer, guarded: Site, app: Holdfast
) -> None:
    await sign_in(viewer, guarded.url, await new_token(app, "observe"))
    await viewer.sees(LISTED)
    pages = listed_pages()
    assert await _titles(viewer) == _of(pages, "observe")
    closed = [page.title for page in pages if page.scope == "admin"]
    assert closed
    seen = [place for place in places() if place.heading not in closed]
    for place in (*seen, *CLOSER):
        assert await acts_at(viewer, place) == set(), place
    await viewer.go("#/tokens", shows="text=This token may not see this page")
    assert not [url for url in viewer.requests if url.endswith("/v1/tokens")]


@one_store
async def test_a_read_only_server_offers_no_act(viewer: Viewer, read_only: Site) -> None:
    await viewer.open(read_only.url, shows=LISTED)
    assert await _titles(viewer) == _of(listed_pages(), "observe", "admin")
    for place in (*places(), *CLOSER):
        if place.heading != "Tokens":
            assert await acts_at(viewer, place) == set(), place
    await viewer.sees(".badge:has-text('read-only')")


@one_store
async def test_an_operator_of_some_queues_sees_only_these(
    viewer: Viewer, guarded: Site, app: Holdfast
) -> None:
    await sign_in(viewer, guarded.url, await new_token(app, "operate", prefix="shop."))
    await viewer.sees(LISTED)
    queues = viewer.page.locator("table tbody a[href*='queues/']")
    await expect(queues).to_have_text(["shop.orders", "shop.payments"])
    assert await _titles(viewer) == _of(listed_pages(), "observe")
    assert {"Pause…", "Clear…"} < await acts_at(
        viewer, Place("#/queues/shop.orders", "shop.orders")
    )
    assert "Put back…" in await acts_at(viewer, Place(f"#/jobs/{sample_data.DEAD}", "shop.charge"))
    await viewer.go("#/queues/crm", shows="text=There is no such queue")
    closed = [page.title for page in listed_pages() if page.scope == "admin"]
    for place in (*places(), Place("#/workers?name=worker-1", "worker-1")):
        if place.heading not in closed:
            faults = await visit(viewer, place)
            assert not faults, "\n".join(faults)
    await viewer.go("#/jobs", shows="text=Choose a queue")
    await viewer.page.get_by_role("link", name="shop.orders").click()
    await viewer.sees("main tbody tr[data-key]")


@one_store
async def test_an_admin_creates_and_revokes_a_token_and_sets_a_quota(
    viewer: Viewer, guarded: Site, app: Holdfast
) -> None:
    viewer.allow("status of 4.. .*/v1/quotas/")
    await sign_in(viewer, guarded.url, await new_token(app, "admin"))
    await viewer.sees(LISTED)
    pages = listed_pages()
    assert await _titles(viewer) == _of(pages, "observe", "admin")

    await viewer.go("#/tokens", shows="text=Create a token")
    await viewer.press("Create a token")
    await viewer.fill("Name", "mailer")
    await viewer.dialog.get_by_label("produce", exact=True).check()
    await viewer.fill("Only queues that begin with", "mail.")
    await viewer.press("Create the token")
    text = await viewer.dialog.locator(".command code").inner_text()
    assert text.startswith("hf_")
    await viewer.press("Done, I have copied it")
    tokens = Tokens(lambda: app.engine, wall_ms)
    [made] = [token for token in await tokens.all() if token.name == "mailer"]
    assert (made.scopes, made.prefix) == (("produce",), "mail.")
    await expect(viewer.row("mailer")).to_be_visible()
    await viewer.screenshot("tokens-light")
    await viewer.press("Revoke… mailer")
    await viewer.press("Revoke the token")
    await expect(viewer.row("mailer")).to_have_count(0)
    assert "mailer" not in {token.name for token in await tokens.all()}

    await viewer.go("#/quotas", shows="text=Set a quota")
    await viewer.press("Set a quota")
    await viewer.dialog.get_by_label("Whose").select_option("one tenant")
    await viewer.fill("Tenant", "globex")
    await viewer.fill("New jobs", "often")
    await viewer.press("Set the quota")
    await expect(viewer.dialog.locator(".field-error")).to_be_visible()
    await viewer.fill("New jobs", "100/s")
    await viewer.press("Set the quota")
    await expect(viewer.row("globex")).to_contain_text("100 per second")
    quotas = Quotas(lambda: app.engine)
    assert "tenant:globex" in await quotas.all()
    await viewer.press("Remove… tenant:globex")
    await viewer.press("Remove the quota")
    await expect(viewer.row("globex")).to_have_count(0)
    assert "tenant:globex" not in await quotas.all()

    await viewer.go("#/audit", shows="code:has-text('token')")
    # Every act is in the audit log, with its author.
    assert await viewer.page.locator("main tbody tr", has_text="admin").count() >= 4
