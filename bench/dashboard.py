"""The benchmark `dashboard`: the first data of each page among many jobs, and the cost of viewers.

The server is measured with and without viewers in turns, so that a slow second of a shared machine
affects both equally. Viewers and jobs come from separate processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.concurrency import percentile
from bench.dashboard_pages import PAGES, page_steps
from bench.dashboard_store import FLOW, fill
from bench.processes import Child, background, cpu_ns
from bench.report import Report
from bench.server import SERVE
from bench.store_factory import store_factory
from bench.stores import ENGINES, EngineName, Store, opened
from bench.viewers import Shown
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.ops.queues import Pause, pause_queue, resume_queue

VIEWERS = 50
VIEWERS_GOAL = 0.5
IDLE_PERCENT_MAX = 0.5
DRAIN_GOAL = 0.95
OWN_ACT_S_MAX, OTHER_ACT_S_MAX = 1.0, 3.0
ACT_S_MAX = 60
SETTLE_S = 10.0
"""Pause before an idle server is measured."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults. `rate` is in jobs per second."""

    jobs: int = 1_000_000
    queues: int = 200
    repeats: int = 5
    turn_s: float = 4.0
    idle_s: float = 20.0
    rate: float = 100.0
    acts: int = 20
    viewers: int = VIEWERS
    clients: int = 2


QUICK = Sizes(jobs=20_000, repeats=2, turn_s=1.0, idle_s=3.0, acts=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    engines: tuple[EngineName, ...] = ENGINES
    sizes: Sizes = Sizes()


async def run(options: Options, log: Log) -> Report:
    """Run on each engine with full durability, in temporary stores."""
    report = Report("dashboard")
    sizes = options.sizes
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for engine in options.engines:
            with store_factory(engine, Path(name), sync_delay_ms=0) as stores:
                store = await stores.store("dashboard")
                log(f"{engine}: {sizes.jobs:,} jobs in {sizes.queues} queues")
                await fill(store, jobs=sizes.jobs, queues=sizes.queues)
                await _measure(store, sizes, report, log)
    return report


async def _measure(store: Store, sizes: Sizes, report: Report, log: Log) -> None:
    if store.engine == "sqlite":
        log("sqlite: the work of each page")
        steps = await page_steps(SQLiteEngine(store.place))
        report.section(
            f"work of the first data of a page: {sizes.jobs:,} jobs in {sizes.queues} queues,"
            " nothing cached"
        )
        for page, value in steps.items():
            report.cost(store.engine, page, value, unit="VM steps")
    line = ("-c", SERVE, "serve", "--url", _store_url(store), "--port", "0", "--json")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(background(*line, "--no-upkeep", quiet=True))
        address = (await server.read())["server"]
        hold = ("-m", "bench.viewers", "hold", address.rpartition(":")[2], FLOW)
        holder = await stack.enter_async_context(background(*hold))
        bench = _Bench(sizes, report, log, store, server, address, holder)
        await bench.pages()
        await bench.acts()
        await bench.viewers()
        await bench.idle()
        await bench.drain()


class _Bench:
    """The measurements of one server."""

    def __init__(
        self,
        sizes: Sizes,
        report: Report,
        log: Log,
        store: Store,
        server: Child,
        url: str,
        holder: Child,
    ) -> None:
        self._sizes = sizes
        self._report = report
        self._log = log
        self._store = store
        self._engine = store.engine
        self._store_url = _store_url(store)
        self._server = server
        self._url = url
        self._port = url.rpartition(":")[2]
        self._holder = holder

    async def pages(self) -> None:
        """Each turn loads all pages; the first turn only warms up."""
        sizes = self._sizes
        times: dict[str, list[float]] = {page: [] for page in PAGES}
        for turn in range(-1, sizes.repeats):
            self._log(f"{self._engine}: pages, turn {max(turn, 0) + 1} of {sizes.repeats}")
            for page, paths in PAGES.items():
                started = time.perf_counter()
                for path in paths:
                    await asyncio.to_thread(_get, self._url + path)
                if turn >= 0:
                    times[page].append((time.perf_counter() - started) * 1000)
        self._report.section(
            f"first data of a page, all its requests one after the other: {sizes.jobs:,} jobs in"
            f" {sizes.queues} queues"
        )
        for page, found in times.items():
            self._report.cost(self._engine, page, statistics.median(found), unit="ms")

    async def acts(self) -> None:
        """How soon a viewer sees that a queue was paused or resumed."""
        self._report.section(
            f"from an act until a viewer sees it, {self._sizes.jobs:,} jobs in"
            f" {self._sizes.queues} queues; the reference is the bound"
        )
        line = ("-m", "bench.viewers", "watch", self._port, FLOW)
        async with background(*line) as watcher, opened(self._store) as engine:
            for _ in range(2):
                await watcher.read()

            async def by_this_server(*, pause: bool) -> None:
                path = f"/v1/queues/{FLOW}/{'pause' if pause else 'resume'}"
                await asyncio.to_thread(_post, self._url + path)

            async def by_another_process(*, pause: bool) -> None:
                if pause:
                    await pause_queue(engine, FLOW, Pause(by="bench"))
                else:
                    await resume_queue(engine, FLOW)

            for name, act, bound in (
                ("this server", by_this_server, OWN_ACT_S_MAX),
                ("another process", by_another_process, OTHER_ACT_S_MAX),
            ):
                self._log(f"{self._engine}: acts of {name}")
                waits: dict[str, list[float]] = {"queue": [], "overview": []}
                for number in range(self._sizes.acts):
                    # Any moment between two polls.
                    await asyncio.sleep(number % 7 / 7)
                    pause = number % 2 == 0
                    started = time.monotonic_ns()
                    await act(pause=pause)
                    for where, at in (await _shown(watcher, pause=pause)).items():
                        waits[where].append((at - started) / 1e9)
                for where, found in waits.items():
                    for part in (0.5, 0.95):
                        self._report.cost(
                            self._engine,
                            f"act of {name}, on the page {where}, p{part * 100:.0f}",
                            percentile(sorted(found), part),
                            unit="s",
                            reference=bound,
                            goal=1,
                        )

    async def viewers(self) -> None:
        """CPU of the server while another process works on the store. A slow topic is read every
        other second, so turns are longer and fewer."""
        sizes = self._sizes
        turns = sizes.repeats // 2 + 1
        shares: dict[int, list[float]] = {0: [], 1: [], sizes.viewers: []}
        pace = ("-m", "bench.remote", "pace", self._store_url, str(sizes.rate))
        async with background(*pace) as flow:
            await flow.read()
            for turn in range(turns):
                self._log(f"{self._engine}: viewers, turn {turn + 1} of {turns}")
                for count, found in shares.items():
                    await self._holder.ask(count)
                    await asyncio.sleep(sizes.turn_s / 2)
                    found.append(await self._share(2 * sizes.turn_s))
        none, one, many = (statistics.median(found) * 100 for found in shares.values())
        self._report.section(
            f"CPU of the server while another process runs {sizes.rate:g} jobs per second: the"
            " overview, the workers and a queue; the reference is the CPU with one viewer"
        )
        self._report.cost(self._engine, "no viewer", none, unit="% of a core")
        self._report.cost(self._engine, "one viewer", one, unit="% of a core")
        self._report.cost(
            self._engine,
            f"{sizes.viewers} viewers",
            many,
            unit="% of a core",
            reference=one,
            goal=VIEWERS_GOAL,
        )

    async def idle(self) -> None:
        """CPU of the server while nothing happens."""
        sizes = self._sizes
        shares: dict[int, float] = {}
        for count in (0, 1, sizes.viewers):
            self._log(f"{self._engine}: {count} idle viewers")
            await self._holder.ask(count)
            await asyncio.sleep(min(SETTLE_S, sizes.idle_s))
            shares[count] = await self._share(sizes.idle_s) * 100
        self._report.section("more CPU of the server with idle viewers; the reference is the bound")
        for count in (1, sizes.viewers):
            self._report.cost(
                self._engine,
                "an idle viewer" if count == 1 else f"each of {count} idle viewers",
                max(0.0, shares[count] - shares[0]) / count,
                unit="% of a core",
                reference=IDLE_PERCENT_MAX,
                goal=1,
            )

    async def drain(self) -> None:
        """Jobs through the server, with viewers and without, in twice as many turns of half the
        length."""
        sizes = self._sizes
        turns, turn_s = 2 * sizes.repeats, sizes.turn_s / 2
        rates: dict[int, list[float]] = {0: [], sizes.viewers: []}
        cpu_us: dict[int, list[float]] = {0: [], sizes.viewers: []}
        async with contextlib.AsyncExitStack() as stack:
            line = ("-m", "bench.remote", "cycle", self._url, str(turn_s))
            clients = [
                await stack.enter_async_context(background(*line)) for _ in range(sizes.clients)
            ]
            for client in clients:
                await client.read()
            for turn in range(-1, turns):
                self._log(f"{self._engine}: drain, turn {max(turn, 0) + 1} of {turns}")
                # Whichever is first in a turn is second in the next one.
                for count in sorted(rates, reverse=turn % 2 == 0):
                    await self._holder.ask(count)
                    before, started = cpu_ns(self._server.pid), time.monotonic()
                    done = await _drained(clients)
                    if turn >= 0:
                        rates[count].append(done / (time.monotonic() - started))
                        cpu_us[count].append((cpu_ns(self._server.pid) - before) / done / 1000)
        self._report.section(
            f"enqueue, lease and settle in hundreds through the server, {sizes.clients} processes;"
            " the reference is without viewers"
        )
        without, with_viewers = (statistics.median(found) for found in rates.values())
        self._report.rate(
            self._engine,
            f"drained with {sizes.viewers} viewers",
            with_viewers,
            unit="jobs/s",
            reference=without,
            goal=DRAIN_GOAL,
        )
        without, with_viewers = (statistics.median(found) for found in cpu_us.values())
        self._report.cost(
            self._engine, "CPU of a job of it", with_viewers, unit="µs", reference=without
        )

    async def _share(self, seconds: float) -> float:
        """The share of a core that the server uses."""
        before, started = cpu_ns(self._server.pid), time.monotonic_ns()
        await asyncio.sleep(seconds)
        return (cpu_ns(self._server.pid) - before) / (time.monotonic_ns() - started)


def _store_url(store: Store) -> str:
    return f"sqlite:///{store.place}" if store.engine == "sqlite" else store.place


async def _shown(watcher: Child, *, pause: bool) -> dict[str, int]:
    """When each part of the stream showed an act."""
    found: dict[str, int] = {}
    async with asyncio.timeout(ACT_S_MAX):
        while len(found) < 2:
            shown = msgspec.convert(await watcher.read(), Shown)
            if shown.paused is pause:
                found[shown.where] = shown.at
    return found


async def _drained(clients: list[Child]) -> int:
    """One turn of all clients: the number of jobs."""
    for client in clients:
        client.write("go")
    return sum([await client.read() for client in clients])


def _get(url: str) -> None:
    """Read a response; of a stream everything up to its first snapshot."""
    with urllib.request.urlopen(url, timeout=ACT_S_MAX) as answer:
        if "/v1/live" not in url:
            answer.read()
            return
        for line in answer:
            if line.startswith(b'data: {"topic"'):
                return
    raise ConnectionError("a stream ended before its first snapshot")


def _post(url: str) -> None:
    request = urllib.request.Request(
        url, data=b"{}", headers={"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=ACT_S_MAX) as answer:
        answer.read()
