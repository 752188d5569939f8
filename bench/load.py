"""A load generator: several connections, each with one request at a time.

`python -m bench.load` reads orders as lines of JSON and prints a result for each.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

import msgspec

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request to repeat on each connection for some seconds. Without `headers` it is JSON."""

    port: int
    path: str
    body: str
    connections: int
    seconds: float
    headers: dict[str, str] = {}


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of responses; `waits_ms` has the latencies of every eighth one."""

    answers: int
    failures: int
    seconds: float
    waits_ms: list[float]


class _LoadConnection(asyncio.Protocol):
    """Sends the next request as soon as the response is complete."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._data = b""
        self._sent_at = 0.0
        self.responses = 0
        self.failures = 0
        self.waits_ms: list[float] = []
        self.ending = False
        self.answered = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = _LENGTH.search(self._data, 0, end)
        assert length is not None, "the response has no content-length"
        if len(self._data) < end + int(length[1]):
            return
        self.responses += 1
        self.answered.set()
        self.failures += self._data[9:10] != b"2"
        if self.responses % 8 == 1:
            self.waits_ms.append((time.perf_counter() - self._sent_at) * 1000)
        self._data = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _send(self) -> None:
        if self.ending:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]


async def carry_out(order: LoadOrder) -> LoadResult:
    """Run one order."""
    body = order.body.encode()
    given = order.headers or {"content-type": "application/json"}
    headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    head = (
        f"POST {order.path} HTTP/1.1\r\nhost: localhost\r\n{headers}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    loop = asyncio.get_running_loop()
    connections: list[_LoadConnection] = []
    started = time.perf_counter()
    for _ in range(order.connections):
        _, connection = await loop.create_connection(
            lambda: _LoadConnection(request), "127.0.0.1", order.port
        )
        connections.append(connection)
    await asyncio.sleep(order.seconds)
    # On a busy machine even the first response may take longer than that.
    await connections[0].answered.wait()
    answers, failures = (
        sum(each.responses for each in connections),
        sum(each.failures for each in connections),
    )
    seconds = time.perf_counter() - started
    for each in connections:
        each.ending = True
    await asyncio.wait_for(asyncio.gather(*(each.ended for each in connections)), 30)
    waits_ms = [wait for each in connections for wait in each.waits_ms]
    return LoadResult(
        answers=answers, failures=failures, seconds=seconds, waits_ms=sorted(waits_ms)
    )


def main() -> None:
    import uvloop

    for line in sys.stdin.buffer:
        done = uvloop.run(carry_out(msgspec.json.decode(line, type=LoadOrder)))
        print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
