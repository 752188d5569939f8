"""A receiver of webhooks: an HTTP server of a few lines that answers what the test wants."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.stream_server import stream_server

CERTIFICATE = Path(__file__).with_name("hooks.example.pem")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ReceivedRequest(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Replies with `answer` to each request; `talk`, if set, handles the connection instead."""

    def __init__(self) -> None:
        self.answer: bytes = OK
        self.talk: Talk | None = None
        self.got: list[ReceivedRequest] = []
        self.connections = 0
        self.port = 0
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self.got.append(await read_request(reader))
            if self.talk is not None:
                await self.talk(reader, writer)
            else:
                writer.write(self.answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        self.hung_up.set()


async def read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
    return ReceivedRequest(line, headers, await reader.readexactly(int(headers["content-length"])))


@asynccontextmanager
async def receiving(
    host: str = "127.0.0.1", port: int = 0, *, tls: bool = False
) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    async with stream_server(receiver.serve, host, port, context=context) as receiver.port:
        yield receiver
