"""Behaviour that needs a real connection: slow readers, and answers to refused bodies."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Annotated

import uvicorn
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.server.access.admission import ApiCall
from holdfast.server.application import AsgiApplication
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.http.pressure import Ticket
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState

PART = b"x" * 64 * 1024


@contextlib.asynccontextmanager
async def serving(
    *operations: Operation, settings: ServerSettings
) -> AsyncIterator[tuple[AsgiApplication, ServerState, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    settings = replace(settings, auth=False)
    server = ServerState(app=Holdfast(engine=MemoryEngine()), settings=settings)
    application = AsgiApplication(server, operations)
    web = uvicorn.Server(
        uvicorn.Config(application, log_config=None, lifespan="off", access_log=False)
    )
    running = asyncio.create_task(web.serve([listening]))
    try:
        yield application, server, listening.getsockname()[1]
    finally:
        server.stopping.set()
        web.should_exit = True
        await running


@contextlib.asynccontextmanager
async def connected(port: int, head: str) -> AsyncIterator[asyncio.StreamReader]:
    """One that reads nothing by itself: its buffers are small, and it is not asked to."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=1024)
    writer.write(f"{head}\r\nhost: 127.0.0.1\r\n\r\n".encode())
    try:
        await writer.drain()
        yield reader
    finally:
        writer.close()


def ending(application: AsgiApplication) -> asyncio.Event:
    """Set when a request has been let go of altogether."""
    ended = asyncio.Event()
    finish = application.pressure.finish

    def finished(ticket: Ticket) -> None:
        finish(ticket)
        ended.set()

    application.pressure.finish = finished  # type: ignore[method-assign]
    return ended


async def test_a_stream_to_a_reader_that_does_not_read_is_dropped() -> None:
    made = 0
    closed = asyncio.Event()

    @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
    async def stream(call: ApiCall) -> AsyncIterator[bytes]:
        nonlocal made
        try:
            while True:
                made += 1
                yield PART
        finally:
            closed.set()

    async with serving(stream, settings=ServerSettings(slow_ms_max=300)) as (application, _, port):
        ended = ending(application)
        async with connected(port, "GET /v1/stream HTTP/1.1"):
            await ended.wait()
        assert closed.is_set()
        # Only what the operating system buffered.
        assert made * len(PART) < 16 * 1024 * 1024


async def test_a_stream_continues_while_read_and_ends_with_the_server() -> None:
    given: asyncio.Queue[bytes] = asyncio.Queue()
    closed = asyncio.Event()

    @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
    async def stream(call: ApiCall) -> AsyncIterator[bytes]:
        try:
            yield b": hello\n\n"
            while True:
                yield await given.get()
        finally:
            closed.set()

    async with (
        serving(stream, settings=ServerSettings(slow_ms_max=1)) as (_, server, port),
        connected(port, "GET /v1/stream HTTP/1.1") as reader,
    ):
        await reader.readuntil(b": hello\n\n")
        given.put_nowait(b"data: 1\n\n")
        await reader.readuntil(b"data: 1\n\n")
        server.stopping.set()
        # The last chunk of a body that is whole.
        await reader.readuntil(b"0\r\n\r\n")
        assert closed.is_set()


async def test_a_stream_ends_when_its_client_disconnects() -> None:
    closed = asyncio.Event()

    @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
    async def stream(call: ApiCall) -> AsyncIterator[bytes]:
        try:
            yield b": hello\n\n"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with serving(stream, settings=ServerSettings()) as (application, _, port):
        ended = ending(application)
        async with connected(port, "GET /v1/stream HTTP/1.1") as reader:
            await reader.readuntil(b": hello\n\n")
        await ended.wait()
        assert closed.is_set()
        assert application.pressure.under_way()["streams"] == 0


async def test_a_large_answer_waits_for_its_reader_up_to_a_bound() -> None:
    @operation("GET", "/v1/large", needs=Scope.OPERATE)
    async def large(call: ApiCall) -> Annotated[bytes, "text/plain"]:
        return PART * 512

    async with serving(large, settings=ServerSettings(slow_ms_max=300)) as (application, _, port):
        ended = ending(application)
        async with connected(port, "GET /v1/large HTTP/1.1") as reader:
            await reader.readuntil(b"\r\n\r\n")
            await ended.wait()
            # The connection was cut: there is an end, and not all came before it.
            size = 0
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(65_536):
                    size += len(part)
            assert size < 512 * len(PART)
    async with (
        serving(large, settings=ServerSettings()) as (_, _, port),
        connected(port, "GET /v1/large HTTP/1.1") as reader,
    ):
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(512 * len(PART))) == 512 * len(PART)


async def test_a_refused_body_still_gets_an_answer() -> None:
    @operation("POST", "/v1/take", needs=Scope.OPERATE, repeatable=True)
    async def take(call: ApiCall, body: dict[str, int]) -> int:
        return len(body)

    async with serving(take, settings=ServerSettings(body_max=1_000)) as (_, _, port):
        for kind, status in (("text/plain", b"415"), ("application/json", b"413")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /v1/take HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\n"
            writer.write(f"{head}content-length: 1000000\r\n\r\n".encode() + b"x" * 1_000_000)
            assert status in await reader.readline()
            writer.close()
