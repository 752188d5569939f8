"""The API page opens without a fault, and no fault of a page goes unnoticed."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.async_api import Browser, expect

from tests.dashboard.conftest import Site, one_store
from tests.dashboard.viewer import Viewer, open_viewer

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
PAGE = """<!doctype html><html lang="en"><title>A page</title><link rel="icon" href="data:,">
<main><h1>A page</h1>{body}<p id="end">end</p></main>{tag}</html>"""


@contextmanager
def page_with(script: str = "", body: str = "", policy: str = CSP) -> Iterator[str]:
    """The URL of a page with this script, by default under the policy of the dashboard.

    A page without a script asks for none: the server may be gone by the time it would be read.
    """
    tag = '<script src="script.js"></script>' if script else ""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_script = self.path == "/script.js"
            text = script if is_script else PAGE.format(body=body, tag=tag)
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if is_script else "text/html")
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


async def look_until_fault(browser: Browser, url: str) -> None:
    async with open_viewer(browser) as viewer:
        await viewer.open(url, shows="#end")
        await viewer.first_fault()


@one_store
async def test_the_api_page_opens(viewer: Viewer, site: Site) -> None:
    await viewer.open(f"{site.url}v1/docs", shows="text=A job, from start to end")
    await viewer.sees("h1:has-text('Holdfast API')")
    listed = viewer.page.locator(".nav-bar-path", has_text="/v1/queues/{queue}/jobs").first
    await expect(listed).to_contain_text("post", ignore_case=True)
    assert any(url.endswith("/v1/openapi.json") for url in viewer.requests)
    menu = viewer.page.locator("nav").first
    await expect(menu).to_have_css("font-family", re.compile("^system-ui"))
    await listed.click()
    await viewer.sees("text=Enqueue jobs in a queue")


async def test_a_page_without_faults_passes(viewer: Viewer) -> None:
    with page_with("document.title = 'ready'") as url:
        await viewer.open(url, shows="#end")
        await viewer.page.wait_for_function("() => document.title === 'ready'")
    assert await viewer.overflow() == 0
    assert await viewer.axe() == []


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("console.log('left behind')", "console log: left behind"),
        ("setTimeout(() => { throw new Error('boom') })", "uncaught: boom"),
        ("Promise.reject(new Error('lost'))", "uncaught: lost"),
        ("alert('stop')", "dialog: stop"),
        ("fetch('https://example.org/x').catch(() => {})", "CSP violation: connect-src"),
        ("try { eval('1') } catch {}", "CSP violation: require-trusted-types-for"),
        ("try { end.innerHTML = '<b>x</b>' } catch {}", "CSP violation: require-trusted-types-for"),
        ("end.setAttribute('style', 'color: red')", "CSP violation: style-src"),
    ],
)
async def test_a_fault_fails_the_test(browser: Browser, script: str, fault: str) -> None:
    with page_with(script) as url, pytest.raises(AssertionError, match=fault):
        await look_until_fault(browser, url)


async def test_a_request_to_another_origin_fails_the_test(browser: Browser) -> None:
    script = "fetch('http://example.org/x').catch(() => {})"
    fault = r"foreign request: GET http://example\.org/x"
    with page_with(script, policy="") as url, pytest.raises(AssertionError, match=fault):
        await look_until_fault(browser, url)


async def test_an_expected_fault_is_allowed(viewer: Viewer) -> None:
    viewer.allow("^console log: expected")
    with page_with("console.log('expected, as announced'); document.title = 'ready'") as url:
        await viewer.open(url, shows="#end")
        await viewer.page.wait_for_function("() => document.title === 'ready'")


async def test_axe_finds_what_is_serious(viewer: Viewer) -> None:
    with page_with(body='<button></button><img src="data:,">') as url:
        await viewer.open(url, shows="#end")
        assert {finding.id for finding in await viewer.axe()} == {"button-name", "image-alt"}


async def test_a_page_too_wide_for_the_window_is_noticed(viewer: Viewer) -> None:
    with page_with(body="<pre>" + "x" * 100 + "</pre>") as url:
        await viewer.at(360)
        await viewer.open(url, shows="#end")
        assert await viewer.overflow() > 100
