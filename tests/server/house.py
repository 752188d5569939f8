"""A server without a socket: requests go straight to the application, from any address, with any
token, and what is behind it can be compared as a whole."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from holdfast.app import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.verbs import CONTENT_TYPE, VERBS
from holdfast.server.application import OPERATIONS, Application
from holdfast.server.operations import JSON, Operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from holdfast.server.tokens import Wanted

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error, in whatever it was told."""
        if self.headers.get("content-type", "").startswith(JSON):
            found: str = self.json["error"]["code"]
        else:
            found = msgspec.msgpack.decode(self.body)["error"]["code"]
        return found


class House:
    """`apps` are the open applications by namespace."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.application = Application(server)

    @property
    def apps(self) -> dict[str, Holdfast]:
        return self.server.namespaces.all()

    def engine(self, namespace: str = "default") -> Engine:
        return self.apps[namespace].home.store

    async def token(self, *scopes: str, **more: Any) -> str:
        wanted = Wanted(name=more.pop("name", "t"), scopes=scopes or ("admin",), **more)
        text, _ = await self.server.tokens.create(wanted)
        return text

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        peer: str = LOCAL,
        content_type: str = JSON,
        **headers: str | None,
    ) -> Reply:
        """Names of headers are written with _; None leaves one out. A stream is left after its
        first part."""
        named = {k.replace("_", "-"): v for k, v in {"host": f"{LOCAL}:7433", **headers}.items()}
        given = {name: value for name, value in named.items() if value is not None}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body)
        data = data.encode() if isinstance(data, str) else data
        if body is not None:
            given["content-type"] = content_type
        return await self._send(method, path, given, data, peer)

    async def call(self, verb: str, token: str | None = None, **carried: Any) -> Any:
        """A verb of the engine, as the remote engine says it."""
        body = msgspec.msgpack.encode(VERBS[verb].carries(**carried))
        path = f"/v1/engine/{verb}"
        reply = await self.ask("POST", path, body, token=token, content_type=CONTENT_TYPE)
        if reply.status >= 300:
            raise Refused(reply)
        return VERBS[verb].read_answer(reply.body)

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str
    ) -> Reply:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
            "client": (peer, 1234),
        }
        told: list[Any] = []
        left = asyncio.Event()
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if asked:
                return asked.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            told.append(event)
            if event["type"] == "http.response.body" and event.get("more_body"):
                left.set()

        await self.application(scope, receive, send)
        start = told[0]
        found = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        parts = [each.get("body", b"") for each in told[1:]]
        return Reply(start["status"], found, b"".join(parts))


class Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status} {reply.code}")
        self.reply = reply


@asynccontextmanager
async def house(settings: ServerSettings | None = None, **engines: Engine) -> AsyncIterator[House]:
    """With an engine in memory for each namespace; `engines` are others, by namespace."""

    def make(name: str) -> Holdfast:
        return Holdfast(engine=engines.get(name) or MemoryEngine())

    app = make("default")
    await app.open()
    server = Server(app=app, settings=settings or ServerSettings(), make=make)
    try:
        yield House(server)
    finally:
        server.stopping.set()
        await server.namespaces.close()
        await app.close()


def filled(operation: Operation, names: Mapping[str, str], query: Mapping[str, Any] = {}) -> str:
    """The path with its names filled in."""
    path = operation.path
    for name in operation.path_names:
        path = path.replace(f"{{{name}}}", quote(names[name], safe=""))
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


ALL = tuple(OPERATIONS)
"""Every operation there is."""
GUARDED = tuple(each for each in ALL if each.needs is not None)
"""Those that are not for everybody."""
