"""Hostile clients in one process: requests that are malformed, endless, far too large or far too
slow, and idle event streams.

`python -m bench.attackers` reads orders as lines of JSON and prints a report for each. An order
lists all attacks that run from now on. Every attack has a fixed rate, so that the benchmark
measures the server and not the shared machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final, cast

import msgspec

AT_ONCE = 100
SLOW_PAUSE_S = 0.5
SLOW = 250
RESPONSE_S_MAX = 30.0

_HEAD = b"POST /v1/queues/default/jobs HTTP/1.1\r\nhost: localhost\r\n"
_IN_JSON = _HEAD + b"content-type: application/json\r\n"
_CHUNKED = _IN_JSON + b"transfer-encoding: chunked\r\n\r\n"
_STREAM = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
_LONG = b"q" * 1_000_000


class AttackOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The attacks to run, of `KINDS` and `SLOW_KINDS`, and the number of event streams."""

    port: int
    kinds: tuple[str, ...] = ()
    streams: int = 0


class AttackReport(msgspec.Struct, frozen=True, kw_only=True):
    """Open `streams`, `answers` since the last order by status (0: none), `received` bytes of all
    streams, and CPU seconds of this process."""

    streams: int
    answers: dict[int, int]
    received: int
    cpu_s: float


def malformed() -> tuple[bytes, ...]:
    """Requests that are not valid HTTP or not valid JSON."""
    return (
        b"\x00\xff\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\nhost: localhost\r\n\r\n",
        _IN_JSON + b"content-length: -1\r\n\r\n",
        _IN_JSON + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        _IN_JSON + b"content-length: 9\r\n\r\n{{{{{{{{{",
    )


def chunks() -> tuple[bytes, ...]:
    """Chunked bodies with one byte per chunk, invalid sizes, long extensions or many trailers."""
    return (
        _CHUNKED + b"zz\r\n",
        _CHUNKED + b"1;a=b\r\nx\r\n" * 5_000 + b"0\r\n\r\n",
        _CHUNKED + b"1;" + b"a" * 200_000 + b"\r\nx\r\n0\r\n\r\n",
        _CHUNKED + b"0\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(5_000)) + b"\r\n",
    )


def headers() -> tuple[bytes, ...]:
    """A request with 10,000 headers."""
    return (_HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(10_000)) + b"\r\n",)


def bombs() -> tuple[bytes, ...]:
    """A gzip bomb of 200 MB."""
    packed = gzip.compress(bytes(200_000_000), 9)
    length = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    return (_IN_JSON + length + packed,)


def names() -> tuple[bytes, ...]:
    """Queue names of a megabyte, in the path and in the body."""
    body = b'{"jobs":[{"task":"noop","queue":"%b"}]}' % _LONG
    head = _IN_JSON.replace(b"/v1/queues/default/jobs", b"/v1/jobs")
    return (
        b"GET /v1/queues/" + _LONG + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        head + b"content-length: %d\r\n\r\n%b" % (len(body), body),
    )


def large() -> tuple[bytes, ...]:
    """A valid dry run with a thousand jobs in thirty megabytes."""
    job = b'{"task":"noop","payload":[%b]}' % b",".join([b"1.5"] * 7_500)
    body = b'{"jobs":[%b],"dry_run":true}' % b",".join([job] * 1_000)
    return (_IN_JSON + b"content-length: %d\r\n\r\n%b" % (len(body), body),)


KINDS: Final[dict[str, tuple[Callable[[], tuple[bytes, ...]], float]]] = {
    "malformed": (malformed, 100.0),
    "chunks": (chunks, 20.0),
    "headers": (headers, 20.0),
    "bombs": (bombs, 20.0),
    "names": (names, 20.0),
    "large": (large, 0.5),
}
"""The requests of each attack, and how many are sent per second, each on a new connection."""

SLOW_KINDS: Final = {
    "slow heads": (_HEAD, b"x: y\r\n"),
    "slow bodies": (_IN_JSON + b"content-length: 100000\r\n\r\n", b" "),
}
"""The start of a slow request, and the part that is repeated slowly, on `SLOW` connections."""

REFUSED: Final = (*(kind for kind in KINDS if kind != "large"), *SLOW_KINDS)
"""Attacks that the server must refuse."""


class Attackers:
    """Runs the attacks of the latest order."""

    def __init__(self) -> None:
        self._port = 0
        self._kinds: dict[str, list[asyncio.Task[None]]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._streams: set[_Stream] = set()
        self._answers: Counter[int] = Counter()
        self._requests = cache(lambda kind: KINDS[kind][0]())
        self.received = 0

    async def carry_out(self, order: AttackOrder) -> AttackReport:
        """Start and stop attacks so that exactly those of the order run."""
        self._port = order.port
        for kind in set(self._kinds) - set(order.kinds):
            for task in self._kinds.pop(kind):
                task.cancel()
        for kind in set(order.kinds) - set(self._kinds):
            self._kinds[kind] = [asyncio.create_task(each) for each in self._attacks(kind)]
        while len(self._streams) > order.streams:
            self._streams.pop().end()
        missing = order.streams - len(self._streams)
        await asyncio.gather(*(self._hold() for _ in range(missing)))
        answers, self._answers = self._answers, Counter()
        return AttackReport(
            streams=sum(each.is_open for each in self._streams),
            answers=dict(answers),
            received=self.received,
            cpu_s=time.process_time(),
        )

    def _attacks(self, kind: str) -> list[Coroutine[Any, Any, None]]:
        if kind in SLOW_KINDS:
            return [self._send_slowly(*SLOW_KINDS[kind]) for _ in range(SLOW)]
        return [self._send(self._requests(kind), KINDS[kind][1])]

    async def _send(self, parts: tuple[bytes, ...], rate: float) -> None:
        """Send requests at this average rate, whether or not they are answered."""
        running: set[asyncio.Task[None]] = set()
        at = 0
        while True:
            task = asyncio.create_task(self._exchange(parts[at % len(parts)]))
            running.add(task)
            task.add_done_callback(running.discard)
            at += 1
            await asyncio.sleep(random.uniform(0.5, 1.5) / rate)

    async def _exchange(self, data: bytes) -> None:
        response = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(RESPONSE_S_MAX):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(data)
                    response = await reader.read(65_536)
                finally:
                    writer.close()
        self._answers[_status(response)] += 1

    async def _send_slowly(self, start: bytes, part: bytes) -> None:
        """Send a request slowly, and start again when the server cuts it off."""
        await asyncio.sleep(random.uniform(0, 2 * SLOW_PAUSE_S))
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(start)
                    while not reader.at_eof():
                        await asyncio.sleep(random.uniform(0.5, 1.5) * SLOW_PAUSE_S)
                        writer.write(part)
                    self._answers[_status(await reader.read())] += 1
                finally:
                    writer.close()
            await asyncio.sleep(SLOW_PAUSE_S)

    async def _hold(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._gate:
            with contextlib.suppress(OSError):
                _, stream = await loop.create_connection(
                    lambda: _Stream(self), "127.0.0.1", self._port
                )
                if await stream.begun:
                    self._streams.add(stream)


class _Stream(asyncio.Protocol):
    """Holds an event stream and discards its data."""

    def __init__(self, attackers: Attackers) -> None:
        self._attackers = attackers
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_STREAM)

    def data_received(self, data: bytes) -> None:
        self._attackers.received += len(data)
        if not self.begun.done():
            self.begun.set_result(data.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.begun.done():
            self.begun.set_result(False)

    def end(self) -> None:
        self._transport.abort()


def _status(response: bytes) -> int:
    return int(response[9:12]) if response.startswith(b"HTTP/1.1 ") else 0


async def _serve() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attackers = Attackers()
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        report = await attackers.carry_out(msgspec.json.decode(line, type=AttackOrder))
        print(msgspec.json.encode(report).decode(), flush=True)


def main() -> None:
    import uvloop

    # The thread that waits for a line ends with the loop.
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
