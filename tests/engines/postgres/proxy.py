"""A TCP proxy that a test can make lose replies, fall silent or cut all connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    """A running proxy; `dsn` leads through it."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._parts = parts
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._replies_left: int | None = None
        self._silent = False
        self._server: asyncio.Server | None = None

    @property
    def dsn(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return self._parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()

    def lose_reply(self, number: int) -> None:
        """Lose the n-th reply from now, and cut the connection."""
        self._replies_left = number - 1

    def heal(self) -> None:
        self._replies_left = None
        self._silent = False

    def fall_silent(self) -> None:
        """Keep connections open but forward nothing, like a peer that vanished."""
        self._silent = True

    def say(self, data: bytes) -> None:
        """Send this to every client, as if it came from the server."""
        for writer in self._clients:
            writer.write(data)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        # The handlers end with their connections.
        await asyncio.gather(*self._handlers)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.create_task(self._serve(reader, writer))
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        self._clients.add(writer)
        try:
            with contextlib.suppress(ConnectionError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, far_writer, replies=False))
                    group.create_task(self._forward(far_reader, writer, replies=True))
        except* _Cut:
            pass
        finally:
            for one in pair:
                one.transport.abort()
            self._writers -= pair
            self._clients.discard(writer)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self._silent:
                    continue
                if replies and self._replies_left is not None:
                    if self._replies_left == 0:
                        self._replies_left = None
                        break
                    self._replies_left -= 1
                writer.write(data)
                await writer.drain()
        raise _Cut


class _Cut(Exception):
    """Close one end because the other is gone."""


@contextlib.asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(dsn)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
