"""Signing in with a token, out again, and what ends a session."""

from playwright.async_api import expect

from holdfast.app.application import Holdfast
from holdfast.ops.tokens import Tokens
from holdfast.process import wall_ms
from tests.dashboard.conftest import Site, new_token, one_store, sign_in
from tests.dashboard.viewer import Viewer

QUEUES = "table tbody a[href*='queues/']"
# The browser itself reports the answer to the question who the caller is.
REFUSED = "console error: Failed to load resource: .* status of 401 .*/v1/"


@one_store
async def test_a_token_opens_the_dashboard_until_the_user_signs_out(
    viewer: Viewer, guarded: Site, app: Holdfast
) -> None:
    viewer.allow(REFUSED)
    await sign_in(viewer, guarded.url, await new_token(app, "observe"))
    await viewer.sees(QUEUES)
    [cookie] = await viewer.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert await viewer.page.evaluate("() => document.cookie") == ""
    await viewer.page.get_by_role("button", name="Sign out").click()
    await viewer.sees("input[type=password]")
    assert await viewer.context.cookies() == []


@one_store
async def test_a_wrong_token_is_refused_in_words(viewer: Viewer, guarded: Site) -> None:
    viewer.allow(REFUSED)
    await sign_in(viewer, guarded.url, "hf_wrong_token")
    await viewer.sees("[role=alert]")
    assert await viewer.axe() == []
    await viewer.screenshot("sign-in")


@one_store
async def test_a_revoked_token_ends_the_session(
    viewer: Viewer, guarded: Site, app: Holdfast
) -> None:
    viewer.allow(REFUSED)
    token = await new_token(app, "observe")
    await sign_in(viewer, guarded.url, token)
    await viewer.sees(QUEUES)
    await Tokens(lambda: app.engine, wall_ms).revoke(token.split("_")[1])
    await viewer.sees("input[type=password]")
    await expect(viewer.page.get_by_text("Your session has ended.")).to_be_visible()
