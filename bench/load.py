"""A process that asks a server as fast as it answers: some connections, one request at a time on
each. `python -m bench.load` takes orders as lines of JSON and says what came of each.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time

import msgspec

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    path: str
    body: str
    connections: int
    seconds: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`waits_ms` of a part of the answers."""

    answers: int
    failures: int
    seconds: float
    waits_ms: list[float]


class _Asker(asyncio.Protocol):
    """Asks again as soon as the whole answer is there."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._data = b""
        self._asked_at = 0.0
        self.answers = 0
        self.failures = 0
        self.waits_ms: list[float] = []
        self.ending = False
        self.answered = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = _LENGTH.search(self._data, 0, end)
        assert length is not None, "an answer without a length"
        if len(self._data) < end + int(length[1]):
            return
        self.answers += 1
        self.answered.set()
        self.failures += self._data[9:10] != b"2"
        if self.answers % 8 == 1:
            self.waits_ms.append((time.perf_counter() - self._asked_at) * 1000)
        self._data = b""
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _ask(self) -> None:
        if self.ending:
            self._transport.close()
            return
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]


async def carry_out(order: Order) -> Load:
    body = order.body.encode()
    head = (
        f"POST {order.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    loop = asyncio.get_running_loop()
    askers: list[_Asker] = []
    started = time.perf_counter()
    for _ in range(order.connections):
        _, asker = await loop.create_connection(lambda: _Asker(request), "127.0.0.1", order.port)
        askers.append(asker)
    await asyncio.sleep(order.seconds)
    # On a machine that is busy elsewhere even one answer may take longer.
    await askers[0].answered.wait()
    answers, failures = sum(each.answers for each in askers), sum(each.failures for each in askers)
    seconds = time.perf_counter() - started
    for each in askers:
        each.ending = True
    await asyncio.wait_for(asyncio.gather(*(each.ended for each in askers)), 30)
    waits_ms = [wait for each in askers for wait in each.waits_ms]
    return Load(answers=answers, failures=failures, seconds=seconds, waits_ms=sorted(waits_ms))


def main() -> None:
    import uvloop

    for line in sys.stdin.buffer:
        done = uvloop.run(carry_out(msgspec.json.decode(line, type=Order)))
        print(msgspec.json.encode(done).decode(), flush=True)


if __name__ == "__main__":
    main()
