"""The benchmark `server`: compares requests with a bare framework, and batches with the embedded
engine.

Each pair is measured in turns, so that a slow second of a shared machine affects both equally.
Separate processes generate the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.concurrency import percentile, url_wake_ups
from bench.load import LoadOrder, LoadResult
from bench.processes import Child, background
from bench.report import Report
from bench.stores import syncs_per_second
from bench.subject import PAYLOAD, TASK, HoldfastSubject
from holdfast.core.model import Queue
from holdfast.engines.registry import open_engine
from holdfast.engines.sqlite import SQLiteEngine

REQUEST_GOAL = 0.5
BATCH_GOAL = 0.5
CYCLE_RATE_MIN = 10_000
WAKE_MS_MAX = 20
CLIENTS = 4
BATCH = 100
TEXT = PAYLOAD[32:126].decode() * 2 + "x" * 56
SERVE = "from holdfast.cli import main; main()"

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    turns: int = 7
    turn_s: float = 2.0
    connections: int = 200
    wake_ups: int = 500


QUICK = Sizes(turns=2, turn_s=0.5, wake_ups=40)


async def run(sizes: Sizes, log: Log) -> Report:
    """Run on SQLite with full durability, in a temporary directory that is deleted afterwards."""
    report = Report("server")
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        url = f"sqlite:///{folder / 'served.db'}"
        line = ("-c", SERVE, "serve", "--url", url, "--port", "0", "--json", "--no-upkeep")
        report.section("the disk: 4 KB written and synced, one after the other")
        report.rate("disk", "sync", syncs_per_second(folder, seconds=0.5), unit="syncs/s")
        server = await stack.enter_async_context(background(*line, quiet=True))
        url = (await server.read())["server"]
        echo = await stack.enter_async_context(background("-m", "bench.echo"))
        load = await stack.enter_async_context(background("-m", "bench.load"))
        await declare(url)
        bench = _Bench(sizes, report, log, url, load)
        await bench.requests(await echo.read())
        await bench.batches(folder / "embedded.db")
        await bench.cycle()
        await bench.wake_ups()
    return report


class _Bench:
    """The measurements of one server."""

    def __init__(self, sizes: Sizes, report: Report, log: Log, url: str, load: Child) -> None:
        self._sizes = sizes
        self._report = report
        self._log = log
        self._url = url
        self._port = int(url.rpartition(":")[2])
        self._load = load

    async def requests(self, echo: int) -> None:
        sizes = self._sizes
        self._report.section(
            f"single jobs: one request each, {sizes.connections} connections; "
            "the reference is the bare framework, which returns the request body"
        )
        body = new_jobs(1)
        ours, theirs, waits = [], [], []
        for turn in range(-1, sizes.turns):
            self._log(f"requests, turn {max(turn, 0) + 1} of {sizes.turns}")
            bare = await self._loaded(echo, "/echo", body, sizes.connections)
            real = await self._loaded(self._port, "/v1/queues/single/jobs", body, sizes.connections)
            if turn >= 0:
                theirs.append(bare.answers / bare.seconds)
                ours.append(real.answers / real.seconds)
                waits += real.waits_ms
        self._report.rate(
            "sqlite",
            "enqueue, durable",
            statistics.median(ours),
            unit="requests/s",
            reference=statistics.median(theirs),
            goal=REQUEST_GOAL,
        )
        for part in (50, 99):
            value = percentile(sorted(waits), part / 100)
            self._report.cost("sqlite", f"answer, p{part}", value, unit="ms")
        size = await asyncio.to_thread(_commit_size, self._url)
        if size is not None:
            self._report.rate("sqlite", "jobs in a transaction", size, unit="jobs")

    async def batches(self, path: Path) -> None:
        sizes = self._sizes
        self._report.section(
            f"batches of {BATCH}, {CLIENTS} connections; the reference is the embedded engine, "
            "enqueueing batches of the same size one after the other"
        )
        engine = SQLiteEngine(path)
        await engine.open()
        body = new_jobs(BATCH)
        ours, theirs = [], []
        for turn in range(-1, sizes.turns):
            self._log(f"batches, turn {max(turn, 0) + 1} of {sizes.turns}")
            embedded = await _embedded(HoldfastSubject(engine), sizes.turn_s)
            real = await self._loaded(self._port, "/v1/queues/batch/jobs", body, CLIENTS)
            if turn >= 0:
                theirs.append(embedded)
                ours.append(real.answers * BATCH / real.seconds)
        await engine.close()
        self._report.rate(
            "sqlite",
            f"enqueue, {BATCH} in a request",
            statistics.median(ours),
            unit="jobs/s",
            reference=statistics.median(theirs),
            goal=BATCH_GOAL,
        )

    async def cycle(self) -> None:
        sizes = self._sizes
        self._report.section(
            f"the remote engine, {CLIENTS} processes: enqueue, lease and settle in hundreds; "
            "the reference is the wanted rate"
        )
        self._log("the full cycle")
        async with contextlib.AsyncExitStack() as stack:
            line = ("-m", "bench.remote", "cycle", self._url, str(sizes.turn_s))
            clients = [await stack.enter_async_context(background(*line)) for _ in range(CLIENTS)]
            for client in clients:
                await client.read()
            rates = [await self._cycled(clients) for _ in range(-1, sizes.turns)]
        self._report.rate(
            "sqlite",
            "full cycle",
            statistics.median(rates[1:]),
            unit="jobs/s",
            reference=CYCLE_RATE_MIN,
            goal=1,
        )

    async def _cycled(self, clients: list[Child]) -> float:
        started = time.monotonic()
        for client in clients:
            client.write("go")
        done: int = sum([await client.read() for client in clients])
        return done / (time.monotonic() - started)

    async def wake_ups(self) -> None:
        self._report.section(
            "the remote engine: enqueue in one process until leased in another that waits; "
            "the reference is the bound"
        )
        self._log("wake-ups")
        waits = await url_wake_ups(self._url, times=self._sizes.wake_ups, pause_s=(0.01, 0.03))
        self._report.cost("sqlite", "wake-up, p50", percentile(waits, 0.5), unit="ms")
        self._report.cost(
            "sqlite",
            "wake-up, p99",
            percentile(waits, 0.99),
            unit="ms",
            reference=WAKE_MS_MAX,
            goal=1,
        )

    async def _loaded(self, port: int, path: str, body: str, connections: int) -> LoadResult:
        order = LoadOrder(
            port=port,
            path=path,
            body=body,
            connections=connections,
            seconds=self._sizes.turn_s,
        )
        done = msgspec.convert(await self._load.ask(order), LoadResult)
        assert done.answers, "the server answered no request"
        assert not done.failures, f"{done.failures} of {done.answers} requests failed"
        return done


async def declare(url: str) -> None:
    """Declare the queues of the benchmark."""
    engine = open_engine(url)
    await engine.open()
    for name in ("single", "batch", "cycle"):
        await engine.declare(Queue(name=name))
    await engine.close()


async def _embedded(subject: HoldfastSubject, seconds: float) -> float:
    """Jobs enqueued per second by the embedded engine."""
    count, took = 0, 0.0
    while took < seconds:
        batches = [subject.make(BATCH) for _ in range(20)]
        started = time.perf_counter()
        for batch in batches:
            await subject.enqueue(batch)
        took += time.perf_counter() - started
        count += len(batches) * BATCH
    return count / took


def new_jobs(count: int) -> str:
    """Return a request body with jobs of the same size as in the other benchmarks."""
    job = {"task": TASK, "payload": {"text": TEXT}}
    return msgspec.json.encode({"jobs": [job] * count}).decode()


def _commit_size(url: str) -> float | None:
    """Mean number of jobs per transaction, from the metrics of the server."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    name = r'holdfast_commit_batch_jobs_{}\{{verb="enqueue"\}} (\S+)'
    total, count = (re.search(name.format(part), text) for part in ("sum", "count"))
    return float(total[1]) / float(count[1]) if total and count and float(count[1]) else None
