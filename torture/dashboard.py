"""Open the dashboard in a real browser: hostile text of every size, a server that is killed again
and again, and acts on many jobs that must survive it. Every console message, uncaught error and
violation of the content security policy counts as a violation."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from playwright.async_api import Browser, expect

from holdfast.app.application import Holdfast
from holdfast.conformance.chaos.verify import percentile
from holdfast.core.model import JobFilter, State
from holdfast.core.verdict import Expedite
from tests.dashboard import hostile_data, sample_data
from tests.dashboard.chromium import find_chromium, given_chromium
from tests.dashboard.test_hostile_text import DETAILS, SAMPLES, look
from tests.dashboard.viewer import Viewer, open_browser, open_viewer
from tests.dashboard.walk import places
from torture import results
from torture.private_server import PrivateServer
from torture.stores import ENGINES, store

PAGE_MB_MAX = 200
OWN_MS_MAX, OTHERS_MS_MAX = 1_000, 3_000
QUEUE = "many"
_BATCH = 1_000
_UNREACHABLE = "console error: Failed to load resource: net::ERR_"
_STALE = "text=may be out of date"
_MEASURE_OWN = """async ({ label, paused }) => {
  const found = [...document.querySelectorAll("dialog[open] button, main button")];
  const button = found.filter((each) => each.innerText.trim() === label).at(-1);
  const badges = () => [...document.querySelectorAll("h1 .badge")];
  const shown = () => badges().some((each) => each.innerText === "paused");
  const started = performance.now();
  button.click();
  while (shown() !== paused) await new Promise(requestAnimationFrame);
  return performance.now() - started;
}"""
_AWAIT_OTHERS = """async ({ queue, paused }) => {
  const row = () => document.querySelector(`tbody a[href$="/queues/${queue}"]`)?.closest("tr");
  const shown = () => row()?.innerText.includes("paused");
  while (shown() !== paused) await new Promise(requestAnimationFrame);
  return Date.now();
}"""


class Site(NamedTuple):
    """A server that can be killed, its store, and a browser."""

    server: PrivateServer
    app: Holdfast
    browser: Browser


class Part(NamedTuple):
    """The figures that a part measured, and the faults that it found."""

    figures: dict[str, Any]
    wrong: list[str]


Fill = Callable[[str], Awaitable[None]]
Run = Callable[[Site, argparse.Namespace], Awaitable[Part]]


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    return asyncio.run(_run(given))


async def _run(given: argparse.Namespace) -> int:
    async def fill_hostile(url: str) -> None:
        await hostile_data.fill(url, labels=given.labels, error_bytes=given.error_bytes)

    parts: dict[str, tuple[Fill, Run]] = {
        "hostile text": (fill_hostile, _hostile),
        "restarts": (sample_data.fill, _restarts),
        "acts": (_fill_nothing, _acts),
    }
    outcomes = []
    async with open_browser(given_chromium() or find_chromium()) as browser:
        for name, (fill, part) in parts.items():
            print(f"dashboard, {name} on {given.engine}: seed {given.seed}", flush=True)
            started = time.monotonic()
            async with _site(given.engine, browser, fill) as site:
                figures, wrong = await part(site, given)
            outcomes.append(results.finish_part(name, given, started, figures, wrong))
    return results.conclude("dashboard", outcomes, given)


@asynccontextmanager
async def _site(engine: str, browser: Browser, fill: Fill) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as directory:
        home = Path(directory)
        with store(engine, home) as chosen:
            await fill(chosen.url)
            with PrivateServer(chosen.url, home, upkeep=True) as server:
                async with Holdfast(chosen.url) as app:
                    yield Site(server, app, browser)


async def _fill_nothing(_url: str) -> None:
    """The part adds its jobs itself."""


async def _hostile(site: Site, _given: argparse.Namespace) -> Part:
    """Every page, wide and on a phone, with every text as long and as hostile as it can be."""
    heap_mb = page_mb = 0.0
    async with _viewer(site) as (viewer, wrong):
        await viewer.open(f"{site.server.url}/", shows="main h1")
        found = (*places(SAMPLES), *DETAILS)
        for place in found:
            wrong.extend(await look(viewer, place, heap_mb_max=PAGE_MB_MAX))
            heap_mb = max(heap_mb, await viewer.heap_mb())
            page_mb = max(page_mb, await _page_mb(site.browser, viewer))
    if page_mb > PAGE_MB_MAX:
        wrong.append(f"the page used {page_mb:.0f} MB")
    return Part({"pages": len(found), "heap_mb": heap_mb, "page_mb": page_mb}, wrong)


async def _restarts(site: Site, given: argparse.Namespace) -> Part:
    """The server is killed; the page says so, and shows what others did once it is back."""
    queue = next(iter(sample_data.QUEUES))
    own, others, back = [], [], []
    async with _viewer(site) as (viewer, wrong):
        viewer.allow(_UNREACHABLE)
        await viewer.open(f"{site.server.url}/", shows=f"tbody a[href$='/queues/{queue}']")
        for kill in range(given.kills):
            site.server.kill()
            await viewer.sees(_STALE)
            site.server.restart()
            started = time.monotonic()
            # It tries again by itself; this only shortens the pause.
            await viewer.page.evaluate("() => dispatchEvent(new Event('online'))")
            await expect(viewer.page.locator(_STALE)).to_have_count(0)
            back.append((time.monotonic() - started) * 1000)
            others.append(await _others_act(site, viewer, queue, paused=kill % 2 == 0))
            if kill % 2 == 0:
                own += await _own_acts(viewer, queue)
                await site.app.declare(queue, paused=True)
    wrong += _late("an act on the page", own, OWN_MS_MAX)
    wrong += _late("an act of others", others, OTHERS_MS_MAX)
    measured = {"back_ms": back, "own_ms": own, "others_ms": others}
    return Part({"server_kills": given.kills, **_spread(measured)}, wrong)


async def _acts(site: Site, given: argparse.Namespace) -> Part:
    """An act on everything that matches, with the server killed while it runs. Jobs that others
    changed after the count stay as they are; all others are changed once, to version 2."""
    draw = Random(given.seed)
    await site.app.declare(QUEUE, paused=True)
    ids: list[str] = []
    for start in range(0, given.jobs, _BATCH):
        size = min(_BATCH, given.jobs - start)
        jobs = [site.app.job("mail.send", number, queue=QUEUE) for number in range(size)]
        ids += [receipt.id for receipt in await site.app.enqueue_many(jobs)]
    touched = draw.sample(ids, min(100, len(ids) // 2))
    kills = 0
    async with _viewer(site) as (viewer, wrong):
        viewer.allow(_UNREACHABLE)
        viewer.allow("status of 50[34]")
        await viewer.open(f"{site.server.url}/#/jobs?queue={QUEUE}", shows="tbody tr[data-key]")
        await viewer.press("Act on all")
        await viewer.press("Cancel…")
        await viewer.press("Count the jobs")
        await viewer.fill(f"Type {len(ids):,} to confirm", str(len(ids)))
        for at in range(0, len(touched), _BATCH):
            wanted = JobFilter(ids=tuple(touched[at : at + _BATCH]))
            await site.app.engine.amend(wanted, Expedite(), limit=_BATCH)
        await viewer.press(f"Cancel {len(ids):,} jobs")
        act = viewer.page.locator(".act")
        await expect(act).to_contain_text("of")
        while kills < given.act_kills and "running" in await act.inner_text():
            await asyncio.sleep(draw.uniform(0.2, 1.0))
            site.server.kill()
            kills += 1
            site.server.restart()
            await viewer.page.evaluate("() => dispatchEvent(new Event('online'))")
            await expect(viewer.page.locator(_STALE)).to_have_count(0)
        await expect(act).to_contain_text("done", timeout=given.wait * 1000)
        text = await act.inner_text()
        if f"{len(ids) - len(touched):,} of {len(ids):,} changed" not in text:
            wrong.append(f"the page says: {text}")
    wrong += await _wrong_jobs(site.app, frozenset(touched))
    changed = len(ids) - len(touched)
    figures = {"jobs": len(ids), "server_kills": kills, "changed": changed}
    return Part({**figures, "left_alone": len(touched)}, wrong)


async def _wrong_jobs(app: Holdfast, touched: frozenset[str]) -> list[str]:
    wrong = []
    async for job in app.jobs(JobFilter(queue=QUEUE)):
        expected = (State.WAITING, 2) if job.id in touched else (State.CANCELLED, 2)
        if (job.state, job.version) != expected:
            wrong.append(f"job {job.id} is {job.state} at version {job.version}")
    return wrong


@asynccontextmanager
async def _viewer(site: Site) -> AsyncIterator[tuple[Viewer, list[str]]]:
    """A viewer, and a list that takes its faults."""
    wrong: list[str] = []
    async with open_viewer(site.browser) as viewer:
        yield viewer, wrong
        wrong += await viewer.take_faults()


async def _own_acts(viewer: Viewer, queue: str) -> list[float]:
    """Resume a paused queue, pause it and resume it on its page: how long each takes to show."""
    await viewer.go(f"#/queues/{queue}", shows="h1 .badge")
    took = [await viewer.page.evaluate(_MEASURE_OWN, {"label": "Resume", "paused": False})]
    await viewer.press("Pause…")
    took.append(await viewer.page.evaluate(_MEASURE_OWN, {"label": "Pause", "paused": True}))
    took.append(await viewer.page.evaluate(_MEASURE_OWN, {"label": "Resume", "paused": False}))
    await viewer.go("#/", shows=f"tbody a[href$='/queues/{queue}']")
    return took


async def _others_act(site: Site, viewer: Viewer, queue: str, *, paused: bool) -> float:
    """Pause or resume a queue in the store: how long it takes until the overview shows it."""
    wanted = {"queue": queue, "paused": paused}
    shown = asyncio.ensure_future(viewer.page.evaluate(_AWAIT_OTHERS, wanted))
    await asyncio.sleep(0)
    started = time.time()
    await site.app.declare(queue, paused=paused)
    return float(await shown) - started * 1000


async def _page_mb(browser: Browser, viewer: Viewer) -> float:
    """The private memory of the largest process that draws pages, without garbage."""
    page = await viewer.context.new_cdp_session(viewer.page)
    session = await browser.new_browser_cdp_session()
    try:
        await page.send("HeapProfiler.collectGarbage")
        found = await session.send("SystemInfo.getProcessInfo")
    finally:
        await session.detach()
        await page.detach()
    pids = [each["id"] for each in found["processInfo"] if each["type"] == "renderer"]
    return max((_private_mb(pid) for pid in pids), default=0.0)


def _private_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = [line.split() for line in text.splitlines() if line.startswith("Private_")]
    return sum(int(kib) for _, kib, _ in lines) / 1000


def _late(what: str, took_ms: list[float], bound: int) -> list[str]:
    return [f"{what} was shown after {each:.0f} ms" for each in took_ms if each > bound]


def _spread(measured: dict[str, list[float]]) -> dict[str, float]:
    figures = {}
    for name, found in measured.items():
        figures[f"{name}_p50"] = percentile(found, 0.5)
        figures[f"{name}_max"] = max(found, default=0.0)
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture dashboard", description=__doc__)
    parser.add_argument(
        "--engine", choices=ENGINES, default="sqlite", help="engine to test [default: sqlite]"
    )
    for name, size, text in (
        ("--labels", 10_000, "labels of each hostile job"),
        ("--error-bytes", 1_000_000, "bytes of each hostile error"),
        ("--kills", 50, "kills of the server under an open page"),
        ("--jobs", 100_000, "jobs of the act on everything that matches"),
        ("--act-kills", 20, "kills of the server while that act runs, at most"),
        ("--wait", 600, "seconds that the act may take after the last kill"),
    ):
        parser.add_argument(
            name, type=int, default=size, metavar="N", help=f"{text} [default: {size}]"
        )
    results.add_options(parser)
    return parser
