"""The benchmark `hostile`: how long other clients wait while a server is attacked.

One client uses two servers in turns, of which only one is attacked. The other, the neighbour, shows
what the attackers take of the machine. Both are also measured before the attack.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from bench.attackers import KINDS, REFUSED, SLOW_KINDS, AttackOrder, AttackReport
from bench.concurrency import percentile
from bench.processes import Child, background
from bench.report import Report
from bench.server import declare, new_jobs
from holdfast.server.http.listener import listen
from holdfast.server.main import run as serve
from holdfast.server.settings import ServerSettings

GOAL = 0.5
RSS_MB_MAX = 300
THINK_S = 0.004
PROBE_S = 0.002
MEMORY = Path("/dev/shm")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_ONE, _HUNDRED = new_jobs(1).encode(), new_jobs(100).encode()

Log = Callable[[str], None]
Waits = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Each case has `rounds`, each with `seconds` under attack and as many without. The pause after
    a round lets pending work end; with streams it is longer."""

    rounds: int = 5
    seconds: float = 3.0
    pause_s: float = 1.0
    streams: int = 10_000


QUICK = Sizes(rounds=1, seconds=1.0, streams=500)


class Case(msgspec.Struct, frozen=True):
    """The attacks that run together."""

    name: str
    kinds: tuple[str, ...] = ()
    streams: bool = False


CASES: Final = (
    *(Case(name, (name,)) for name in (*KINDS, *SLOW_KINDS)),
    Case("idle streams", (), streams=True),
    Case("all of it", REFUSED, streams=True),
)


async def run(sizes: Sizes, log: Log) -> Report:
    """Run on SQLite with full durability; then the last cases again with the file in memory."""
    report = Report("hostile")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        await _measure(report, "disk", Path(folder), CASES, sizes, log)
    if MEMORY.is_dir():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=MEMORY) as folder:
            await _measure(report, "memory", Path(folder), CASES[-2:], sizes, log)
    return report


async def _measure(
    report: Report, where: str, folder: Path, cases: tuple[Case, ...], sizes: Sizes, log: Log
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers, addresses = [], []
        for name in ("attacked", "neighbour"):
            line = ("-m", "bench.hostile", f"sqlite:///{folder / name}.db")
            server = await stack.enter_async_context(background(*line, quiet=True))
            servers.append(server)
            addresses.append(await server.read())
            await declare(addresses[-1]["server"])
        attackers = await stack.enter_async_context(background("-m", "bench.attackers"))
        clients = [stack.enter_context(_Client(each["server"])) for each in addresses]
        await asyncio.to_thread(_sample, clients, min(1.0, sizes.seconds))
        for case in cases:
            case_run = _CaseRun(case, servers[0], addresses[0], attackers, clients, sizes)
            for turn in range(sizes.rounds):
                log(f"{where}: {case.name}, round {turn + 1} of {sizes.rounds}")
                await case_run.round()
            case_run.add_results(report, where)


class _CaseRun:
    """The measurements of one case."""

    def __init__(
        self,
        case: Case,
        server: Child,
        address: dict[str, int | str],
        attackers: Child,
        clients: list[_Client],
        sizes: Sizes,
    ) -> None:
        self._case = case
        self._server = server
        self._port = int(str(address["server"]).rpartition(":")[2])
        self._pid = int(address["pid"])
        self._attackers = attackers
        self._clients = clients
        self._sizes = sizes
        self._waits: dict[str, Waits] = {"alone": {}, "attacked": {}, "neighbour": {}}
        self._answers: dict[int, int] = {}
        self._rss_mb = 0.0
        self._turns_ms: list[float] = []

    async def round(self) -> None:
        """Measure once. With streams it takes longer, so that the feed sends them some events."""
        case, sizes = self._case, self._sizes
        streams = sizes.streams if case.streams else 0
        seconds = sizes.seconds * (5 if case.streams else 1)
        alone, _ = await asyncio.to_thread(_sample, self._clients, sizes.seconds)
        begun = await self._order(AttackOrder(port=self._port, kinds=case.kinds, streams=streams))
        assert begun.streams == streams, f"{begun.streams} of {streams} streams were accepted"
        await self._turns()
        attacked, neighbour = await asyncio.to_thread(_sample, self._clients, seconds)
        self._turns_ms += await self._turns()
        self._rss_mb = max(self._rss_mb, _rss_mb(self._pid))
        ended = await self._order(AttackOrder(port=self._port))
        for status, count in ended.answers.items():
            self._answers[status] = self._answers.get(status, 0) + count
        await asyncio.sleep(sizes.pause_s * (1 + streams / 5_000))
        for name, found in (("alone", alone), ("attacked", attacked), ("neighbour", neighbour)):
            for call, waits in found.items():
                self._waits[name].setdefault(call, []).extend(waits)

    async def _turns(self) -> list[float]:
        """CPU time of each turn of the server's event loop since the last call."""
        os.kill(self._pid, signal.SIGUSR1)
        return msgspec.convert(await self._server.read(), list[float])

    async def _order(self, order: AttackOrder) -> AttackReport:
        return msgspec.convert(await self._attackers.ask(order), AttackReport, strict=False)

    def add_results(self, report: Report, where: str) -> None:
        counted = ", ".join(f"{status or 'none'}: {n}" for status, n in self._answers.items())
        report.section(f"{self._case.name}, {where}; answers: {counted or 'none'}")
        for other in ("neighbour", "alone"):
            for call in _CALLS:
                for part in (50, 95) if other == "neighbour" else (50,):
                    value, reference = (
                        percentile(sorted(self._waits[name][call]), part / 100)
                        for name in ("attacked", other)
                    )
                    report.cost(
                        where,
                        f"{call}, p{part}, compared with {other}",
                        value,
                        unit="ms",
                        reference=reference,
                        goal=GOAL,
                    )
        turns = sorted(self._turns_ms)
        for name, value in (("p99", percentile(turns, 0.99)), ("the longest", turns[-1])):
            report.cost(where, f"turn of the loop, {name}", value, unit="ms of CPU")
        memory = self._rss_mb
        report.cost(where, "memory", memory, unit="MB", reference=RSS_MB_MAX, goal=1)


class _Client:
    """An HTTP client with one connection and one request at a time."""

    def __init__(self, url: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        response = b""
        while True:
            part = self._socket.recv(1_000_000)
            assert part, "the server closed the connection of a well-behaved client"
            response += part
            end = response.find(b"\r\n\r\n") + 4
            length = _LENGTH.search(response, 0, end) if end > 3 else None
            if length is not None and len(response) >= end + int(length[1]):
                assert response[9:10] == b"2", response[:300]
                return response[end:]


def _enqueue(client: _Client) -> None:
    client.post("/v1/queues/single/jobs", _ONE)


def _enqueue_many(client: _Client) -> None:
    client.post("/v1/queues/batch/jobs", _HUNDRED)


def _lease_and_settle(client: _Client) -> None:
    request = {"queues": ["single"], "worker": "bench", "limit": 1}
    [lease] = json.loads(client.post("/v1/lease", json.dumps(request).encode()))["leases"]
    verdict = {"id": lease["job"]["id"], "token": lease["token"], "verdict": "complete"}
    client.post("/v1/settle", json.dumps({"verdicts": [verdict]}).encode())


_CALLS: Final = {
    "enqueue": _enqueue,
    "enqueue 100": _enqueue_many,
    "lease and settle": _lease_and_settle,
}


def _sample(clients: list[_Client], seconds: float) -> list[Waits]:
    """Latencies of each call in ms; each call goes to all servers before the next one."""
    found: list[Waits] = [{call: [] for call in _CALLS} for _ in clients]
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        for name, call in _CALLS.items():
            for at in random.sample(range(len(clients)), len(clients)):
                started = time.perf_counter()
                call(clients[at])
                found[at][name].append((time.perf_counter() - started) * 1000)
                time.sleep(random.uniform(0, THINK_S))
    return found


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


async def _probe() -> None:
    """Record the CPU time of each turn of the event loop, which other processes cannot change."""
    turns_ms: list[float] = []

    def print_turns() -> None:
        print(json.dumps([round(each, 3) for each in turns_ms]), flush=True)
        turns_ms.clear()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_turns)
    before = time.thread_time()
    while True:
        await asyncio.sleep(PROBE_S)
        now = time.thread_time()
        turns_ms.append((now - before) * 1000)
        before = now


def main(url: str) -> None:
    """Run a server that accepts all streams of the benchmark from one namespace."""
    settings = ServerSettings(port=0, streams_max=40_000)

    probing: set[asyncio.Task[None]] = set()

    def started(address: str) -> None:
        probing.add(asyncio.create_task(_probe()))
        print(json.dumps({"server": address, "pid": os.getpid()}), flush=True)

    serve(url, settings, listen(settings), started)


if __name__ == "__main__":
    main(sys.argv[1])
