"""A server that answers as a test tells it to, byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from holdfast.engines.base import Traits
from holdfast.engines.wire import CONTENT_TYPE, About

ABOUT = About("0", Traits(name="memory", durable=False, shared=False), now=5)


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A request as it came."""

    verb: str
    headers: dict[str, str]
    body: bytes


Act = Callable[["Script", asyncio.StreamWriter], Any]


class Script:
    """`acts` are done one after the other, one for each request but the question who it is."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.heard: list[ReceivedRequest] = []
        self.came: asyncio.Queue[ReceivedRequest] = asyncio.Queue()
        self.connections = 0
        self.left = asyncio.Event()
        """Somebody hung up."""
        self.port = 0
        self.reader: asyncio.StreamReader
        self._server: asyncio.Server | None = None
        self._under_way: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def verbs(self) -> list[str]:
        return [said.verb for said in self.heard]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if it were killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._under_way.values():
            writer.transport.abort()
        if self._under_way:
            await asyncio.wait(self._under_way)

    # Not a coroutine: it knows a connection as soon as there is one, so that `stop` ends it.
    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._meet(reader, writer))
        self._under_way[task] = writer
        task.add_done_callback(self._under_way.pop)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self._attend(reader, writer)
        self.left.set()
        writer.transport.abort()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:-2])
        body = await reader.readexactly(int(headers["content-length"]))
        verb = head[0].split()[1].rpartition("/")[2]
        if verb == "engine":
            answer(ABOUT)(self, writer)
            return
        self.heard.append(ReceivedRequest(verb, headers, body))
        self.came.put_nowait(self.heard[-1])
        self.reader = reader
        act = self.acts.pop(0)(self, writer)
        if act is not None:
            await act


def answer(value: Any, *, status: int = 200, **headers: str) -> Act:
    body = msgspec.msgpack.encode(value)

    def act(_: Script, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(status, len(body), {"content-type": CONTENT_TYPE, **headers}) + body)

    return act


def wrong(code: str, status: int, **headers: str) -> Act:
    problem = {"error": {"code": code, "message": f"it is {code}", "detail": {}}}
    return answer(problem, status=status, **headers)


def words(data: bytes) -> Act:
    return lambda _, writer: writer.write(data)


def page(status: int) -> Act:
    """As from something that lies between."""
    body = b"<h1>no</h1>"
    return words(_head(status, len(body), {"content-type": "text/html"}) + body)


def cut(_: Script, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def silence(script: Script, _: asyncio.StreamWriter) -> Any:
    """Until the caller has gone."""
    return script.reader.read()


def _head(status: int, length: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


@contextlib.asynccontextmanager
async def scripted(*acts: Act) -> AsyncIterator[Script]:
    script = Script()
    script.acts += acts
    await script.start()
    try:
        yield script
    finally:
        await script.stop()
