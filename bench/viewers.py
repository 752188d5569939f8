"""Viewers of the live stream, in processes of their own: `python -m bench.viewers ROLE PORT QUEUE`.

`hold` reads numbers, holds that many streams, and prints the number when each has its first data.
`watch` prints a line of JSON whenever the data shows that the queue was paused or resumed.
"""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.request
from typing import Any, cast

import msgspec

START_S_MAX = 60
_SNAPSHOT = b"event: snapshot"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the data showed that a queue is paused or not, and when, by the monotonic clock in
    nanoseconds. The first of each place is the state at the start."""

    where: str
    paused: bool
    at: int


def live_path(queue: str) -> str:
    """The path of the stream of a viewer: the overview, the workers and one queue."""
    return f"/v1/live?topic=overview&topic=workers&topic=queue:{queue}"


class _Viewer(asyncio.Protocol):
    """Holds a stream and discards its data."""

    def __init__(self, queue: str) -> None:
        path = live_path(queue)
        self._request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        self._missing = path.count("topic=")
        self._tail = b""
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.begun.done():
            return
        self._missing -= (self._tail + data).count(_SNAPSHOT)
        self._tail = (self._tail + data)[1 - len(_SNAPSHOT) :]
        if self._missing <= 0:
            self.begun.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the server ended a stream"))

    def end(self) -> None:
        self._transport.abort()


async def hold(port: int, queue: str) -> None:
    """For each number read, hold that many streams."""
    loop = asyncio.get_running_loop()
    viewers: list[_Viewer] = []
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        wanted: int = msgspec.json.decode(line)
        while len(viewers) > wanted:
            viewers.pop().end()
        while len(viewers) < wanted:
            _, viewer = await loop.create_connection(lambda: _Viewer(queue), "127.0.0.1", port)
            viewers.append(viewer)
        async with asyncio.timeout(START_S_MAX):
            await asyncio.gather(*(viewer.begun for viewer in viewers))
        print(len(viewers), flush=True)


def watch(port: int, queue: str) -> None:
    """Follow one stream, and print whenever it shows another state of the queue."""
    url = f"http://127.0.0.1:{port}{live_path(queue)}"
    shown: dict[str, bool] = {}
    with urllib.request.urlopen(url, timeout=START_S_MAX) as stream:
        for line in stream:
            if not line.startswith(b"data: "):
                continue
            at = time.monotonic_ns()
            event = msgspec.json.decode(line[6:])
            where = event.get("topic", "").partition(":")[0]
            paused = _paused(event.get("data") or event.get("patch") or {}, where, queue)
            if paused is not None and shown.get(where) is not paused:
                shown[where] = paused
                found = Shown(where=where, paused=paused, at=at)
                print(msgspec.json.encode(found).decode(), flush=True)


def _paused(data: dict[str, Any], where: str, queue: str) -> bool | None:
    """Whether a snapshot or change says that the queue is paused; None if it says nothing."""
    found = data.get("queue") if where == "queue" else data.get("queues", {}).get(queue)
    paused = (found or {}).get("paused")
    return paused if isinstance(paused, bool) else None


def main(role: str, port: str, queue: str) -> None:
    import uvloop

    if role == "watch":
        watch(int(port), queue)
    else:
        # The thread that waits for a line ends with the loop.
        uvloop.run(hold(int(port), queue))


if __name__ == "__main__":
    main(*sys.argv[1:])
