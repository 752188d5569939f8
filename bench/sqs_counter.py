"""A TCP proxy in front of a server of AWS's services that counts the requests of each action.

EC2 names its actions in the body: they are not counted.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_TARGET = re.compile(rb"(?i)(?:\r\nx-amz-target: *\w+\.|/operation/)(\w+)(?=\r\n| HTTP/1)")
_CHUNK = 65536
_KEPT = 200
"""Bytes of a chunk that are searched again with the next one: a header may be cut."""


class RequestCounter:
    """Counts actions in one direction of a connection."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._rest = b""

    def feed(self, data: bytes) -> None:
        text = self._rest + data
        end = 0
        for found in _TARGET.finditer(text):
            self._counts[found[1].decode()] += 1
            end = found.end()
        self._rest = text[max(end, len(text) - _KEPT) :]


@asynccontextmanager
async def counting_proxy(target: int) -> AsyncIterator[tuple[int, Counter[str]]]:
    """The port of the proxy, and its counts, which grow."""
    counts: Counter[str] = Counter()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
            counter = RequestCounter(counts)
            ways = [
                asyncio.create_task(_pump(reader, far_writer, counter)),
                asyncio.create_task(_pump(far_reader, writer, None)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            serving.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], counts
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: RequestCounter | None
) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            if counter is not None:
                counter.feed(data)
            writer.write(data)
            await writer.drain()
