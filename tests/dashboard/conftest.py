"""A browser for each test process, and servers with something to look at.

Fixtures of the package are shared: a test acts only on queues and jobs that it made itself.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from playwright.async_api import Browser

from holdfast.app.application import Holdfast
from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.ops.tokens import TokenRequest, Tokens
from holdfast.process import wall_ms
from tests import services
from tests.cli.program import command, environment
from tests.dashboard import sample_data
from tests.dashboard.chromium import Chromium, find_chromium, given_chromium
from tests.dashboard.viewer import Viewer, open_browser, open_viewer
from tests.server.server_process import ServerProcess, server_process

STORES = ["sqlite", "postgresql"]
_DEEPLY_TESTED = STORES if os.environ.get("HOLDFAST_BROWSER_STORES") == "all" else STORES[:1]

one_store = pytest.mark.parametrize("store", _DEEPLY_TESTED, indirect=True, scope="package")
"""For what hardly depends on the store. With `HOLDFAST_BROWSER_STORES=all` it runs on each."""
other_store = pytest.mark.parametrize("store", ["postgresql"], indirect=True, scope="package")
"""For what is tested in more depth on the first store."""


class Site(NamedTuple):
    """A server, and its store."""

    server: ServerProcess
    store: str

    @property
    def url(self) -> str:
        """The address of the dashboard."""
        return f"{self.server.url}/"


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    try:
        given = given_chromium()
    except ServiceUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    with services.needed("Chromium", "chromium"):
        return given or find_chromium()


# Of the package, not of the session: the tests of other packages have loops of their own.
@pytest.fixture(scope="package")
async def browser(chromium: Chromium) -> AsyncIterator[Browser]:
    async with open_browser(chromium) as browser:
        yield browser


@pytest.fixture
async def viewer(browser: Browser) -> AsyncIterator[Viewer]:
    async with open_viewer(browser) as viewer:
        yield viewer


@pytest.fixture(scope="package", params=STORES)
async def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """A store with jobs in every state."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('dashboard')}/jobs.db"
        await sample_data.fill(url)
        yield url
        return
    with services.fresh_database(request.getfixturevalue("pg_server_dsn")) as url:
        await sample_data.fill(url)
        yield url


@pytest.fixture(scope="package")
def site(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that admits this user without signing in."""
    with server_process(tmp_path_factory.mktemp("site"), url=store) as server:
        yield Site(server, store)


@pytest.fixture(scope="package")
async def open_page(browser: Browser, site: Site) -> AsyncIterator[Viewer]:
    """The page that `dashboard` gives to one test after the other."""
    async with open_viewer(browser) as viewer:
        await viewer.open(site.url, shows="main h1")
        yield viewer


@pytest.fixture
async def dashboard(open_page: Viewer) -> AsyncIterator[Viewer]:
    """A viewer in front of the open dashboard: a test goes to the address that it needs, without a
    load, which takes a second. Only a test that failed leaves a dialog behind."""
    if await open_page.page.locator("dialog[open]").count():
        await open_page.page.reload()
    await open_page.page.evaluate("() => document.activeElement.blur()")
    yield open_page
    faults = await open_page.take_faults()
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="package")
def read_only(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server of the same store that changes nothing."""
    with server_process(tmp_path_factory.mktemp("read_only"), "--read-only", url=store) as server:
        yield Site(server, store)


@pytest.fixture(scope="package")
def guarded(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server of the same store that requires a token."""
    with server_process(tmp_path_factory.mktemp("guarded"), "--auth", url=store) as server:
        yield Site(server, store)


@pytest.fixture
async def app(store: str) -> AsyncIterator[Holdfast]:
    """The store, for what others do while somebody looks."""
    async with Holdfast(store) as app:
        yield app


@pytest.fixture
async def queue(app: Holdfast) -> str:
    """The name of an empty queue of this test's own. It stays: the page may still show it."""
    name = f"own-{uuid4().hex[:8]}"
    await app.declare(name)
    return name


@pytest.fixture
async def worker(app: Holdfast, store: str, tmp_path: Path) -> AsyncIterator[str]:
    """The name of a running worker, which runs commands from a queue of the same name."""
    name = f"worker-{uuid4().hex[:8]}"
    await app.declare(name)
    line = command("worker", "start", "--url", store, "--queues", name, "--name", name)
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any("running on" in said for said in process.stderr)
            yield name
        finally:
            process.terminate()
            process.wait()
    await app.drop(name)


async def new_token(app: Holdfast, *scopes: str, prefix: str = "") -> str:
    """A token with these scopes, for queues with the prefix."""
    tokens = Tokens(lambda: app.engine, wall_ms)
    wanted = TokenRequest(name="-".join(scopes), scopes=scopes, prefix=prefix)
    text, _ = await tokens.create(wanted)
    return text


async def sign_in(viewer: Viewer, url: str, token: str) -> None:
    """As a person who uses only the keyboard."""
    await viewer.open(url, shows="input[type=password]")
    assert await viewer.focused() == "Token"
    await viewer.page.keyboard.type(token)
    await viewer.page.keyboard.press("Enter")
