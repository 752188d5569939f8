"""Strangers who wish no good, in one process: what they send is malformed, endless, far too large
or far too slow, or they hold event streams.

`python -m bench.strangers` takes orders as lines of JSON, each with all that shall go on from now
on, and says what it has come to. Everything has a rate: what is measured beside it is the server
and not the machine that both are on.
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
DROP_S = 0.5
SLOW = 250
PATIENCE_S = 30.0

_HEAD = b"POST /v1/queues/default/jobs HTTP/1.1\r\nhost: localhost\r\n"
_IN_JSON = _HEAD + b"content-type: application/json\r\n"
_CHUNKED = _IN_JSON + b"transfer-encoding: chunked\r\n\r\n"
_STREAM = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
_LONG = b"q" * 1_000_000


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`kinds` of `KINDS`, all at once, and so many event streams."""

    port: int
    kinds: tuple[str, ...] = ()
    streams: int = 0


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """`streams` are open; `answers` since the last order by their status, 0 for none; `received`
    bytes of all streams; the `cpu_s` of this process."""

    streams: int
    answers: dict[int, int]
    received: int
    cpu_s: float


def malformed() -> tuple[bytes, ...]:
    return (
        b"\x00\xff\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\nhost: localhost\r\n\r\n",
        _IN_JSON + b"content-length: -1\r\n\r\n",
        _IN_JSON + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        _IN_JSON + b"content-length: 9\r\n\r\n{{{{{{{{{",
    )


def chunks() -> tuple[bytes, ...]:
    """A byte in each, with an extension that nobody wants; sizes that are none; no end of them."""
    return (
        _CHUNKED + b"zz\r\n",
        _CHUNKED + b"1;a=b\r\nx\r\n" * 5_000 + b"0\r\n\r\n",
        _CHUNKED + b"1;" + b"a" * 200_000 + b"\r\nx\r\n0\r\n\r\n",
        _CHUNKED + b"0\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(5_000)) + b"\r\n",
    )


def headers() -> tuple[bytes, ...]:
    return (_HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(10_000)) + b"\r\n",)


def bombs() -> tuple[bytes, ...]:
    packed = gzip.compress(bytes(200_000_000), 9)
    length = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    return (_IN_JSON + length + packed,)


def names() -> tuple[bytes, ...]:
    """Of a megabyte, in the path and in the body."""
    body = b'{"jobs":[{"task":"noop","queue":"%b"}]}' % _LONG
    head = _IN_JSON.replace(b"/v1/queues/default/jobs", b"/v1/jobs")
    return (
        b"GET /v1/queues/" + _LONG + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        head + b"content-length: %d\r\n\r\n%b" % (len(body), body),
    )


def large() -> tuple[bytes, ...]:
    """A thousand good jobs in thirty megabytes, which are only looked at."""
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
"""What is sent, and how often in a second, each time on a connection of its own."""

DRIPS: Final = {
    "slow heads": (_HEAD, b"x: y\r\n"),
    "slow bodies": (_IN_JSON + b"content-length: 100000\r\n\r\n", b" "),
}
"""How it begins, and what then comes drop by drop, on `SLOW` connections each."""

REFUSED: Final = (*(kind for kind in KINDS if kind != "large"), *DRIPS)
"""Nothing of it is a request that could be granted."""


class Strangers:
    def __init__(self) -> None:
        self._port = 0
        self._kinds: dict[str, list[asyncio.Task[None]]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._streams: set[_Stream] = set()
        self._answers: Counter[int] = Counter()
        self._made = cache(lambda kind: KINDS[kind][0]())
        self.received = 0

    async def carry_out(self, order: Order) -> Told:
        self._port = order.port
        for kind in set(self._kinds) - set(order.kinds):
            for task in self._kinds.pop(kind):
                task.cancel()
        for kind in set(order.kinds) - set(self._kinds):
            self._kinds[kind] = [asyncio.create_task(each) for each in self._begun(kind)]
        while len(self._streams) > order.streams:
            self._streams.pop().end()
        missing = order.streams - len(self._streams)
        await asyncio.gather(*(self._hold() for _ in range(missing)))
        answers, self._answers = self._answers, Counter()
        return Told(
            streams=sum(each.is_open for each in self._streams),
            answers=dict(answers),
            received=self.received,
            cpu_s=time.process_time(),
        )

    def _begun(self, kind: str) -> list[Coroutine[Any, Any, None]]:
        if kind in DRIPS:
            return [self._drip(*DRIPS[kind]) for _ in range(SLOW)]
        return [self._send(self._made(kind), KINDS[kind][1])]

    async def _send(self, parts: tuple[bytes, ...], rate: float) -> None:
        """At this rate on the whole, whether or not it is answered."""
        running: set[asyncio.Task[None]] = set()
        at = 0
        while True:
            task = asyncio.create_task(self._exchange(parts[at % len(parts)]))
            running.add(task)
            task.add_done_callback(running.discard)
            at += 1
            await asyncio.sleep(random.uniform(0.5, 1.5) / rate)

    async def _exchange(self, data: bytes) -> None:
        said = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(data)
                    said = await reader.read(65_536)
                finally:
                    writer.close()
        self._answers[_status(said)] += 1

    async def _drip(self, begin: bytes, drop: bytes) -> None:
        """Once it was cut off it begins again."""
        await asyncio.sleep(random.uniform(0, 2 * DROP_S))
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(begin)
                    while not reader.at_eof():
                        await asyncio.sleep(random.uniform(0.5, 1.5) * DROP_S)
                        writer.write(drop)
                    self._answers[_status(await reader.read())] += 1
                finally:
                    writer.close()
            await asyncio.sleep(DROP_S)

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
    """Reads, and does nothing with it."""

    def __init__(self, strangers: Strangers) -> None:
        self._strangers = strangers
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_STREAM)

    def data_received(self, data: bytes) -> None:
        self._strangers.received += len(data)
        if not self.begun.done():
            self.begun.set_result(data.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.begun.done():
            self.begun.set_result(False)

    def end(self) -> None:
        self._transport.abort()


def _status(said: bytes) -> int:
    return int(said[9:12]) if said.startswith(b"HTTP/1.1 ") else 0


async def _serve() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = Strangers()
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        told = await strangers.carry_out(msgspec.json.decode(line, type=Order))
        print(msgspec.json.encode(told).decode(), flush=True)


def main() -> None:
    import uvloop

    # Threads that wait for a line end with it.
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
