"""Viewer: a person who looks at the dashboard in a browser, and everything that went wrong there.

The browser has no network but loopback. A request to another origin than the server's, a console
message, an uncaught error and a violation of the content security policy are faults, which fail the
test when it ends.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Request,
    async_playwright,
    expect,
)

from tests.dashboard.chromium import Chromium
from tests.sources import ROOT

WIDTH, HEIGHT = 1280, 800
# Only what never appears takes this long.
TIMEOUT_MS = 30_000
SCREENSHOTS = ROOT / "docs" / "screenshots"
_FLAGS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    # A name that is resolved is a request that leaves this machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
_INNER = ("about", "blob", "data")
_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (violation) => {
  const { effectiveDirective, blockedURI, sourceFile, lineNumber, sample } = violation;
  const at = `${sourceFile}:${lineNumber} ${sample}`;
  console.error(`CSP violation: ${effectiveDirective} ${blockedURI} at ${at}`);
});
"""
_RUN_AXE = """async (rules) => {
  // The nodes as they are: neither their selectors nor the style sheets again.
  const options = { resultTypes: ["violations"], selectors: false, preload: false };
  if (rules.length > 0) options.runOnly = rules;
  // The rows of a table have the same markup: a few stand for all of them.
  const context = { include: [document], exclude: ["tbody tr:nth-of-type(n+7)"] };
  const found = await axe.run(context, options);
  return found.violations.map(({ id, impact, help, nodes }) => (
    { id, impact, help, nodes: nodes.map((node) => node.html.slice(0, 300)) }
  ));
}"""

expect.set_options(timeout=TIMEOUT_MS)


class Finding(msgspec.Struct, frozen=True):
    """A rule of axe-core that the page breaks, with the elements that break it."""

    id: str
    impact: str
    help: str
    nodes: tuple[str, ...]


@asynccontextmanager
async def open_browser(chromium: Chromium) -> AsyncIterator[Browser]:
    """A started browser. Starting one takes a second; a context of it, a few milliseconds."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.program,
            env={**os.environ, **chromium.environment},
            args=_FLAGS,
        )
        try:
            yield browser
        finally:
            await browser.close()


class Viewer:
    """One page in a browser context of its own: no cookie, cache or storage is shared."""

    def __init__(self, context: BrowserContext, page: Page) -> None:
        self.context = context
        self.page = page
        self.requests: list[str] = []
        """Every URL that was requested, in order."""
        self._origins: set[str] = set()
        self._allowed: list[re.Pattern[str]] = []
        self._faults: list[str] = []
        self._faulty = asyncio.Event()
        context.on("request", self._requested)
        context.on("console", self._printed)
        context.on("weberror", lambda failed: self._fault(f"uncaught: {failed.error}"))
        context.on("dialog", self._asked)

    async def open(self, url: str, shows: str) -> None:
        """Load a page, and wait until an element that matches the CSS selector is visible."""
        at = urlsplit(url)
        self._origins.add(f"{at.scheme}://{at.netloc}")
        await self.page.goto(url, wait_until="commit")
        await self.sees(shows)

    async def go(self, address: str, shows: str) -> None:
        """Follow an address of the page that is open, such as "#/jobs". It takes a tenth of the
        time of a load."""
        await self.page.evaluate("(address) => { location.hash = address }", address)
        await self.sees(shows)

    async def loaded(self) -> None:
        """Wait until no part of the page is loading."""
        await expect(self.page.locator(".loading, [aria-busy=true]")).to_have_count(0)

    async def sees(self, selector: str) -> Locator:
        """The first visible element that matches the CSS selector, once there is one."""
        found = self.page.locator(selector).filter(visible=True).first
        await expect(found).to_be_visible()
        return found

    async def press(self, name: str, within: Locator | None = None) -> None:
        """Press the button with this name, in the open dialog if there is one."""
        if within is None:
            within = self.dialog if await self.dialog.count() else self.page.locator("body")
        await within.get_by_role("button", name=name, exact=True).click()

    async def fill(self, label: str, text: str) -> None:
        """Replace the text of a field of the open dialog."""
        await self.dialog.get_by_label(label, exact=True).fill(text)

    @property
    def dialog(self) -> Locator:
        """The dialog that is open, the last one if one has opened another."""
        return self.page.locator("dialog[open]").last

    def row(self, name: str) -> Locator:
        """The row of a table whose head contains this text."""
        return self.page.locator("tbody tr").filter(has=self.page.locator("th", has_text=name))

    async def at(self, width: int, height: int = HEIGHT) -> None:
        """Make the window this wide."""
        await self.page.set_viewport_size({"width": width, "height": height})

    async def prefers(self, scheme: str) -> None:
        """Prefer "dark" or "light"."""
        assert scheme in ("dark", "light")
        await self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    async def overflow(self) -> int:
        """By how many pixels the page is wider than the window; 0 if it does not scroll
        sideways."""
        root = "document.documentElement"
        # Without the room that a page may keep free for a scroll bar.
        width = f"{root}.getBoundingClientRect().width"
        return int(await self.page.evaluate(f"() => Math.floor({root}.scrollWidth - {width})"))

    async def main_text(self) -> str:
        """The text of the page, without its frame."""
        return await self.page.locator("main").inner_text()

    async def focused(self) -> str:
        """The text, label or title of the element that has the keyboard."""
        return str(
            await self.page.evaluate(
                "() => { const e = document.activeElement; return e === document.body ? '' : "
                "(e.ariaLabel || e.labels?.[0]?.innerText || e.innerText || e.title || e.id) }"
            )
        )

    async def axe(self, *rules: str) -> list[Finding]:
        """The serious and critical findings of axe-core, by all rules unless some are named."""
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(_axe_script())
        found = msgspec.convert(await self.page.evaluate(_RUN_AXE, rules), list[Finding])
        return [each for each in found if each.impact in ("serious", "critical")]

    async def heap_mb(self) -> float:
        """The memory that the page's own objects use, garbage included."""
        session = await self.context.new_cdp_session(self.page)
        try:
            used = await session.send("Runtime.getHeapUsage")
            return float(used["usedSize"]) / 1_000_000
        finally:
            await session.detach()

    async def screenshot(self, name: str) -> None:
        """Write docs/screenshots/NAME.png if `HOLDFAST_SCREENSHOTS` is set."""
        if os.environ.get("HOLDFAST_SCREENSHOTS"):
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            await self.page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")

    def allow(self, pattern: str) -> None:
        """Faults that match, before and after this, are expected: a browser itself prints a message
        about every refused request."""
        self._allowed.append(re.compile(pattern))

    @property
    def faults(self) -> list[str]:
        """The errors that were not allowed."""
        return [each for each in self._faults if not any(one.search(each) for one in self._allowed)]

    async def take_faults(self) -> list[str]:
        """The faults until now, which are forgotten."""
        if not self.page.is_closed():
            # Messages of what ran until now are here before the answer to this.
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await self.page.evaluate("() => new Promise((done) => setTimeout(done))")
        found = self.faults
        self._faults.clear()
        return found

    async def first_fault(self) -> str:
        """The first error, once there is one."""
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            await self._faulty.wait()
        return self._faults[0]

    def _fault(self, text: str) -> None:
        self._faults.append(text[:2_000])
        self._faulty.set()

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)
        at = urlsplit(request.url)
        if at.scheme not in _INNER and f"{at.scheme}://{at.netloc}" not in self._origins:
            self._fault(f"foreign request: {request.method} {request.url}")

    async def _asked(self, dialog: Dialog) -> None:
        self._fault(f"dialog: {dialog.message}")
        # Until then the page does nothing.
        await dialog.dismiss()

    def _printed(self, message: ConsoleMessage) -> None:
        place = message.location
        at = f"{place['url']}:{place['lineNumber']}"
        self._fault(f"console {message.type}: {message.text} at {at}")


@asynccontextmanager
async def open_viewer(browser: Browser, **options: Any) -> AsyncIterator[Viewer]:
    """A viewer with a page; `options` are those of a browser context. Fails if there were
    faults."""
    context = await browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce", **options
    )
    try:
        context.set_default_timeout(TIMEOUT_MS)
        await context.add_init_script(_REPORT_VIOLATIONS)
        viewer = Viewer(context, await context.new_page())
        yield viewer
        faults = await viewer.take_faults()
    finally:
        # If the browser crashed, the test has seen that.
        with suppress(Error):
            await context.close()
    assert not faults, "\n".join(faults)


def _axe_script() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()
