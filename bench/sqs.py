"""The benchmark `sqs`: compares the SQS endpoint with the bare framework, with the server's own
interfaces, and with SQS servers that keep messages only in memory.

Each pair is measured in turns, so that a slow second of a shared machine affects both equally.
Separate processes generate the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.concurrency import percentile, url_wake_ups
from bench.load import LoadOrder, LoadResult
from bench.peers.install import NotInstalled, install_sqs_servers
from bench.processes import Child, background
from bench.report import Report
from bench.server import SERVE, declare, new_jobs
from bench.sqs_client import (
    BATCH,
    CONNECTIONS,
    SqsConnection,
    create_queue,
    headers,
    one_message,
    ten_messages,
)

SEND_GOAL = 0.5
BATCH_GOAL = 0.35
CYCLE_GOAL = 0.4
SERVERS = {"moto": 10.0, "ministack": 5.0}
"""The wanted ratio of our rate to that of each other server."""
WAKE_GOAL = 0.25
POLLS_MB_MAX = 50
CLIENTS = 4
HUNDRED = 100
START_S_MAX = 60.0
FILES = 4_096
"""Open files of a process that holds many connections."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    turns: int = 5
    turn_s: float = 2.0
    connections: int = 64
    wake_ups: int = 500
    polls: int = 2_000


QUICK = Sizes(turns=2, turn_s=0.5, wake_ups=40, polls=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`peers`: also measure the other servers."""

    sizes: Sizes = Sizes()
    peers: bool = True


async def run(options: Options, log: Log) -> Report:
    """Run on SQLite with full durability, in a temporary directory that is deleted afterwards."""
    report = Report("sqs")
    _allow_files()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        url = f"sqlite:///{folder / 'served.db'}"
        line = ("-c", SERVE, "serve", "--url", url, "--port", "0", "--json", "--no-upkeep")
        server = await stack.enter_async_context(background(*line, quiet=True))
        url = (await server.read())["server"]
        echo = await stack.enter_async_context(background("-m", "bench.echo"))
        load = await stack.enter_async_context(background("-m", "bench.load"))
        await declare(url)
        bench = _Bench(options.sizes, report, log, url, server, load)
        await bench.sends(await echo.read(), echo)
        await bench.batches()
        await bench.cycle()
        await bench.wake_ups()
        await bench.polls()
        if options.peers:
            await bench.servers(folder)
    return report


class _Bench:
    """The measurements of one server."""

    def __init__(
        self, sizes: Sizes, report: Report, log: Log, url: str, server: Child, load: Child
    ) -> None:
        self._sizes = sizes
        self._report = report
        self._log = log
        self._url = url
        self._port = int(url.rpartition(":")[2])
        self._server = server
        self._load = load

    async def sends(self, echo: int, bare: Child) -> None:
        sizes = self._sizes
        self._report.section(
            f"SendMessage: one message each, {sizes.connections} connections; "
            "the reference is the bare framework, which returns the request body"
        )
        body = one_message(await create_queue(self._port, "single")).decode()
        ours, theirs, waits = _Rates(self._server.pid), _Rates(bare.pid), list[float]()
        for turn in range(-1, sizes.turns):
            self._log(f"SendMessage, turn {max(turn, 0) + 1} of {sizes.turns}")
            with theirs.turn() as done:
                answered = await self._loaded(echo, "/echo", body, sizes.connections)
                done(answered.answers / answered.seconds, answered.answers)
            with ours.turn() as done:
                answered = await self._loaded(
                    self._port, "/", body, sizes.connections, action="SendMessage"
                )
                done(answered.answers / answered.seconds, answered.answers)
                waits += answered.waits_ms
        self._report.rate(
            "sqlite",
            "SendMessage, durable",
            ours.rate,
            unit="requests/s",
            reference=theirs.rate,
            goal=SEND_GOAL,
        )
        self._report.cost(
            "sqlite", "SendMessage, CPU", ours.cpu_us, unit="µs", reference=theirs.cpu_us
        )
        for part in (50, 99):
            value = percentile(sorted(waits), part / 100)
            self._report.cost("sqlite", f"answer, p{part}", value, unit="ms")

    async def batches(self) -> None:
        sizes = self._sizes
        self._report.section(
            f"SendMessageBatch: tens, {sizes.connections} connections; the reference is REST, "
            f"enqueueing hundreds, {CLIENTS} connections"
        )
        body = ten_messages(await create_queue(self._port, "tens")).decode()
        hundred = new_jobs(HUNDRED)
        ours, theirs = _Rates(self._server.pid), _Rates(self._server.pid)
        for turn in range(-1, sizes.turns):
            self._log(f"SendMessageBatch, turn {max(turn, 0) + 1} of {sizes.turns}")
            with theirs.turn() as done:
                path = "/v1/queues/batch/jobs"
                answered = await self._loaded(self._port, path, hundred, CLIENTS)
                done(answered.answers * HUNDRED / answered.seconds, answered.answers * HUNDRED)
            with ours.turn() as done:
                answered = await self._loaded(
                    self._port, "/", body, sizes.connections, action="SendMessageBatch"
                )
                done(answered.answers * BATCH / answered.seconds, answered.answers * BATCH)
        self._report.rate(
            "sqlite",
            f"SendMessageBatch, {BATCH} in a request",
            ours.rate,
            unit="messages/s",
            reference=theirs.rate,
            goal=BATCH_GOAL,
        )
        self._report.cost(
            "sqlite", "a message of it, CPU", ours.cpu_us, unit="µs", reference=theirs.cpu_us
        )

    async def cycle(self) -> None:
        sizes = self._sizes
        self._report.section(
            f"send, receive and delete in tens, {CLIENTS} processes with {CONNECTIONS} connections;"
            f" the reference is the remote engine's cycle in hundreds, {CLIENTS} processes"
        )
        ours, theirs = _Rates(self._server.pid), _Rates(self._server.pid)
        remote = ("-m", "bench.remote", "cycle", self._url, str(sizes.turn_s))
        async with _ready(remote) as engines, self._cyclers(self._port) as clients:
            for turn in range(-1, sizes.turns):
                self._log(f"the cycle, turn {max(turn, 0) + 1} of {sizes.turns}")
                for rates, children in ((theirs, engines), (ours, clients)):
                    with rates.turn() as done:
                        done(*await _cycled(children))
        self._report.rate(
            "sqlite",
            "send, receive, delete",
            ours.rate,
            unit="messages/s",
            reference=theirs.rate,
            goal=CYCLE_GOAL,
        )
        self._report.cost(
            "sqlite", "a message of it, CPU", ours.cpu_us, unit="µs", reference=theirs.cpu_us
        )

    async def servers(self, folder: Path) -> None:
        """The same cycle at other servers, which lose their messages when they stop."""
        try:
            programs = await asyncio.to_thread(install_sqs_servers, self._log)
        except NotInstalled as error:
            self._report.notes.append(f"moto and ministack were not measured: {error}")
            return
        self._report.section(
            "the same cycle; the reference is the other server, which keeps messages in memory"
        )
        async with self._cyclers(self._port) as clients:
            for name, goal in SERVERS.items():
                async with other_server(programs, name, folder) as port:
                    await self._compare(name, goal, clients, port)

    async def _compare(self, name: str, goal: float, clients: list[Child], port: int) -> None:
        ours, theirs = list[float](), list[float]()
        async with self._cyclers(port) as others:
            for turn in range(-1, self._sizes.turns):
                self._log(f"{name}, turn {max(turn, 0) + 1} of {self._sizes.turns}")
                for rates, children in ((theirs, others), (ours, clients)):
                    rate, _ = await _cycled(children)
                    rates.append(rate)
        self._report.rate(
            "sqlite",
            f"send, receive, delete; {name}",
            statistics.median(ours[1:]),
            unit="messages/s",
            reference=statistics.median(theirs[1:]),
            goal=goal,
        )

    async def wake_ups(self) -> None:
        self._report.section(
            "long polls: from SendMessage until another process has received the message; "
            "the reference is the remote engine"
        )
        times = self._sizes.wake_ups
        self._log("wake-ups of the remote engine")
        theirs = await url_wake_ups(self._url, times=times, pause_s=(0.01, 0.03))
        self._log("wake-ups of long polls")
        ours = await self._poll_wake_ups(times)
        for part, goal in ((0.5, None), (0.99, WAKE_GOAL)):
            self._report.cost(
                "sqlite",
                f"wake-up, p{part * 100:.0f}",
                percentile(ours, part),
                unit="ms",
                reference=percentile(theirs, part),
                goal=goal,
            )

    async def _poll_wake_ups(self, times: int) -> list[float]:
        waits = []
        request = one_message(await create_queue(self._port, "wake"))
        connection = SqsConnection(self._port)
        await connection.open()
        line = ("-m", "bench.sqs_client", "waker", str(self._port), str(times))
        async with background(*line) as waker:
            await waker.read()
            for _ in range(times):
                await asyncio.sleep(random.uniform(0.01, 0.03))
                started = time.monotonic_ns()
                await connection.call("SendMessage", request)
                waits.append((await waker.read() - started) / 1e6)
        connection.close()
        return sorted(waits)

    async def polls(self) -> None:
        count = self._sizes.polls
        self._report.section(
            f"{count:,} long polls on one queue, a connection each; the reference is the bound"
        )
        self._log(f"{count:,} long polls")
        request = one_message(await create_queue(self._port, "poll"))
        before = _memory_mb(self._server.pid)
        line = ("-m", "bench.sqs_client", "pollers", str(self._port), str(count))
        async with background(*line) as pollers:
            await pollers.read()
            await asyncio.sleep(1)
            grown = max(_memory_mb(self._server.pid) - before, 0.01)
            connection = SqsConnection(self._port)
            await connection.open()
            await connection.call("SendMessage", request)
            connection.close()
            await asyncio.sleep(0.5)
            woken = await pollers.ask("how many")
        self._report.cost(
            "sqlite", "memory", grown, unit="MB", reference=POLLS_MB_MAX * count / 2_000, goal=1
        )
        self._report.cost(
            "sqlite", "polls that one send wakes", woken, unit="polls", reference=1, goal=1
        )

    def _cyclers(self, port: int) -> contextlib.AbstractAsyncContextManager[list[Child]]:
        return _ready(("-m", "bench.sqs_client", "cycle", str(port), str(self._sizes.turn_s)))

    async def _loaded(
        self, port: int, path: str, body: str, connections: int, *, action: str = ""
    ) -> LoadResult:
        order = LoadOrder(
            port=port,
            path=path,
            body=body,
            connections=connections,
            seconds=self._sizes.turn_s,
            headers=headers(action) if action else {},
        )
        done = msgspec.convert(await self._load.ask(order), LoadResult)
        assert done.answers, "the server answered no request"
        assert not done.failures, f"{done.failures} of {done.answers} requests failed"
        return done


class _Rates:
    """The rates of several turns, and the CPU time that a process used in them. The first turn only
    warms up."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rates: list[float] = []
        self._cpu_us: list[float] = []

    @contextlib.contextmanager
    def turn(self) -> Iterator[Callable[[float, int], None]]:
        before = _cpu_s(self._pid)

        def done(rate: float, count: int) -> None:
            self._rates.append(rate)
            self._cpu_us.append((_cpu_s(self._pid) - before) / max(count, 1) * 1e6)

        yield done

    @property
    def rate(self) -> float:
        return statistics.median(self._rates[1:])

    @property
    def cpu_us(self) -> float:
        return statistics.median(self._cpu_us[1:])


@contextlib.asynccontextmanager
async def _ready(line: tuple[str, ...]) -> AsyncIterator[list[Child]]:
    """Several processes of one program, ready to begin."""
    async with contextlib.AsyncExitStack() as stack:
        children = [await stack.enter_async_context(background(*line)) for _ in range(CLIENTS)]
        for child in children:
            await child.read()
        yield children


async def _cycled(children: list[Child]) -> tuple[float, int]:
    """One turn of all processes: the rate, and the number of messages."""
    started = time.monotonic()
    for child in children:
        child.write("go")
    done: int = sum([await child.read() for child in children])
    return done / (time.monotonic() - started), done


@contextlib.asynccontextmanager
async def other_server(programs: Path, name: str, folder: Path) -> AsyncIterator[int]:
    """Run another SQS server on a free port of this machine, for the duration of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    commands = {
        "moto": ("moto_server", "--host", "127.0.0.1", "--port", str(port)),
        "ministack": ("ministack",),
    }
    program, *arguments = commands[name]
    kept = {key: text for key, text in os.environ.items() if not key.startswith("HOLDFAST_")}
    process = await asyncio.create_subprocess_exec(
        str(programs / program),
        *arguments,
        cwd=folder,
        env={**kept, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "PYTHONPATH": ""},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _wait_for(port)
        yield port
    finally:
        process.kill()
        await process.wait()


async def _wait_for(port: int) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        try:
            await create_queue(port, "cycle")
        except (OSError, EOFError, RuntimeError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)
        else:
            return


def _allow_files() -> None:
    """Allow this process and its children enough open connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _cpu_s(pid: int) -> float:
    """CPU time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
