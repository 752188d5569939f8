"""A TCP server in the event loop of a test, which leaves no connection open behind it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def stream_server(
    handle: Handler,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve each connection with `handle`, and close it then; yields the port. At the end,
    connections that are left are cut, and their handlers cancelled."""
    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    # Not a coroutine: cancelled before its first step, that would never close its connection.
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, port, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*left, return_exceptions=True)
        # A transport that was aborted is closed in the next turn of the loop.
        await asyncio.sleep(0)
