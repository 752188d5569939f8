"""Streams: they go out part by part, end with their reader or the server, and pile up nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import QueueFull
from holdfast.server.calls import Call
from holdfast.server.operations import Scope, operation
from tests.server.things import served


class Streaming:
    def __init__(self, *parts: bytes) -> None:
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()
        self.given: asyncio.Queue[bytes] = asyncio.Queue()
        for part in parts:
            self.given.put_nowait(part)
        self.made = 0

        @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
        async def stream(call: Call) -> AsyncIterator[bytes]:
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


async def test_a_stream_goes_out_part_by_part() -> None:
    streaming = Streaming(b"data: 1\n\n", b"data: 2\n\n", b"")
    client, _ = served(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert said.headers["content-type"] == "text/event-stream"
    assert "content-length" not in said.headers
    assert said.body == b"data: 1\n\ndata: 2\n\n"
    assert client.events[-1].get("more_body", False) is False
    assert streaming.closed.is_set()


async def test_a_stream_can_be_refused_before_it_begins() -> None:
    streaming = Streaming(b"refuse")
    client, _ = served(streaming.operation)
    said = await client.ask("GET", "/v1/stream")
    assert (said.status, said.code) == (429, "queue_full")


async def test_the_head_of_a_stream_has_no_end_to_wait_for() -> None:
    streaming = Streaming(b": hello\n\n")
    client, _ = served(streaming.operation)
    said = await client.ask("HEAD", "/v1/stream")
    assert (said.status, said.body) == (200, b"")
    assert streaming.closed.is_set()


@pytest.mark.parametrize("end", ["left", "stopping"])
async def test_a_stream_ends(end: str) -> None:
    streaming = Streaming(b": hello\n\n")
    client, server = served(streaming.operation)
    asking = asyncio.create_task(client.ask("GET", "/v1/stream"))
    await streaming.begun.wait()
    (client.left if end == "left" else server.stopping).set()
    said = await asking
    assert streaming.closed.is_set()
    assert said.status == 200
    # A reader who is still there is told that this is all.
    assert (client.events[-1].get("more_body") is None) == (end == "stopping")


async def test_a_slow_reader_is_dropped_and_nothing_is_kept_for_it() -> None:
    streaming = Streaming(*[b"x" * 1_000] * 100)
    client, _ = served(streaming.operation, slow_ms_max=1)
    stuck = asyncio.Event()

    async def reads() -> None:
        if len(client.events) >= 3:
            await stuck.wait()

    client.reads = reads
    with contextlib.suppress(asyncio.CancelledError):
        await client.ask("GET", "/v1/stream")
    assert streaming.closed.is_set()
    assert streaming.made <= 4
