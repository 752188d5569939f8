"""The benchmark `hostile`: how long others wait while strangers do their worst to a server.

One client asks two servers in turns, of which only one is attacked: the other has the same machine
at the same moment, with whatever the strangers take of it. And it asks both before, with nobody
there.
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

from bench.processes import Child, lasting
from bench.report import Report
from bench.server import declare, new_jobs
from bench.strangers import DRIPS, KINDS, REFUSED, Order, Told
from bench.together import percentile
from holdfast.server.binding import listener
from holdfast.server.main import run as serve
from holdfast.server.settings import ServerSettings

GOAL = 0.5
RSS_MB_MAX = 300
THINK_S = 0.004
PROBE_S = 0.002
MEMORY = Path("/dev/shm")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_ONE, _HUNDRED = new_jobs(1).encode(), new_jobs(100).encode()

Tell = Callable[[str], None]
Waits = dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`rounds` of each kind, and in each `seconds` with strangers and as many without. The pause is
    for what is still under way; with streams it is longer."""

    rounds: int = 5
    seconds: float = 3.0
    pause_s: float = 1.0
    streams: int = 10_000


QUICK = Sizes(rounds=1, seconds=1.0, streams=500)


class Case(msgspec.Struct, frozen=True):
    name: str
    kinds: tuple[str, ...] = ()
    streams: bool = False


CASES: Final = (
    *(Case(name, (name,)) for name in (*KINDS, *DRIPS)),
    Case("idle streams", (), streams=True),
    Case("all of it", REFUSED, streams=True),
)


async def run(sizes: Sizes, tell: Tell) -> Report:
    """On SQLite with full durability; and all of it once more where a disk is memory."""
    report = Report("hostile")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        await _measure(report, "disk", Path(folder), CASES, sizes, tell)
    if MEMORY.is_dir():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=MEMORY) as folder:
            await _measure(report, "memory", Path(folder), CASES[-2:], sizes, tell)
    return report


async def _measure(
    report: Report, where: str, folder: Path, cases: tuple[Case, ...], sizes: Sizes, tell: Tell
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers, places = [], []
        for name in ("attacked", "neighbour"):
            line = ("-m", "bench.hostile", f"sqlite:///{folder / name}.db")
            server = await stack.enter_async_context(lasting(*line, quiet=True))
            servers.append(server)
            places.append(await server.read())
            await declare(places[-1]["server"])
        strangers = await stack.enter_async_context(lasting("-m", "bench.strangers"))
        clients = [stack.enter_context(_Client(each["server"])) for each in places]
        await asyncio.to_thread(_sample, clients, 1.0)
        for case in cases:
            scene = _Scene(case, servers[0], places[0], strangers, clients, sizes)
            for turn in range(sizes.rounds):
                tell(f"{where}: {case.name}, round {turn + 1} of {sizes.rounds}")
                await scene.round()
            scene.tell(report, where)


class _Scene:
    def __init__(
        self,
        case: Case,
        server: Child,
        place: dict[str, int | str],
        strangers: Child,
        clients: list[_Client],
        sizes: Sizes,
    ) -> None:
        self._case = case
        self._server = server
        self._port = int(str(place["server"]).rpartition(":")[2])
        self._pid = int(place["pid"])
        self._strangers = strangers
        self._clients = clients
        self._sizes = sizes
        self._waits: dict[str, Waits] = {"alone": {}, "attacked": {}, "neighbour": {}}
        self._answers: dict[int, int] = {}
        self._rss_mb = 0.0
        self._turns_ms: list[float] = []

    async def round(self) -> None:
        """With streams it takes long enough for some looks of the feed, which they are told of."""
        case, sizes = self._case, self._sizes
        streams = sizes.streams if case.streams else 0
        seconds = sizes.seconds * (5 if case.streams else 1)
        alone, _ = await asyncio.to_thread(_sample, self._clients, sizes.seconds)
        begun = await self._order(Order(port=self._port, kinds=case.kinds, streams=streams))
        assert begun.streams == streams, f"{begun.streams} streams were taken on, not {streams}"
        await self._turns()
        attacked, neighbour = await asyncio.to_thread(_sample, self._clients, seconds)
        self._turns_ms += await self._turns()
        self._rss_mb = max(self._rss_mb, _rss_mb(self._pid))
        ended = await self._order(Order(port=self._port))
        for status, count in ended.answers.items():
            self._answers[status] = self._answers.get(status, 0) + count
        await asyncio.sleep(sizes.pause_s * (1 + streams / 5_000))
        for name, found in (("alone", alone), ("attacked", attacked), ("neighbour", neighbour)):
            for act, waits in found.items():
                self._waits[name].setdefault(act, []).extend(waits)

    async def _turns(self) -> list[float]:
        """How much of the CPU each turn of the server's loop took since this was last asked."""
        os.kill(self._pid, signal.SIGUSR1)
        return msgspec.convert(await self._server.read(), list[float])

    async def _order(self, order: Order) -> Told:
        return msgspec.convert(await self._strangers.ask(order), Told, strict=False)

    def tell(self, report: Report, where: str) -> None:
        counted = ", ".join(f"{status or 'none'}: {n}" for status, n in self._answers.items())
        report.section(f"{self._case.name}, {where}; answers: {counted or 'none'}")
        for other in ("neighbour", "alone"):
            for act in _ACTS:
                for part in (50, 95) if other == "neighbour" else (50,):
                    value, reference = (
                        percentile(sorted(self._waits[name][act]), part / 100)
                        for name in ("attacked", other)
                    )
                    report.cost(
                        where,
                        f"{act}, p{part}, beside {other}",
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
    """One connection, one request at a time."""

    def __init__(self, place: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])), 60)
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
        said = b""
        while True:
            part = self._socket.recv(1_000_000)
            assert part, "the server closed a good connection"
            said += part
            end = said.find(b"\r\n\r\n") + 4
            length = _LENGTH.search(said, 0, end) if end > 3 else None
            if length is not None and len(said) >= end + int(length[1]):
                assert said[9:10] == b"2", said[:300]
                return said[end:]


def _enqueue(client: _Client) -> None:
    client.post("/v1/queues/single/jobs", _ONE)


def _enqueue_many(client: _Client) -> None:
    client.post("/v1/queues/batch/jobs", _HUNDRED)


def _lease_and_settle(client: _Client) -> None:
    asked = {"queues": ["single"], "worker": "bench", "limit": 1}
    [lease] = json.loads(client.post("/v1/lease", json.dumps(asked).encode()))["leases"]
    verdict = {"id": lease["job"]["id"], "token": lease["token"], "verdict": "complete"}
    client.post("/v1/settle", json.dumps({"verdicts": [verdict]}).encode())


_ACTS: Final = {
    "enqueue": _enqueue,
    "enqueue 100": _enqueue_many,
    "lease and settle": _lease_and_settle,
}


def _sample(clients: list[_Client], seconds: float) -> list[Waits]:
    """How long each act took, in ms: each of them with all servers before the next."""
    found: list[Waits] = [{act: [] for act in _ACTS} for _ in clients]
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        for name, act in _ACTS.items():
            for at in random.sample(range(len(clients)), len(clients)):
                started = time.perf_counter()
                act(clients[at])
                found[at][name].append((time.perf_counter() - started) * 1000)
                time.sleep(random.uniform(0, THINK_S))
    return found


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


async def _probe() -> None:
    """What the loop does in a turn, by the CPU it takes: no other process can make that longer."""
    turns_ms: list[float] = []

    def tell() -> None:
        print(json.dumps([round(each, 3) for each in turns_ms]), flush=True)
        turns_ms.clear()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    before = time.thread_time()
    while True:
        await asyncio.sleep(PROBE_S)
        now = time.thread_time()
        turns_ms.append((now - before) * 1000)
        before = now


def main(url: str) -> None:
    """A server that takes on as many streams of one namespace as are held here."""
    settings = ServerSettings(port=0, streams_max=40_000)

    probing: set[asyncio.Task[None]] = set()

    def started(place: str) -> None:
        probing.add(asyncio.create_task(_probe()))
        print(json.dumps({"server": place, "pid": os.getpid()}), flush=True)

    serve(url, settings, listener(settings), started)


if __name__ == "__main__":
    main(sys.argv[1])
