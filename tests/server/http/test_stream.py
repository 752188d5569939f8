"""Streams: sent part by part, ended with their client or the server, without buffering."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import QueueFull
from holdfast.server.access.admission import ApiCall
from holdfast.server.http.operation import Scope, operation
from tests.server.sample_api import serve


class Streaming:
    def __init__(self, *parts: bytes) -> None:
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.given: asyncio.Queue[bytes] = asyncio.Queue()
        for part in parts:
            self.given.put_nowait(part)
        self.made = 0

        @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
        async def stream(call: ApiCall) -> AsyncIterator[bytes]:
            try:
                while True:
                    part = await self.given.get()
                    self.made += 1
                    self.begun.set()
                    if part == b"refuse":
                        raise QueueFull("no")
                    yield part
            finally:
                self.closed.set()

        self.operation = stream


async def test_a_stream_is_sent_part_by_part() -> None:
    streaming = Streaming(b"data: 1\n\n", b"data: 2\n\n", b"")
    client, _ = serve(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert said.headers["content-type"] == "text/event-stream"
    assert "content-length" not in said.headers
    assert said.body == b"data: 1\n\ndata: 2\n\n"
    assert client.events[-1].get("more_body", False) is False
    assert streaming.closed.is_set()


async def test_a_stream_can_be_refused_before_it_begins() -> None:
    streaming = Streaming(b"refuse")
    client, _ = serve(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert (said.status, said.code) == (429, "queue_full")


async def test_head_of_a_stream_returns_at_once() -> None:
    streaming = Streaming(b": hello\n\n")
    client, _ = serve(streaming.operation)
    said = await client.ask("HEAD", "/v1/stream")
    assert (said.status, said.body) == (200, b"")
    assert streaming.closed.is_set()


@pytest.mark.parametrize("end", ["left", "stopping"])
async def test_a_stream_ends(end: str) -> None:
    streaming = Streaming(b": hello\n\n")
    client, server = serve(streaming.operation)
    asking = asyncio.create_task(client.ask("GET", "/v1/stream"))
    await streaming.begun.wait()
    (client.left if end == "left" else server.stopping).set()
    said = await asking
    assert streaming.closed.is_set()
    assert said.status == 200
    # A connected reader gets the end of the stream.
    assert (client.events[-1].get("more_body") is None) == (end == "stopping")


async def test_a_slow_reader_is_dropped_without_buffering() -> None:
    streaming = Streaming(*[b"x" * 1_000] * 100)
    client, _ = serve(streaming.operation, slow_ms_max=1)
    stuck = asyncio.Event()

    async def reads() -> None:
        if len(client.events) >= 3:
            await stuck.wait()

    client.reads = reads
    with contextlib.suppress(asyncio.CancelledError):
        await client.ask("GET", "/v1/stream")
    assert streaming.closed.is_set()
    assert streaming.made <= 4
